// AVX-VNNI: 8 rows at a time; four products of a row are added up in one instruction.
#include "quantized/kernels.h"

#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
#include <immintrin.h>

#include <cstring>

namespace tgr::avxvnni {

namespace {

// Tokens whose sums stay in registers.
constexpr int columns(int, int bits) {
    return bits == 6 ? 4 : 6;
}

// Tiles that share the loads of one token.
constexpr int tiles_of_one_token(int) {
    return 2;
}

constexpr bool SIGNED_BYTES = false; // bytes are shifted to 0 … 255

#include "quantized/vectors_256.h"

// Adds the product of four numbers of each row with the i-th four of a token.
template <class Format> inline Words add_four(Words whole, Words weights, const int8_t * numbers, int i) {
#ifdef __AVXVNNI__
    return Words(_mm256_dpbusd_avx_epi32(__m256i(whole), __m256i(weights), four(numbers, i)));
#else // for tests on processors that have AVX-512 VNNI alone
    return Words(_mm256_dpbusd_epi32(__m256i(whole), __m256i(weights), four(numbers, i)));
#endif
}

#include "quantized/add_products.h"
#include "quantized/formats.h"
#include "quantized/multiply.h"

} // namespace

Products products(ggml_type type) {
    return products_of(type);
}

} // namespace tgr::avxvnni

#endif
