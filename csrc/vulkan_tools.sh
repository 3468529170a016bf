#!/usr/bin/env bash
# Puts what compiles ggml's Vulkan backend into build/vulkan, from a Debian 13 with the packages glslc, libvulkan-dev and
# spirv-headers: csrc/vulkan_tools.sh [FOLDER OF THAT SYSTEM]. glslc comes with its C library, so it runs on an older Linux
# too. `make wheel` finds build/vulkan, whose layout is that of a Vulkan SDK.
set -euo pipefail
root=${1:-/}
out=$(dirname "$0")/../build/vulkan
loader=$(find "$root"/lib*/ld-linux-*.so.* "$root"/lib/*-linux-gnu/ld-linux-*.so.* 2>/dev/null | head -n 1) || true
vulkan=$(find "$root"/usr/lib/*/libvulkan.so 2>/dev/null | head -n 1) || true
if [ -z "$loader" ] || [ -z "$vulkan" ] || [ ! -x "$root/usr/bin/glslc" ] || [ ! -d "$root/usr/include/spirv" ]; then
    echo "$root lacks glslc, libvulkan-dev or spirv-headers of Debian 13; install them there, or name its folder" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"/{bin,include,lib,share/cmake,share/doc}
out=$(cd "$out" && pwd)

folder=$(dirname "$vulkan")
cp -L "$loader" "$out/lib/ld-linux.so"
cp -L "$folder/libvulkan.so" "$out/lib/"
cp "$root/usr/bin/glslc" "$out/lib/"
"$loader" --library-path "$folder" --list "$out/lib/glslc" |
    while read -r name arrow path _; do
        if [ "$arrow" = "=>" ] && [ "${name##*/}" = "$name" ]; then cp -L "$path" "$out/lib/$name"; fi
    done
cat >"$out/bin/glslc" <<'END'
#!/bin/sh
lib=$(dirname "$0")/../lib
exec "$lib/ld-linux.so" --library-path "$lib" "$lib/glslc" "$@"
END
chmod +x "$out/bin/glslc"
cp -r "$root"/usr/include/{vulkan,vk_video,spirv} "$out/include/"
cp -r "$root/usr/share/cmake/SPIRV-Headers" "$out/share/cmake/"
cp "$root/usr/share/doc/libvulkan-dev/copyright" "$out/share/doc/"
"$out/bin/glslc" --version | head -n 1
