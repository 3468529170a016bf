#!/usr/bin/env bash
# Builds the engine with CUDA from llama.cpp's source alone, runs the GPU tests, and measures 0.6B to 8B at Q4_K_M.
#
#   bench/gpu.sh [--cpu] [--source DIR] [--out DIR] [--shapes 0.6b,8b] [--no-bench]
#
# It needs no package registry: DIR is a llama.cpp source tree (src, include, ggml), $PYTHON (python3) a Python 3.10+ that
# has numpy, jinja2, pydantic, pybind11, pytest, gguf, rich, prompt_toolkit and llama-cpp-python of the pinned version,
# built for anything, since its own libraries are not used. Without --source pip fetches the source. --cpu does all of it
# without CUDA, to try it out. $CMAKE_ARGS has more arguments for CMake, such as -DCMAKE_CUDA_ARCHITECTURES=90.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
out=$root/build/gpu cuda=ON shapes=0.6b,1.7b,4b,8b bench=1 source=${TGR_LLAMA_CPP_SOURCE:-}

fail() { echo "gpu.sh: $*" >&2; exit 1; }
usage() { sed -n '2,11s/^# \{0,1\}//p' "$0"; }
while [ $# -gt 0 ]; do
    case $1 in
        --cpu) cuda=OFF ;;
        --source | --out | --shapes) [ $# -gt 1 ] || fail "$1 needs a value"; declare "${1#--}=$2"; shift ;;
        --no-bench) bench= ;;
        -h | --help) usage; exit 0 ;;
        *) fail "unknown argument $1; see --help" ;;
    esac
    shift
done

# --- what must be there ---
need() { command -v "$1" >/dev/null || fail "$1 is missing; $2"; }
need "$python" "name a Python 3.10 or newer in PYTHON"
need cmake "install CMake 3.21 or newer"
need c++ "install a C++17 compiler"
if [ $cuda = ON ]; then
    need nvcc "install the CUDA toolkit, or try it out with --cpu"
    need nvidia-smi "this machine has no NVIDIA driver; try it out with --cpu"
    nvidia-smi -L | grep -q GPU || fail "nvidia-smi finds no GPU; try it out with --cpu"
fi
for module in numpy jinja2 pydantic pybind11 pytest gguf rich prompt_toolkit llama_cpp; do
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" ||
        fail "$python has no module $module; install it, or name another Python in PYTHON"
done
if [ -n "$source" ]; then
    [ -f "$source/src/llama-graph.cpp" ] || fail "--source is $source, where no llama.cpp source is"
    export TGR_LLAMA_CPP_SOURCE=$(cd "$source" && pwd)
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)

# --- build ---
generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
targets="_engine"
[ $cuda = ON ] && targets="_engine peer"
read -ra more <<<"${CMAKE_ARGS:-}"
cmake -S "$root" -B "$out/cmake" -G "$generator" -DTGR_GGML=bundled -DGGML_CUDA=$cuda \
    -DPython_EXECUTABLE="$(command -v "$python")" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
    -DCMAKE_BUILD_TYPE=Release "${more[@]}"
# shellcheck disable=SC2086
cmake --build "$out/cmake" --parallel "$(nproc)" --target $targets

# --- a Python that sees this build, and the packages of $python without its own tgr_local ---
site=$out/site
rm -rf "$site" "$out/venv"
mkdir -p "$site"
cp -r "$root/tgr_local" "$site/"
find "$site" -name '_engine*.so' -delete
cp "$out"/cmake/_engine*.so "$site/tgr_local/"
cp "$root/models/tgr-mini-q8_0.gguf" "$site/tgr_local/embedded.gguf"
"$python" -m venv --without-pip "$out/venv"
"$python" - "$site" "$out/venv" <<'EOF'
import sys, pathlib
site, venv = map(pathlib.Path, sys.argv[1:])
(packages,) = venv.glob("lib/python*/site-packages")
# .pth files of the folders that are named here are not read, so no editable install gets in the way
paths = [str(site), *(path for path in sys.path if path and "-packages" in path)]
(packages / "gpu.pth").write_text("\n".join(paths) + "\n")
EOF
run() { (cd "$out" && env -u PYTHONPATH "$out/venv/bin/python" "$@"); }
[ $cuda = ON ] && export LLAMA_CPP_LIB_PATH=$out/cmake/peer # llama-cpp-python then computes on the GPU too
run -c 'import tgr_local._engine as e; print("\n".join(" ".join(map(str, d)) for d in e.devices()))' | tee "$out/devices.txt"
[ $cuda = OFF ] || grep -qi cuda "$out/devices.txt" || fail "the engine was built, but finds no GPU"

# --- tests ---
tests=("$root"/tests -m gpu)
# without CUDA: the engine's tests, but for those that compare it with llama_cpp's ggml, another build, bit by bit
[ $cuda = ON ] || tests=("$root"/tests/test_engine*.py "$root"/tests/test_{session_attention,trajectory,llama}.py
    -k "not llama_cpp_itself")
run -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" "${tests[@]}" 2>&1 | tee "$out/tests.txt"

# --- measurements ---
[ -n "$bench" ] || exit 0
only=decode,prefill,plain,capture,sampling,boundary,roofline,runs # the others use the embedded model: once
for shape in ${shapes//,/ }; do
    run -m tgr_local bench --shape "$shape" --type q4_k --only "$only" \
        --json "$out/bench-$shape-q4_k.json" --markdown "$out/bench-$shape-q4_k.md"
done
run -m tgr_local bench --shape tiny --only concurrency,searches,startup --json "$out/bench-embedded.json" --markdown "$out/bench-embedded.md"
echo "figures: $out/bench-*.md and $out/bench-*.json"
