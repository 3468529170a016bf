#include "graph/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// one machine code for each kind of processor, chosen when the library is loaded
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                           \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if __GNUC__ >= 12
#define HAS_V4 1
#define V4 __attribute__((target("arch=x86-64-v4")))
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define FOR_EACH_OTHER_PROCESSOR __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#define FOR_EACH_OTHER_PROCESSOR FOR_EACH_PROCESSOR
#endif
#else
#define FOR_EACH_PROCESSOR
#define FOR_EACH_OTHER_PROCESSOR
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_F16C 1
#endif
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE __builtin_shufflevector
#else // of quads
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vectors<4>::ints{ __VA_ARGS__ })
#endif

namespace tgr {

// Vectors of N numbers: 16 with AVX-512, else 8, since compilers spill longer ones.
template <size_t N> struct vectors {
    typedef float    floats __attribute__((vector_size(4 * N)));
    typedef int32_t  ints __attribute__((vector_size(4 * N)));
    typedef uint32_t words __attribute__((vector_size(4 * N)));
    typedef uint16_t halves __attribute__((vector_size(2 * N)));
};

using quad    = vectors<4>::floats;
using eight   = vectors<8>::floats;
using sixteen = vectors<16>::floats;

// memcpy: nothing here is aligned to a vector.
template <class Vector> INLINE Vector load(const void * from) {
    Vector values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

template <class Vector> INLINE void store(float * to, Vector values) {
    std::memcpy(to, &values, sizeof values);
}

template <class To, class From> INLINE To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The lower lanes and the upper ones, added.
template <class Half, class Vector> INLINE Half folded(Vector v) {
    struct halves_t {
        Half a, b;
    };
    const halves_t halves = bits<halves_t>(v);
    return halves.a + halves.b;
}

//
// products: the sums of LANES lanes are folded until there is one
//

// What two lanes of each of four vectors add up to.
INLINE quad sums_of(quad a, quad b, quad c, quad d) {
    const quad ab = SHUFFLE(a, b, 0, 1, 4, 5) + SHUFFLE(a, b, 2, 3, 6, 7);
    const quad cd = SHUFFLE(c, d, 0, 1, 4, 5) + SHUFFLE(c, d, 2, 3, 6, 7);
    return SHUFFLE(ab, cd, 0, 2, 4, 6) + SHUFFLE(ab, cd, 1, 3, 5, 7);
}

INLINE void put(float * out, quad values, bool adds) {
    store(out, adds ? load<quad>(out) + values : values);
}

// ROWS rows of a times one of b.
FOR_EACH_OTHER_PROCESSOR
void products_of_eights(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                        float * const * out, bool adds) {
    static_assert(ROWS == 4 && LANES == 16);
    for (size_t y = 0; y < nb; ++y) {
        for (size_t x = 0; x < na; x += ROWS) {
            const float *a0 = a + x * lda, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda;
            eight        low0{}, low1{}, low2{}, low3{}, high0{}, high1{}, high2{}, high3{};
            for (size_t i = 0; i < n; i += LANES) {
                const eight low = load<eight>(b[y] + i), high = load<eight>(b[y] + i + 8);
                low0 += load<eight>(a0 + i) * low;
                low1 += load<eight>(a1 + i) * low;
                low2 += load<eight>(a2 + i) * low;
                low3 += load<eight>(a3 + i) * low;
                high0 += load<eight>(a0 + i + 8) * high;
                high1 += load<eight>(a1 + i + 8) * high;
                high2 += load<eight>(a2 + i + 8) * high;
                high3 += load<eight>(a3 + i + 8) * high;
            }
            put(out[y] + x,
                sums_of(folded<quad>(low0 + high0), folded<quad>(low1 + high1), folded<quad>(low2 + high2),
                        folded<quad>(low3 + high3)),
                adds);
        }
    }
}

#ifdef HAS_V4
// Sums of ROWS rows of a times NB rows of b: sums[x][y].
template <int NB>
V4 INLINE void multiply(const float * a, size_t lda, const float * const * b, size_t n, sixteen (&sums)[ROWS][NB]) {
    for (auto & row : sums) {
        for (sixteen & one : row) {
            one = sixteen{};
        }
    }
    for (size_t i = 0; i < n; i += LANES) {
        sixteen columns[NB];
        for (int y = 0; y < NB; ++y) {
            columns[y] = load<sixteen>(b[y] + i);
        }
        for (size_t x = 0; x < ROWS; ++x) {
            const sixteen row = load<sixteen>(a + x * lda + i);
            for (int y = 0; y < NB; ++y) {
                sums[x][y] += row * columns[y];
            }
        }
    }
}

template <int NB> V4 INLINE void few_products(const float * a, size_t lda, size_t na, const float * const * b, size_t n,
                                              float * const * out, bool adds) {
    sixteen sums[ROWS][NB];
    for (size_t x = 0; x < na; x += ROWS) {
        multiply<NB>(a + x * lda, lda, b, n, sums);
        for (int y = 0; y < NB; ++y) {
            const auto four = [&](int row) { return folded<quad>(folded<eight>(sums[row][y])); };
            put(out[y] + x, sums_of(four(0), four(1), four(2), four(3)), adds);
        }
    }
}

// Lanes 4·y to 4·y + 3 of the result are the sums of sums[0 … 3][y].
V4 INLINE sixteen sums_of(const sixteen (&s)[ROWS][4]) {
    sixteen eights[8], fours[4], twos[2];
    for (int i = 0; i < 8; ++i) { // two vectors, a half each
        const sixteen a = s[i / 2][i % 2 * 2], b = s[i / 2][i % 2 * 2 + 1];
        eights[i] = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                    SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; ++i) { // a row of the tile, a quarter for each column
        const sixteen a = eights[2 * i], b = eights[2 * i + 1];
        fours[i] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; ++i) { // two numbers of two rows in each quarter
        const sixteen a = fours[2 * i], b = fours[2 * i + 1];
        twos[i] = SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                  SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    return SHUFFLE(twos[0], twos[1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
           SHUFFLE(twos[0], twos[1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

V4 static void products_v4(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                           float * const * out, bool adds) {
    size_t y = 0;
    for (; y + 4 <= nb; y += 4) {
        sixteen sums[ROWS][4];
        for (size_t x = 0; x < na; x += ROWS) {
            multiply<4>(a + x * lda, lda, b + y, n, sums);
            struct columns_t {
                quad column[4];
            };
            const columns_t all = bits<columns_t>(sums_of(sums));
            for (int i = 0; i < 4; ++i) {
                put(out[y + i] + x, all.column[i], adds);
            }
        }
    }
    if (nb - y == 3) {
        few_products<3>(a, lda, na, b + y, n, out + y, adds);
    } else if (nb - y == 2) {
        few_products<2>(a, lda, na, b + y, n, out + y, adds);
    } else if (nb - y == 1) {
        few_products<1>(a, lda, na, b + y, n, out + y, adds);
    }
}

static bool is_v4() {
    static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx2") &&
                            __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    return yes;
}
#endif

void products(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n, float * const * out,
              bool adds) {
#ifdef HAS_V4
    if (is_v4()) {
        return products_v4(a, lda, na, b, nb, n, out, adds);
    }
#endif
    products_of_eights(a, lda, na, b, nb, n, out, adds);
}

//
// F16
//

INLINE eight from_halves(vectors<8>::halves raw) {
    using words          = vectors<8>::words;
    const words wide     = __builtin_convertvector(raw, words);
    const eight absolute = bits<eight>((wide & 0x7fff) << 13) * 0x1p112f;
    const words endless  = bits<words>((wide & 0x7c00) == 0x7c00) & 0x7f800000; // infinite, or no number
    return bits<eight>(bits<words>(absolute) | endless | ((wide & 0x8000) << 16));
}

#if defined(HAS_F16C)
__attribute__((target("avx,f16c"))) static inline eight from_halves_f16c(vectors<8>::halves raw) {
    return bits<eight>(_mm256_cvtph_ps(bits<__m128i>(raw)));
}
#endif

#ifdef HAS_V4
V4 static inline sixteen from_halves_v4(vectors<16>::halves raw) {
    return bits<sixteen>(_mm512_cvtph_ps(bits<__m256i>(raw)));
}
#endif

// Rows lie far from each other, so that no processor prefetches them.
INLINE void prefetch(const char * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(from + i);
    }
}

template <size_t N, auto Convert> INLINE void convert(const rows_t & from, float * to, size_t stride) {
    using floats   = typename vectors<N>::floats;
    using halves   = typename vectors<N>::halves;
    const size_t n = from.n, rest = n % N, n_bytes = n * sizeof(uint16_t);
    const char * row = static_cast<const char *>(from.data);
    for (size_t x = 0; x < from.n_rows; ++x, row += from.stride, to += stride) {
        prefetch(row + from.ahead, n_bytes);
        const auto * numbers = reinterpret_cast<const uint16_t *>(row);
        for (size_t i = 0; i < n - rest; i += N) {
            store(to + i, Convert(load<halves>(numbers + i)));
        }
        if (rest > 0) {
            halves raw = {};
            std::memcpy(&raw, numbers + n - rest, rest * sizeof(uint16_t));
            const floats values = Convert(raw);
            std::memcpy(to + n - rest, &values, rest * sizeof(float));
        }
    }
}

#if defined(HAS_F16C)
__attribute__((target("avx,f16c"))) static void convert_f16c(const rows_t & from, float * to, size_t stride) {
    convert<8, from_halves_f16c>(from, to, stride);
}
#endif
#ifdef HAS_V4
V4 static void convert_v4(const rows_t & from, float * to, size_t stride) {
    convert<16, from_halves_v4>(from, to, stride);
}
#endif

void from_f16(const rows_t & from, float * to, size_t stride) {
#ifdef HAS_V4
    if (is_v4()) {
        return convert_v4(from, to, stride);
    }
#endif
#if defined(HAS_F16C)
    static const bool has_f16c = __builtin_cpu_supports("f16c");
    if (has_f16c) {
        return convert_f16c(from, to, stride);
    }
#endif
    convert<8, from_halves>(from, to, stride);
}

//
// weights
//

INLINE eight select(vectors<8>::ints mask, eight yes, eight no) {
    using ints = vectors<8>::ints;
    return bits<eight>((bits<ints>(yes) & mask) | (bits<ints>(no) & ~mask));
}

FOR_EACH_PROCESSOR
void drop_bits(uint32_t n_bits, float * x, size_t n) {
    using words         = vectors<8>::words;
    const uint32_t most = (1u << n_bits) - 1;
    for (size_t i = 0; i < n; i += 8) {
        const eight at  = load<eight>(x + i);
        const words raw = bits<words>(at);
        const eight cut = bits<eight>((raw + most / 2 + ((raw >> n_bits) & 1)) & ~most);
        store(x + i, select(at == at, cut, at)); // no number stays none
    }
}

// exp of numbers that are at most zero, with an error of 2e-7.
INLINE eight exponential(eight at) {
    using words         = vectors<8>::words;
    at                  = select(at < -87.0f, eight{} - 87.0f, at);
    const eight shifted = at * 1.44269504f + 12582912.0f; // rounds to a whole number in the lowest bits
    const eight power   = shifted - 12582912.0f;
    const eight rest    = at - power * 0.693145752f - power * 1.42860677e-6f;
    eight       p       = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    p                   = p * rest + 8.3334519073e-3f;
    p                   = p * rest + 4.1665795894e-2f;
    p                   = p * rest + 1.6666665459e-1f;
    p                   = p * rest + 5.0000001201e-1f;
    p                   = p * rest * rest + rest + 1.0f;
    return bits<eight>(bits<words>(p) + (bits<words>(shifted) << 23));
}

FOR_EACH_PROCESSOR
void soft_max(float * x, size_t n, float scale, const float * sink) {
    const size_t end  = whole(n);
    float        most = -INFINITY;
    if (n > 0) {
        std::fill(x + n, x + end, x[n - 1]);
        eight largest = load<eight>(x) * scale;
        for (size_t i = 0; i < end; i += 8) {
            const eight at = load<eight>(x + i) * scale;
            store(x + i, at);
            largest = select(at > largest, at, largest);
        }
        for (size_t i = 0; i < 8; ++i) {
            most = largest[i] > most ? largest[i] : most;
        }
    }
    float taken = 0.0f;
    if (sink) {
        most  = std::max(most, *sink);
        taken = std::exp(*sink - most);
    }
    eight low{}, high{};
    for (size_t i = 0; i < end; i += LANES) {
        store(x + i, exponential(load<eight>(x + i) - most));
        store(x + i + 8, exponential(load<eight>(x + i + 8) - most));
        if (i + LANES > n) {
            std::fill(x + n, x + end, 0.0f);
        }
        low += load<eight>(x + i);
        high += load<eight>(x + i + 8);
    }
    const quad  four  = folded<quad>(low + high);
    const float share = 1.0f / ((four[0] + four[2]) + (four[1] + four[3]) + taken);
    for (size_t i = 0; i < end; i += 8) {
        store(x + i, load<eight>(x + i) * share);
    }
}

} // namespace tgr
