#!/usr/bin/env bash
# The tests of the products on an ARM processor that qemu imitates, and on one without dot products, where ggml's are used.
# Needs Debian's g++-aarch64-linux-gnu and qemu-user, and llama.cpp's source in build/.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ggml=$(echo build/*/llama.cpp-plain/ggml | cut -d' ' -f1)
printf '#define GGML_VERSION ""\n#define GGML_COMMIT ""\n' > "$out/ggml-version.h"
includes=(-Icsrc "-I$ggml/include" "-I$ggml/src" "-I$out")
compiled() { # FILE OPTION …: its object for ARM, without what nothing calls
    aarch64-linux-gnu-g++ -O2 -DNDEBUG -D_GNU_SOURCE -ffunction-sections "${includes[@]}" "${@:2}" -c "$1" \
        -o "$out/$(echo "$1" | tr / .).o"
}
for file in ggml.c ggml-quants.c; do
    compiled "$ggml/src/$file" -x c
done
for file in csrc/quantized/products.cpp tests/native/products.cpp tests/native/main.cpp; do
    compiled "$file" -std=c++17 -Wall -Wextra
done
compiled csrc/quantized/neon.cpp -std=c++17 -O3 -Wall -Wextra -Wno-psabi -march=armv8.2-a+dotprod
aarch64-linux-gnu-g++ -static -Wl,--gc-sections "$out"/*.o -o "$out/tests"
qemu-aarch64 -cpu max "$out/tests"
skipped=0
qemu-aarch64 -cpu cortex-a72 "$out/tests" > "$out/printed" || skipped=$?
[ $skipped = 77 ] || { cat "$out/printed"; exit 1; }
