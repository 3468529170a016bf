// Huge pages: a cache of some megabytes is read with fewer address translations in pages of 2 MiB than in pages of
// 4 KiB (docs/performance.md). And pages that are not needed yet.

#include "graph/context_memory.h"
#include "graph/graph_hooks.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tgr {

#ifdef MADV_HUGEPAGE

// Only an advice: the system may refuse it, and then nothing changes.
static void advise(void * base, size_t n_bytes, int advice) {
    const auto page  = uintptr_t(sysconf(_SC_PAGESIZE));
    const auto begin = (uintptr_t(base) + page - 1) / page * page;
    const auto end   = (uintptr_t(base) + n_bytes) / page * page;
    if (begin < end) {
        madvise(reinterpret_cast<void *>(begin), end - begin, advice);
    }
}

void use_huge_pages(ggml_backend_buffer_t buffer) {
    const auto type   = ggml_backend_buffer_get_type(buffer);
    const auto device = ggml_backend_buft_get_device(type); // plain host memory has none
    const bool in_ram =
        device ? ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU : ggml_backend_buft_is_host(type);
    if (ggml_backend_buffer_get_size(buffer) > 0 && in_ram) {
        advise(ggml_backend_buffer_get_base(buffer), ggml_backend_buffer_get_size(buffer), MADV_HUGEPAGE);
    }
}

void use_huge_pages(void * begin, size_t n_bytes) {
    advise(begin, n_bytes, MADV_HUGEPAGE);
}

void give_back_pages(void * begin, size_t n_bytes) {
    advise(begin, n_bytes, MADV_DONTNEED);
}

void give_back_file_pages(void * begin, size_t n_bytes) {
#ifdef MADV_COLD
    advise(begin, n_bytes, MADV_COLD);
#endif
    advise(begin, n_bytes, MADV_DONTNEED);
}

#else

void use_huge_pages(ggml_backend_buffer_t) {}
void use_huge_pages(void *, size_t) {}
void give_back_pages(void *, size_t) {}
void give_back_file_pages(void *, size_t) {}

#endif

} // namespace tgr
