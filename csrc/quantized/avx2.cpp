// AVX2: 8 rows at a time; two products fit into 16 bits, as many as a format's bits allow are added up there.
#include "quantized/kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace tgr::avx2 {

namespace {

// Tokens whose sums stay in registers; of those of eight bits there are sums in 16 and in 32 bits.
constexpr int columns(int, int bits) {
    return bits == 8 ? 3 : 4;
}

// Tiles that share the loads of one token.
constexpr int tiles_of_one_token(int bits) {
    return bits == 6 ? 1 : 2; // four blocks of Q6_K come at a time
}

constexpr bool SIGNED_BYTES = true; // the sign of a byte goes to the token's number

#include "quantized/vectors_256.h"

// Four numbers of each row times four of a token, in pairs.
template <class Format> inline __m256i in_pairs(__m256i weights, __m256i four) {
    if (Format::BITS == 8) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four, weights));
    }
    return _mm256_maddubs_epi16(weights, four);
}

// A sum is ready here, in a register. Without it compilers make all products first, and put them on the stack.
template <class Vector> inline void keep(Vector & sum) {
    asm("" : "+x"(sum));
}

inline Words add_pairs(Words whole, __m256i pairs) {
    return whole + Words(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Words, of N_WORDS, whose pairs are added up in 16 bits: a pair is below 2^(BITS + 8). Of a half all fit, less 2^SHIFT
// times the token's numbers; what does not fit before that is subtracted wraps around.
template <class Format, int N_WORDS> constexpr int IN_16_BITS =
    Format::HALVES ? N_WORDS : std::min(N_WORDS, std::max(128 >> Format::BITS, 1));

inline __m256i minus_pairs(const TokenBlock & token, int half, int shift) {
    int32_t pairs;
    std::memcpy(&pairs, token.minus_pairs[half], 4);
    return _mm256_slli_epi16(_mm256_set1_epi32(pairs), shift);
}

// The sum of products of one token with the words of a block, or of half of one. Those that are added up in 16 bits
// come one after the other.
template <class Format, int N_WORDS> struct Sum {
    static constexpr int TOGETHER = IN_16_BITS<Format, N_WORDS>;

    Words   whole;
    __m256i pairs[N_WORDS / TOGETHER];

    void add(Words weights, const TokenBlock & token, int half, int word) {
        __m256i   two = in_pairs<Format>(__m256i(weights), four(token.numbers + 16 * half, word));
        __m256i & sum = pairs[word / TOGETHER];
        if (word == 0) {
            whole = Format::HALVES ? splat(0) : beginning<Format>(token, half);
            two   = Format::HALVES ? _mm256_add_epi16(two, minus_pairs(token, half, Format::SHIFT)) : two;
        }
        sum = word % TOGETHER == 0 ? two : _mm256_add_epi16(sum, two);
        keep(sum);
        if (word % TOGETHER == TOGETHER - 1) {
            whole = add_pairs(whole, sum);
        }
    }
};

// Sums of the products of 4 * N_WORDS numbers of each row of R tiles, those of half `half`, with those of N tokens.
template <class Format, int N_WORDS, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int half) {
    constexpr int TOGETHER = IN_16_BITS<Format, N_WORDS>;
    for (int t = 0; t < N; ++t) {
        for (int r = 0; r < R; ++r) {
            whole[r][t] = Format::HALVES ? splat(0) : beginning<Format>(tokens[t][block], half);
        }
    }
#pragma GCC unroll 8
    for (int first = 0; first < N_WORDS; first += TOGETHER) {
        __m256i pairs[R][N];
#pragma GCC unroll 8
        for (int i = first; i < first + TOGETHER; ++i) {
            __m256i weights[R];
            for (int r = 0; r < R; ++r) {
                weights[r] = __m256i(load_words(numbers[r] + (4 * half + i) * ROWS * 4));
            }
            for (int t = 0; t < N; ++t) {
                const __m256i token = four(tokens[t][block].numbers + 16 * half, i);
                for (int r = 0; r < R; ++r) {
                    const __m256i two = in_pairs<Format>(weights[r], token);
                    if (i > first) {
                        pairs[r][t] = _mm256_add_epi16(pairs[r][t], two);
                    } else {
                        pairs[r][t] = Format::HALVES
                                          ? _mm256_add_epi16(minus_pairs(tokens[t][block], half, Format::SHIFT), two)
                                          : two;
                    }
                    keep(pairs[r][t]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            for (int t = 0; t < N; ++t) {
                whole[r][t] = add_pairs(whole[r][t], pairs[r][t]);
                keep(whole[r][t]);
            }
        }
    }
}

#include "quantized/formats.h"
#include "quantized/multiply.h"

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
        __m256i whole[4];
        for (int i = 0; i < 4; ++i) {
            whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], splat(inverse))); // to the nearest, or even
        }
        // packing works within halves, so words are put into order afterwards
        const __m256i shorts_a = _mm256_packs_epi32(whole[0], whole[1]),
                      shorts_b = _mm256_packs_epi32(whole[2], whole[3]);
        const __m256i bytes    = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(shorts_a, shorts_b),
                                                             _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to.numbers), bytes);
        const __m256i minus =
            _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes));
        const __m256i two = _mm256_add_epi16(minus, _mm256_shuffle_epi32(minus, 0x4e));
        const __m256i one = _mm256_add_epi16(two, _mm256_shuffle_epi32(two, 0xb1));
        const int32_t halves[2]{ _mm256_extract_epi32(one, 0), _mm256_extract_epi32(one, 4) };
        std::memcpy(to.minus_pairs, halves, sizeof halves);
        for (int half = 0; half < 2; ++half) {
            to.minus_half[half] = to.minus_pairs[half][0] + to.minus_pairs[half][1];
        }
        to.minus = to.minus_half[0] + to.minus_half[1];
        to.sum   = -float(to.minus) * to.scale;
    }
}

} // namespace tgr::avx2

#endif
