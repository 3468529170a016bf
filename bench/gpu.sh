#!/usr/bin/env bash
# Builds the engine for a GPU from llama.cpp's source alone, runs its tests there, and measures it at Q4_K_M.
#
#   bench/gpu.sh [--backend NAME] [--source DIR] [--out DIR] [PHASE ...]
#
#   --build            the engine, and llama.cpp to compare with; continues where it was stopped
#   --test             the engine's tests, with all layers on the GPU
#   --weights SHAPE    the random weights that --bench SHAPE measures
#   --bench SHAPE      0.6b, 1.7b, 4b or 8b; or embedded, the embedded model
#
# Without a phase: all of them. Each takes less than ten minutes on 16 cores. --backend is cuda (the default), vulkan, or
# cpu, which tries it all out without a GPU. Vulkan without a GPU computes on Mesa's software device, slowly. The build is
# kept in --out (build/gpu-NAME); results go to $OUT, or there too. It needs no package registry: --source is a llama.cpp
# source tree (src, include, ggml, ...), $PYTHON (python3) a Python 3.10+ with its headers, the modules named below, and
# llama-cpp-python of the pinned version, built for anything, since its libraries are not used. Without --source pip
# fetches the source. $CMAKE_ARGS has more arguments for CMake; with -DCMAKE_CUDA_ARCHITECTURES=90 --build needs no GPU.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
out='' backend=cuda source=${TGR_LLAMA_CPP_SOURCE:-} phases=() limits=()
modules="numpy jinja2 markupsafe pydantic pybind11 pytest gguf rich prompt_toolkit wcwidth diskcache typing_extensions"

fail() { echo "gpu.sh: $*" >&2; exit 1; }
usage() { sed -n '2,18s/^# \{0,1\}//p' "$0"; }
while [ $# -gt 0 ]; do
    case $1 in
        --backend | --source | --out) [ $# -gt 1 ] || fail "$1 needs a value"; declare "${1#--}=$2"; shift ;;
        --build | --test) phases+=("${1#--}") ;;
        --weights | --bench) [ $# -gt 1 ] || fail "$1 needs a shape"; phases+=("${1#--} $2"); shift ;;
        -h | --help) usage; exit 0 ;;
        *) fail "unknown argument $1; see --help" ;;
    esac
    shift
done
[ ${#phases[@]} -gt 0 ] ||
    phases=(build test "bench 0.6b" "bench 1.7b" "bench 4b" "bench 8b" "bench embedded")
case $backend in
    cuda | vulkan) device=gpu ;;
    cpu) device=cpu ;;
    *) fail "--backend is $backend, but must be cuda, vulkan or cpu" ;;
esac
out=${out:-$root/build/gpu-$backend}
mkdir -p "$out" "${OUT:-$out}"
out=$(cd "$out" && pwd) results=$(cd "${OUT:-$out}" && pwd)

# --- what must be there ---
need() { command -v "$1" >/dev/null || fail "$1 is missing; $2"; }
has_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]; }

check_python() {
    need "$python" "name a Python 3.10 or newer in PYTHON"
    local module why
    for module in $modules; do
        why=$("$python" -c "import $module" 2>&1) ||
            fail "$python cannot import $module (${why##*$'\n'}); install it, or name another Python in PYTHON"
    done
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)" ||
        fail "$python has no llama-cpp-python; install it, or name another Python in PYTHON"
}

check_build() {
    need cmake "install CMake 3.21 or newer"
    need c++ "install a C++17 compiler"
    local headers
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$headers/Python.h" ] || [[ ${CMAKE_ARGS:-} == *Python_INCLUDE_DIR* ]] ||
        fail "$headers has no Python.h; install Python's headers, or put -DPython_INCLUDE_DIR=DIR into CMAKE_ARGS"
    [ -z "$source" ] || [ -f "$source/src/llama-graph.cpp" ] ||
        fail "--source is $source, where no llama.cpp source is"
    if [ $backend = vulkan ]; then
        need glslc "install glslc, with the headers of Vulkan and of SPIR-V"
        [[ ${CMAKE_ARGS:-} == *Vulkan_INCLUDE_DIR* ]] || printf '%s\n' '#include <vulkan/vulkan.h>' \
            '#ifndef VK_EXT_layer_settings' '#error' '#endif' | c++ -x c++ -fsyntax-only - 2>/dev/null ||
            fail "Vulkan's headers are missing or older than 1.3.272; install newer ones, or put" \
                "-DVulkan_INCLUDE_DIR=DIR into CMAKE_ARGS"
    fi
    [ $backend = cuda ] || return 0
    need nvcc "install the CUDA toolkit, or try it out with --backend cpu"
    has_gpu || [[ ${CMAKE_ARGS:-} == *CMAKE_CUDA_ARCHITECTURES* ]] ||
        fail "nvidia-smi finds no GPU; name one in CMAKE_ARGS (-DCMAKE_CUDA_ARCHITECTURES=90), or try it out with --backend cpu"
}

# Puts links into $out/cuda to what nvcc does not find itself: cuBLAS of Python's packages, the driver's library. Appends
# CMake's arguments to `more`.
find_cuda() {
    local links=$out/cuda major folder file
    major=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    mkdir -p "$links/include" "$links/lib"
    nvcc_has() { printf '%s\nint main() {}\n' "$1" | nvcc -x cu - "${@:2}" -o "$links/probe" >/dev/null 2>&1; }
    if ! nvcc_has "#include <cublas_v2.h>" -lcublas -lcublasLt; then
        folder=$("$python" - "$major" <<'END'
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("nvidia")
for place in spec.submodule_search_locations if spec else ():
    for header in pathlib.Path(place).glob("*/include/cublas_v2.h"):
        if (header.parents[1] / "lib" / f"libcublas.so.{sys.argv[1]}").exists():
            print(header.parents[1])
            sys.exit()
END
        )
        [ -n "$folder" ] || fail "cuBLAS $major is missing; install it with the CUDA toolkit, or nvidia-cublas with pip"
        ln -sf "$folder"/include/cublas*.h "$links/include/"
        for file in cublas cublasLt; do
            ln -sf "$folder/lib/lib$file.so.$major" "$links/lib/lib$file.so.$major"
            ln -sf "lib$file.so.$major" "$links/lib/lib$file.so"
            more+=("-DCUDA_${file}_LIBRARY=$links/lib/lib$file.so")
        done
        more+=("-DCMAKE_CUDA_FLAGS=-isystem $links/include") # behind the toolkit's own
    fi
    if ! nvcc_has "" -lcuda; then
        file=$({ ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\.so\.1 (.*x86-64.*=> //p; s/.*libcuda\.so\.1 (.*AArch64.*=> //p'
            IFS=: && printf '%s/libcuda.so.1\n' ${LD_LIBRARY_PATH:-} /usr/local/nvidia/lib64
        } | while read -r file; do [ ! -e "$file" ] || { echo "$file" && break; }; done)
        [ -n "$file" ] || fail "the driver's library libcuda.so.1 is missing; put its folder into LD_LIBRARY_PATH"
        ln -sf "$file" "$links/lib/libcuda.so"
        more+=("-DCUDA_cuda_driver_LIBRARY=$links/lib/libcuda.so")
    fi
    rm -f "$links/probe"
}

# --- build ---
build() {
    check_build
    local generator more=() extra=()
    [ -z "$source" ] || export TGR_LLAMA_CPP_SOURCE=$(cd "$source" && pwd)
    generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
    case $backend in
        cuda)
            find_cuda
            more+=(-DGGML_CUDA=ON)
            ;;
        vulkan) more+=(-DGGML_VULKAN=ON) ;;
    esac
    read -ra extra <<<"${CMAKE_ARGS:-}"
    cmake -S "$root" -B "$out/cmake" -G "$generator" -DTGR_GGML=bundled \
        -DPython_EXECUTABLE="$(command -v "$python")" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
        -DCMAKE_BUILD_TYPE=Release "${more[@]}" "${extra[@]}"
    cmake --build "$out/cmake" --parallel "$(nproc)" --target _engine _chat peer
    [ $backend != cuda ] || grep -q cudaGraphLaunch "$out"/cmake/_engine*.so ||
        fail "the engine was built without CUDA graphs"
    if [ $backend = cuda ] && ! has_gpu; then
        echo "gpu.sh: the engine is built, but not loaded: nvidia-smi finds no GPU"
        return
    fi
    install
    run -c 'import tgr_local._engine as e; print("\n".join(" ".join(map(str, d)) for d in e.devices()))' |
        tee "$results/devices.txt"
    [ $backend = cpu ] || grep -qi "$backend" "$results/devices.txt" || fail "the engine was built, but finds no GPU"
    run -c 'import llama_cpp; print(llama_cpp.llama_print_system_info().decode())' | tee -a "$results/devices.txt"
    grep -q "LLAMAFILE = 1" "$results/devices.txt" || fail "the engine was built without tinyBLAS"
}

# --- a Python that sees this build, and the packages of $python without its own tgr_local ---
install() {
    local site=$out/site
    ls "$out"/cmake/_engine*.so "$out"/cmake/_chat*.so >/dev/null 2>&1 || fail "nothing is built in $out; run --build first"
    rm -rf "$site" "$out/venv"
    mkdir -p "$site"
    cp -r "$root/tgr_local" "$site/"
    find "$site" -name '_*.so' -delete
    cp "$out"/cmake/_engine*.so "$out"/cmake/_chat*.so "$site/tgr_local/"
    cp "$root/models/tgr-mini-q8_0.gguf" "$site/tgr_local/embedded.gguf"
    cp "$root/models/tgr-mini-code-q8_0.gguf" "$site/tgr_local/embedded-code.gguf"
    "$python" -m venv --without-pip "$out/venv"
    "$python" - "$site" "$out/venv" <<'END'
import os, pathlib, sys, sysconfig
site, venv = map(pathlib.Path, sys.argv[1:])
(packages,) = venv.glob("lib/python*/site-packages")
own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
# .pth files of the folders that are named here are not read, so no editable install gets in the way
found = [path for path in sys.path if os.path.isdir(path) and os.path.realpath(path) not in own]
found = [path for path in found if os.path.basename(path) != "lib-dynload"]
(packages / "gpu.pth").write_text("\n".join([str(site), *map(os.path.abspath, found)]) + "\n")
END
    # ggml skips Mesa's software device unless it is named
    [ $backend != vulkan ] || [ -n "${GGML_VK_VISIBLE_DEVICES:-}" ] || run -c '
import sys, tgr_local._engine as engine
sys.exit(all(kind not in ("gpu", "igpu") for _, _, kind, *_ in engine.devices()))' || {
        # Mesa 22 crashes in ggml's fused operations, and takes seconds to compile one; tests have an empty folder of a user
        export GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_FUSION=1 MESA_SHADER_CACHE_DIR=$out/shaders
        export TGR_TEST_HANG=${TGR_TEST_HANG:-300}
        limits=(-o timeout=400 -o faulthandler_timeout=420)
    }
}

# llama-cpp-python computes with what was built here too
run() { (cd "$out" && env -u PYTHONPATH LLAMA_CPP_LIB_PATH="$out/cmake/peer" "$out/venv/bin/python" "$@"); }

# --- tests ---
tests() {
    install
    local parallel=()
    run -c "import xdist" 2>/dev/null && parallel=(-n "$(($(nproc) > 8 ? 8 : ($(nproc) + 1) / 2))" --dist loadfile)
    local files=("$root"/tests/test_engine*.py
        "$root"/tests/test_{bench_gpu,device,cancel,fairness,families,layer_fit,moves}.py
        "$root"/tests/test_{prefix_files,prefixes,reuse,trajectory}.py)
    # without TF32 a product depends less on how many tokens it is for; left out: a test that needs the server's packages
    TGR_TEST_DEVICE=$device NVIDIA_TF32_OVERRIDE=0 run -m pytest -v --tb=short -p no:cacheprovider "${parallel[@]}" "${limits[@]}" \
        -c "$root/pyproject.toml" --rootdir "$root" "${files[@]}" \
        --deselect tests/test_engine_loading.py::test_control_c_ends_a_command_that_loads 2>&1 | tee "$results/tests.txt"
}

# --- measurements ---
measure() {
    install
    local shape=$1 name=$1-q4_k groups=decode,prefill,plain,capture,sampling,boundary,roofline,runs
    case $shape in
        embedded) shape=tiny name=embedded groups=concurrency,searches,startup ;; # --shape is not used by these
    esac
    run -m tgr_local bench --shape "$shape" --type q4_k --only "$groups" \
        --json "$results/bench-$name.json" --markdown "$results/bench-$name.md"
}

weights() {
    install
    run -c 'import sys; from tgr_local.lab.bench import shapes; print(shapes.model_file(sys.argv[1], "q4_k"))' "$1"
}

# what a killed run left behind holds the lock too
exec 9>"$out/lock"
! command -v flock >/dev/null || flock -n 9 || fail "another run of gpu.sh works in $out; wait for its end"
check_python
for phase in "${phases[@]}"; do
    SECONDS=0
    case $phase in
        build) build ;;
        test) tests ;;
        weights\ *) weights "${phase#* }" ;;
        bench\ *) measure "${phase#* }" ;;
    esac
    echo "gpu.sh: $phase took $SECONDS s; results are in $results"
done
