#!/usr/bin/env bash
# Builds dist/*-win_amd64.whl on an x86-64 Debian: csrc/wheel_windows.sh BIN ROOT. BIN/python is of the version that the
# wheel is for, and ROOT a folder with include and libs of a Python for Windows, such as tools in the package of NuGet.
# Needs g++-mingw-w64-x86-64-posix. With csrc/vulkan_tools.sh before it the wheel has the Vulkan backend.
set -euo pipefail
bin=$(cd "$1" && pwd)
root=$(cd "$2" && pwd)
target=x86_64-w64-mingw32
python=$("$bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
library=$root/libs/python$python.lib
[ -e "$library" ] || { echo "there is no $library" >&2; exit 1; }
vulkan=$(dirname "$0")/../build/vulkan
if [ -x "$vulkan/bin/glslc" ]; then # an import library, from the names in the header
    {
        printf 'LIBRARY vulkan-1.dll\nEXPORTS\n'
        grep -oE 'VKAPI_CALL vk\w+' "$vulkan/include/vulkan/vulkan_core.h" | cut -d ' ' -f 2 | sort -u
    } >"$vulkan/vulkan-1.def"
    $target-dlltool -d "$vulkan/vulkan-1.def" -l "$vulkan/lib/libvulkan-1.a"
fi
# what builds comes before pip believes that it runs on Windows
"$bin/pip" install --quiet --disable-pip-version-check "scikit-build-core>=1.1" "pybind11>=3.0" cmake ninja
export PIP_NO_BUILD_ISOLATION=0 # which turns the isolation off
export CC=$target-gcc-posix CXX=$target-g++-posix TGR_TARGET=Windows
export _PYTHON_HOST_PLATFORM=win-amd64 SETUPTOOLS_EXT_SUFFIX=.cp$python-win_amd64.pyd # in the names of files
export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 -DPYBIND11_USE_CROSSCOMPILING=ON \
-DPython_INCLUDE_DIR=$root/include -DPython_LIBRARY=$library ${CMAKE_ARGS:-}"
exec "$(dirname "$0")/wheel.sh" "$bin"
