// AVX-512 VNNI: 16 rows at a time; four products of a row are added up in one instruction.
#include "quantized/kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#include <cstring>

namespace tgr::avx512 {

namespace {

// Tokens whose sums stay in registers. Two tiles share the loads of tokens, and so many sums hide the time of a
// product.
constexpr int columns(int tiles, int bits) {
    return tiles == 1 ? FEW_TOKENS : bits == 6 ? 4 : 6;
}

// Tiles that share the loads of one token.
constexpr int tiles_of_one_token(int) {
    return 1;
}

constexpr bool SIGNED_BYTES = false; // bytes are shifted to 0 … 255

#include "quantized/vectors.h"

// Of F16 in the low half of each word.
inline Floats half(Words words) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(__m512i(words)));
}
inline Floats load_halves(const uint8_t * from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
inline Floats product_and_sum(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline Floats load_some(const float * from, int64_t n) {
    return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), from);
}
inline void store_some(float * to, int64_t n, Floats numbers) {
    _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1), numbers);
}

// Four words of each row, from byte `at` on. Always inlined: a call would save all registers of vectors.
__attribute__((always_inline)) inline void bytes16(const Part & part, int64_t at, Words words[4]) {
    const auto row = [&](int i) __attribute__((always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i *>(part.base + part.offsets[i] + at));
    };
    const auto rows = [&](int i) __attribute__((always_inline)) {
        const __m256i low  = _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
        const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(i + 8)), row(i + 12), 1);
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    };
    const __m512i a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ba = _mm512_unpackhi_epi32(a, b), dc = _mm512_unpackhi_epi32(c, d);
    words[0] = Words(_mm512_unpacklo_epi64(ab, cd));
    words[1] = Words(_mm512_unpackhi_epi64(ab, cd));
    words[2] = Words(_mm512_unpacklo_epi64(ba, dc));
    words[3] = Words(_mm512_unpackhi_epi64(ba, dc));
}

// The lowest four bits of a word become bit 4 of its four bytes.
inline Words nibble_to_fifth_bits(Words words) {
    const auto    bits = [](int n) { return (n & 1) << 4 | (n & 2) << 11 | (n & 4) << 18 | (n & 8) << 25; };
    const __m512i all = _mm512_setr_epi32(bits(0), bits(1), bits(2), bits(3), bits(4), bits(5), bits(6), bits(7),
                                          bits(8), bits(9), bits(10), bits(11), bits(12), bits(13), bits(14), bits(15));
    return Words(_mm512_permutexvar_epi32(__m512i(words), all));
}

// Adds the product of four numbers of each row with the i-th four of a token.
template <class Format> inline Words add_four(Words whole, Words weights, const int8_t * numbers, int i) {
    int32_t four;
    std::memcpy(&four, numbers + 4 * i, 4);
    return Words(_mm512_dpbusd_epi32(__m512i(whole), __m512i(weights), _mm512_set1_epi32(four)));
}

#include "quantized/add_products.h"
#include "quantized/formats.h"
#include "quantized/multiply.h"

} // namespace

Products products(ggml_type type) {
    return products_of(type);
}

} // namespace tgr::avx512

#endif
