#include "quantized/kernels.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#ifdef __x86_64__
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tgr {

namespace {

// Products none has: ggml's are used.
struct Instructions {
    const char * name;
    bool         are_here;
    int64_t      rows; // that many tokens are multiplied with together
    Products (*products)(ggml_type type)                              = nullptr;
    void (*pack)(const float * token, int64_t n, TokenBlock * packed) = nullptr;
};

#ifdef __x86_64__

bool has_avx2() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C);
}

bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1 << 4));
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

#elif defined(__aarch64__)

bool has_dot_products() {
#ifdef __linux__
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    return true; // every Mac with ARM
#else
    return false;
#endif
}

#endif

// The best of the instructions that this processor has; of those from `most` on, if that is the name of some.
const Instructions & best(const char * most) {
    static const Instructions all[]{
#ifdef __x86_64__
        { "avx512", has_avx512(), avx512::TILES * avx512::ROWS, avx512::products, avx2::pack },
#ifdef TGR_AVXVNNI
        { "avxvnni", has_avxvnni(), GROUP_ROWS, avxvnni::products, avx2::pack },
#endif
        { "avx2", has_avx2(), GROUP_ROWS, avx2::products, avx2::pack },
#elif defined(__aarch64__)
        { "neon", has_dot_products(), GROUP_ROWS, neon::products, neon::pack },
#endif
        { "ggml", true, GROUP_ROWS },
    };
    const Instructions * first = all;
    for (const Instructions & one : all) {
        first = most && std::strcmp(one.name, most) == 0 ? &one : first;
    }
    while (!first->are_here) {
        ++first;
    }
    return *first;
}

// The environment is read once: another thread may change it later.
std::atomic<const Instructions *> & chosen() {
    static std::atomic<const Instructions *> chosen{ &best(std::getenv("TGR_PRODUCTS")) };
    return chosen;
}

Products products_of(const Instructions & instructions, ggml_type type) {
    return instructions.products ? instructions.products(type) : Products();
}

} // namespace

bool has_products(ggml_type type) {
    return products_of(*chosen(), type).multiply != nullptr;
}

void use_products(const char * name) {
    chosen() = &best(name);
}

const char * products_name() {
    return chosen().load()->name;
}

int64_t rows_together(int64_t n_tokens) {
    return n_tokens <= avx512::FEW_TOKENS ? GROUP_ROWS : chosen().load()->rows;
}

size_t packed_token_bytes(int64_t n) {
    return size_t(n / TOKEN_BLOCK) * sizeof(TokenBlock);
}

// Also with ggml's products they may be packed and interleaved, since others may be tried later.
static const Instructions & ours() {
    return chosen().load()->products ? *chosen() : best(nullptr);
}

void pack_token(const float * token, int64_t n, void * packed) {
    ours().pack(token, n, static_cast<TokenBlock *>(packed));
}

static void multiply(ggml_type type, const void * weights, bool interleaved, int64_t n, int64_t first, int64_t last,
                     const void * tokens, int64_t n_tokens, float * products, int64_t product_stride) {
    const int64_t stride = int64_t(ggml_row_size(type, n));
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first, interleaved };
    products_of(ours(), type)
        .multiply(rows, n, static_cast<const TokenBlock *>(tokens), n_tokens, products + first, product_stride);
}

void multiply_rows(ggml_type type, const void * weights, int64_t n, int64_t first, int64_t last, const void * tokens,
                   int64_t n_tokens, float * products, int64_t product_stride) {
    multiply(type, weights, false, n, first, last, tokens, n_tokens, products, product_stride);
}

void multiply_interleaved_rows(ggml_type type, const void * interleaved, int64_t n, int64_t first, int64_t last,
                               const void * tokens, int64_t n_tokens, float * products, int64_t product_stride) {
    multiply(type, interleaved, true, n, first, last, tokens, n_tokens, products, product_stride);
}

void interleave_rows(ggml_type type, const void * weights, int64_t n, int64_t first, int64_t last, void * interleaved) {
    const int64_t stride = int64_t(ggml_row_size(type, n));
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first, false };
    products_of(ours(), type).interleave(rows, n, static_cast<uint8_t *>(interleaved) + first * stride);
}

} // namespace tgr
