// Huge pages: a cache of some megabytes is read with fewer address translations in pages of 2 MiB than in pages of
// 4 KiB (docs/performance.md).

#include "graph_hooks.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tgr {

#ifdef MADV_HUGEPAGE

static bool in_ram(ggml_backend_buffer_t buffer) {
    const auto type   = ggml_backend_buffer_get_type(buffer);
    const auto device = ggml_backend_buft_get_device(type); // plain host memory has none
    return device ? ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU : ggml_backend_buft_is_host(type);
}

// Only an advice: the system may refuse it, and then the pages are small.
void use_huge_pages(ggml_backend_buffer_t buffer) {
    if (ggml_backend_buffer_get_size(buffer) == 0 || !in_ram(buffer)) {
        return;
    }
    const auto page  = uintptr_t(sysconf(_SC_PAGESIZE));
    const auto base  = uintptr_t(ggml_backend_buffer_get_base(buffer));
    const auto begin = (base + page - 1) / page * page;
    const auto end   = (base + ggml_backend_buffer_get_size(buffer)) / page * page;
    if (begin < end) {
        madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
    }
}

#else

void use_huge_pages(ggml_backend_buffer_t) {}

#endif

} // namespace tgr
