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

Multiply avx2::multiply(ggml_type) {
    return nullptr;
}

void avx2::pack(const float *, int64_t, TokenBlock *) {}

Multiply avx512::multiply(ggml_type) {
    return nullptr;
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

static Multiply find(ggml_type type) {
    const Kind found = kind();
    return found == Kind::avx512 ? avx512::multiply(type) : found == Kind::avx2 ? avx2::multiply(type) : nullptr;
}

bool has_products(ggml_type type) {
    return find(type) != nullptr;
}

void use_products(const char * name) {
    kind() = limited(find_kind(), name);
}

int64_t rows_together(int64_t n_tokens) {
    const int64_t tiles = n_tokens <= avx512::FEW_TOKENS ? 1 : avx512::TILES;
    return kind() == Kind::avx512 ? tiles * avx512::ROWS : avx2::TILES * avx2::ROWS;
}

size_t packed_token_bytes(int64_t n) {
    return size_t(n / TOKEN_BLOCK) * sizeof(TokenBlock);
}

void pack_token(const float * token, int64_t n, void * packed) {
    avx2::pack(token, n, static_cast<TokenBlock *>(packed));
}

void multiply_rows(ggml_type type, const void * weights, int64_t n, int64_t first, int64_t last, const void * tokens,
                   int64_t n_tokens, float * products, int64_t product_stride) {
    const int64_t stride = int64_t(ggml_row_size(type, n));
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first };
    find(type)(rows, n, static_cast<const TokenBlock *>(tokens), n_tokens, products + first, product_stride);
}

} // namespace tgr
