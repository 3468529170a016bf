#!/usr/bin/env bash
# Fuzzing of native code, guided by its coverage and under AddressSanitizer:
#   bench/fuzz_native.sh grammar|tokenizer|template|schema SECONDS
# Needs clang 14 or later with its runtime (Debian: clang libclang-rt-14-dev); CLANG=clang-14 names it. The engine with
# llama.cpp is compiled for it, in a venv of its own under build/. A template may run for ever: an input that takes
# more than 5 s or 2 GiB, which the confined process would end, is counted, and fuzzing goes on with the corpus. Anything
# else that libFuzzer reports ends the script with exit code 1.
set -uo pipefail
target=${1:?usage: bench/fuzz_native.sh TARGET SECONDS} seconds=${2:?usage: bench/fuzz_native.sh TARGET SECONDS}
clang=${CLANG:-clang}
cd "$(dirname "$0")/.."
venv=build/fuzz-venv

set -e
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
CC=$clang CXX=${clang/clang/clang++} TGR_PORTABLE=1 "$venv/bin/pip" install -q -C "build-dir=build/cmake-fuzz" \
    -C "cmake.define.TGR_SANITIZE=address,fuzzer-no-link" \
    -C "cmake.define.TGR_CPU_VARIANTS=haswell;armv8.0_1;apple_m1" ".[server]" atheris pytest gguf
set +e

runtime=$("$venv/bin/python" -c "import atheris; print(atheris.path())")/asan_with_fuzzer.so
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_abort=1
end=$(($(date +%s) + seconds)) n_slow=0 n_large=0
while left=$((end - $(date +%s))) && [ $left -gt 0 ]; do
    LD_PRELOAD="$runtime $(gcc -print-file-name=libstdc++.so.6)" \
        "$venv/bin/python" bench/fuzz_inputs.py "$target" --guided --each 5 --seconds $left
    case $? in
        0) break ;;
        70) n_slow=$((n_slow + 1)) ;;
        71) n_large=$((n_large + 1)) ;;
        *) exit 1 ;;
    esac
done
echo "$target: $seconds s, 0 failures; $n_slow inputs over 5 s, $n_large over 2 GiB"
