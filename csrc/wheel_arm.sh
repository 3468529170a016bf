#!/usr/bin/env bash
# Builds dist/*.whl for 64-bit ARM on an x86-64 Debian: csrc/wheel_arm.sh BIN ROOT. BIN/python is of the version that the
# wheel is for, and ROOT a folder with its headers for ARM, such as a Debian of that architecture with python3-dev.
# Needs g++-aarch64-linux-gnu.
set -euo pipefail
bin=$(cd "$1" && pwd)
include=$(cd "$2/usr/include" && pwd)
target=aarch64-linux-gnu
python=$("$bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ -e "$include/python$python/Python.h" ] || { echo "$include has no headers of Python $python" >&2; exit 1; }
export CC=$target-gcc CXX=$target-g++
export CXXFLAGS="${CXXFLAGS:-} -idirafter $include" # where Debian's pyconfig.h looks for that of the architecture
export _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.cpython-${python/./}-$target.so # in the names of files
export LD_LIBRARY_PATH=/usr/$target/lib # where auditwheel finds libgomp
export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DPYBIND11_USE_CROSSCOMPILING=ON \
-DGGML_VULKAN=OFF -DPython_INCLUDE_DIR=$include/python$python ${CMAKE_ARGS:-}"
exec "$(dirname "$0")/wheel.sh" "$bin"
