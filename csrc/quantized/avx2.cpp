// AVX2: 8 rows at a time; two products fit into 16 bits, as many as a format's bits allow are added up there.
#include "quantized/kernels.h"

#ifdef TGR_X86_PRODUCTS
#include <immintrin.h>

#include <cstring>

namespace tgr::avx2 {

namespace {

using Words  = __m256i;
using Floats = __m256;

// Tokens whose sums stay in registers.
constexpr int columns(int, bool) {
    return 4;
}

constexpr bool SIGNED_BYTES = true; // the sign of a byte goes to the token's number

inline Words splat(int32_t word) {
    return _mm256_set1_epi32(word);
}
inline Floats splat(float number) {
    return _mm256_set1_ps(number);
}
inline Words right(Words words, int n) {
    return _mm256_srl_epi32(words, _mm_cvtsi32_si128(n));
}
inline Words left(Words words, int n) {
    return _mm256_sll_epi32(words, _mm_cvtsi32_si128(n));
}
inline Words signed_byte(Words words, int i) {
    return _mm256_srai_epi32(left(words, 24 - 8 * i), 24);
}
inline Floats floats(Words words) {
    return _mm256_cvtepi32_ps(words);
}
// Of F16 in the low half of each word.
inline Floats half(Words words) {
    const Words low = words & splat(0xffff);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline Floats none() {
    return _mm256_setzero_ps();
}
inline Floats negative(Floats a) {
    return _mm256_sub_ps(none(), a);
}
inline Floats product(Floats a, Floats b) {
    return _mm256_mul_ps(a, b);
}
inline Floats product_and_sum(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline Floats load(const float * from) {
    return _mm256_load_ps(from);
}
inline void store(float * to, Floats numbers) {
    _mm256_store_ps(to, numbers);
}
inline void store(uint8_t (*to)[4], Words words) {
    _mm256_store_si256(reinterpret_cast<__m256i *>(to), words);
}
inline Words load_words(const uint8_t * from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}
inline void store_words(uint8_t * to, Words words) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), words);
}
inline Floats load_halves(const uint8_t * from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
inline Words first(int64_t n) {
    return _mm256_cmpgt_epi32(splat(int32_t(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_some(const float * from, int64_t n) {
    return _mm256_maskload_ps(from, first(n));
}
inline void store_some(float * to, int64_t n, Floats numbers) {
    _mm256_maskstore_ps(to, first(n), numbers);
}

// The rows of a tile; one that is not full has its last row several times.
struct Part {
    const uint8_t * base = nullptr;
    int32_t         offsets[ROWS];

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
        return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
    };
    const Words a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const Words ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const Words ba = _mm256_unpackhi_epi32(a, b), dc = _mm256_unpackhi_epi32(c, d);
    words[0] = _mm256_unpacklo_epi64(ab, cd);
    words[1] = _mm256_unpackhi_epi64(ab, cd);
    words[2] = _mm256_unpacklo_epi64(ba, dc);
    words[3] = _mm256_unpackhi_epi64(ba, dc);
}

// The lowest four bits of a word become bit 4 of its four bytes.
inline Words nibble_to_fifth_bits(Words words) {
    const Words bits = splat(0x08040201); // each byte keeps its own bit of the nibble
    const Words copy = _mm256_shuffle_epi8(words, _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
                                                                   0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    return _mm256_cmpeq_epi8(copy & bits, bits) & splat(0x10101010);
}

// Four numbers of each row times four of a token, in pairs.
template <class Format> inline Words in_pairs(Words weights, int32_t four) {
    if (Format::BITS == 8) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(splat(four), weights));
    }
    return _mm256_maddubs_epi16(weights, splat(four));
}

// Adds the product of four numbers of each row with four of a token.
template <class Format> inline Words add_four(Words whole, Words weights, int32_t four) {
    const Words ones = _mm256_set1_epi16(1);
    return _mm256_add_epi32(whole, _mm256_madd_epi16(in_pairs<Format>(weights, four), ones));
}

// Adds the products of 16 numbers of each row of R tiles with those of N tokens.
template <class Format, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int at) {
    constexpr bool FITS = Format::BITS <= 5; // 4 · 2 · 31 · 127 < 2^15
    const Words    ones = _mm256_set1_epi16(1);
    Words          pairs[N];
    static_assert(R == 1, "more do not fit the registers");
    for (int i = 0; i < 4; ++i) {
        const Words weights =
            _mm256_load_si256(reinterpret_cast<const __m256i *>(numbers[0] + (at / 4 + i) * ROWS * 4));
        for (int t = 0; t < N; ++t) {
            int32_t four;
            std::memcpy(&four, tokens[t][block].numbers + at + 4 * i, 4);
            const Words two = in_pairs<Format>(weights, four);
            if (FITS) {
                pairs[t] = i == 0 ? two : _mm256_add_epi16(pairs[t], two);
            } else {
                whole[0][t] = _mm256_add_epi32(whole[0][t], _mm256_madd_epi16(two, ones));
            }
        }
    }
    for (int t = 0; FITS && t < N; ++t) {
        whole[0][t] = _mm256_add_epi32(whole[0][t], _mm256_madd_epi16(pairs[t], ones));
    }
}

#include "quantized/formats.h"
#include "quantized/multiply.h"

inline int32_t sum(Words words) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m128i two  = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline float greatest(Floats numbers) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps(numbers, 1));
    const __m128 two  = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

} // namespace

Products products(ggml_type type) {
    return products_of(type);
}

void pack(const float * numbers, int64_t n, TokenBlock * packed) {
    for (int64_t b = 0; b < n / BLOCK; ++b, numbers += BLOCK) {
        TokenBlock & to   = packed[b];
        Floats       most = none(), parts[4];
        for (int i = 0; i < 4; ++i) {
            parts[i] = _mm256_loadu_ps(numbers + 8 * i);
            most     = _mm256_max_ps(most, _mm256_andnot_ps(splat(-0.0f), parts[i]));
        }
        const float amax    = greatest(most);
        const float inverse = amax != 0.0f ? 127.0f / amax : 0.0f;
        to.scale            = _cvtsh_ss(_cvtss_sh(amax / 127.0f, 0)); // as exact as ggml's, no more
        Words whole[4];
        for (int i = 0; i < 4; ++i) {
            whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], splat(inverse))); // to the nearest, or even
        }
        // vectors, since what is not finite wraps around
        const Words half_a = _mm256_add_epi32(whole[0], whole[1]), half_b = _mm256_add_epi32(whole[2], whole[3]);
        const Words zero = splat(0);
        to.minus_half[0] = sum(_mm256_sub_epi32(zero, half_a));
        to.minus_half[1] = sum(_mm256_sub_epi32(zero, half_b));
        to.minus         = sum(_mm256_sub_epi32(zero, _mm256_add_epi32(half_a, half_b)));
        to.sum           = -float(to.minus) * to.scale;
        // packing works within halves, so words are put into order afterwards
        const Words shorts_a = _mm256_packs_epi32(whole[0], whole[1]),
                    shorts_b = _mm256_packs_epi32(whole[2], whole[3]);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to.numbers),
                            _mm256_permutevar8x32_epi32(_mm256_packs_epi16(shorts_a, shorts_b),
                                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
}

} // namespace tgr::avx2

#endif
