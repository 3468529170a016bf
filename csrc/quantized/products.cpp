#include "quantized/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#ifdef TGR_X86_PRODUCTS
#include <cpuid.h>
#endif

namespace tgr {

enum class Kind { none, avx2, avx512 };

#ifdef TGR_X86_PRODUCTS

static bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static Kind find_kind() {
    __builtin_cpu_init();
    const bool avx2   = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return !avx2 ? Kind::none : avx512 ? Kind::avx512 : Kind::avx2;
}

#else // the two files of instructions are empty

static Kind find_kind() {
    return Kind::none;
}

Products avx2::products(ggml_type) {
    return {};
}

void avx2::pack(const float *, int64_t, TokenBlock *) {}

Products avx512::products(ggml_type) {
    return {};
}

#endif

static Kind limited(Kind best, const char * name) {
    const auto is = [&](const char * wanted) { return name && std::strcmp(name, wanted) == 0; };
    return is("ggml") ? Kind::none : is("avx2") ? std::min(best, Kind::avx2) : best;
}

// The environment is read once: another thread may change it later.
static std::atomic<Kind> & kind() {
    static std::atomic<Kind> chosen{ limited(find_kind(), std::getenv("TGR_PRODUCTS")) };
    return chosen;
}

static Products find(ggml_type type, Kind chosen = kind()) {
    return chosen == Kind::avx512 ? avx512::products(type) : chosen == Kind::avx2 ? avx2::products(type) : Products();
}

bool has_products(ggml_type type) {
    return find(type).multiply != nullptr;
}

void use_products(const char * name) {
    kind() = limited(find_kind(), name);
}

int64_t rows_together(int64_t n_tokens) {
    const int64_t tiles = n_tokens <= avx512::FEW_TOKENS ? 1 : avx512::TILES;
    return kind() == Kind::avx512 ? tiles * avx512::ROWS : GROUP_ROWS;
}

size_t packed_token_bytes(int64_t n) {
    return size_t(n / TOKEN_BLOCK) * sizeof(TokenBlock);
}

void pack_token(const float * token, int64_t n, void * packed) {
    avx2::pack(token, n, static_cast<TokenBlock *>(packed));
}

static void multiply(ggml_type type, const void * weights, bool interleaved, int64_t n, int64_t first, int64_t last,
                     const void * tokens, int64_t n_tokens, float * products, int64_t product_stride) {
    const int64_t stride = int64_t(ggml_row_size(type, n));
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first, interleaved };
    find(type).multiply(rows, n, static_cast<const TokenBlock *>(tokens), n_tokens, products + first, product_stride);
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
    const Kind    used = kind(), chosen = used == Kind::none ? find_kind() : used; // it may be tried later
    const int64_t stride = int64_t(ggml_row_size(type, n));
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first, false };
    find(type, chosen).interleave(rows, n, static_cast<uint8_t *>(interleaved) + first * stride);
}

} // namespace tgr
