// AVX-512 VNNI: 16 rows at a time; four products of a row are added up in one instruction.
#include "quantized/kernels.h"

#ifdef TGR_X86_PRODUCTS
#include <immintrin.h>

#include <cstring>

namespace tgr::avx512 {

namespace {

using Words  = __m512i;
using Floats = __m512;

// Tokens whose sums stay in registers. Two tiles share the loads of tokens, and so many sums hide the time of a
// product.
constexpr int columns(int tiles, bool halves) {
    return tiles == 1 ? FEW_TOKENS : halves ? 4 : 6;
}

constexpr bool SIGNED_BYTES = false; // bytes are shifted to 0 … 255

inline Words splat(int32_t word) {
    return _mm512_set1_epi32(word);
}
inline Floats splat(float number) {
    return _mm512_set1_ps(number);
}
inline Words right(Words words, int n) {
    return _mm512_srl_epi32(words, _mm_cvtsi32_si128(n));
}
inline Words left(Words words, int n) {
    return _mm512_sll_epi32(words, _mm_cvtsi32_si128(n));
}
inline Words signed_byte(Words words, int i) {
    return _mm512_srai_epi32(left(words, 24 - 8 * i), 24);
}
inline Floats floats(Words words) {
    return _mm512_cvtepi32_ps(words);
}
// Of F16 in the low half of each word.
inline Floats half(Words words) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}
inline Floats none() {
    return _mm512_setzero_ps();
}
inline Floats negative(Floats a) {
    return _mm512_sub_ps(none(), a);
}
inline Floats product(Floats a, Floats b) {
    return _mm512_mul_ps(a, b);
}
inline Floats product_and_sum(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline Floats load(const float * from) {
    return _mm512_load_ps(from);
}
inline void store(float * to, Floats numbers) {
    _mm512_store_ps(to, numbers);
}
inline void store(uint8_t (*to)[4], Words words) {
    _mm512_store_si512(to, words);
}
inline Words load_words(const uint8_t * from) {
    return _mm512_loadu_si512(from);
}
inline void store_words(uint8_t * to, Words words) {
    _mm512_storeu_si512(to, words);
}
inline Floats load_halves(const uint8_t * from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
inline Floats load_some(const float * from, int64_t n) {
    return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), from);
}
inline void store_some(float * to, int64_t n, Floats numbers) {
    _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1), numbers);
}

// The rows of a tile; one that is not full has its last row several times.
struct Part {
    const uint8_t * base = nullptr;
    alignas(64) int32_t offsets[ROWS];

    Part() = default;
    Part(const uint8_t * base, int64_t stride, int64_t n) : base(base) {
        for (int i = 0; i < ROWS; ++i) {
            offsets[i] = int32_t((i < n ? i : n - 1) * stride);
        }
    }
};

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
    const Words a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const Words ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const Words ba = _mm512_unpackhi_epi32(a, b), dc = _mm512_unpackhi_epi32(c, d);
    words[0] = _mm512_unpacklo_epi64(ab, cd);
    words[1] = _mm512_unpackhi_epi64(ab, cd);
    words[2] = _mm512_unpacklo_epi64(ba, dc);
    words[3] = _mm512_unpackhi_epi64(ba, dc);
}

// The lowest four bits of a word become bit 4 of its four bytes.
inline Words nibble_to_fifth_bits(Words words) {
    const auto  bits = [](int n) { return (n & 1) << 4 | (n & 2) << 11 | (n & 4) << 18 | (n & 8) << 25; };
    const Words all = _mm512_setr_epi32(bits(0), bits(1), bits(2), bits(3), bits(4), bits(5), bits(6), bits(7), bits(8),
                                        bits(9), bits(10), bits(11), bits(12), bits(13), bits(14), bits(15));
    return _mm512_permutexvar_epi32(words, all);
}

// Adds the product of four numbers of each row with four of a token.
template <class Format> inline Words add_four(Words whole, Words weights, int32_t four) {
    return _mm512_dpbusd_epi32(whole, weights, splat(four));
}

// Adds the products of 16 numbers of each row of R tiles with those of N tokens.
template <class Format, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int at) {
    for (int i = 0; i < 4; ++i) {
        Words weights[R];
        for (int r = 0; r < R; ++r) {
            weights[r] = _mm512_load_si512(numbers[r] + (at / 4 + i) * ROWS * 4);
        }
        for (int t = 0; t < N; ++t) {
            int32_t four;
            std::memcpy(&four, tokens[t][block].numbers + at + 4 * i, 4);
            for (int r = 0; r < R; ++r) {
                whole[r][t] = add_four<Format>(whole[r][t], weights[r], four);
            }
        }
    }
}

#include "quantized/formats.h"
#include "quantized/multiply.h"

} // namespace

Products products(ggml_type type) {
    return products_of(type);
}

} // namespace tgr::avx512

#endif
