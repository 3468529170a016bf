#include "attention_kernels.h"

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

namespace tgr {

typedef float    floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t  ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));
typedef float    quad __attribute__((vector_size(16), aligned(4)));

INLINE floats load(const float * from) {
    return *reinterpret_cast<const floats *>(from);
}

INLINE void store(float * to, floats values) {
    *reinterpret_cast<floats *>(to) = values;
}

template <class To, class From> INLINE To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

INLINE floats select(ints mask, floats yes, floats no) {
    return bits<floats>((bits<ints>(yes) & mask) | (bits<ints>(no) & ~mask));
}

// One half of the lanes is added to the other until there is one.
INLINE float sum(floats v) {
    typedef float eight __attribute__((vector_size(32), aligned(4)));
    struct halves_t {
        eight a, b;
    };
    struct quads_t {
        quad a, b;
    };
    const halves_t half  = bits<halves_t>(v);
    const quads_t  parts = bits<quads_t>(half.a + half.b);
    const quad     four  = parts.a + parts.b;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

//
// products
//

// Sums of ROWS rows of a times NB rows of b: sums[x][y].
template <int NB>
INLINE void multiply(const float * a, size_t lda, const float * const * b, size_t n, floats (&sums)[ROWS][NB]) {
    for (auto & row : sums) {
        for (floats & one : row) {
            one = floats{};
        }
    }
    for (size_t i = 0; i < n; i += LANES) {
        floats columns[NB];
        for (int y = 0; y < NB; ++y) {
            columns[y] = load(b[y] + i);
        }
        for (size_t x = 0; x < ROWS; ++x) {
            const floats row = load(a + x * lda + i);
            for (int y = 0; y < NB; ++y) {
                sums[x][y] += row * columns[y];
            }
        }
    }
}

INLINE void put(float * out, quad values, bool adds) {
    quad & at = *reinterpret_cast<quad *>(out);
    at        = adds ? at + values : values;
}

// `most` rows of b at a time, so that all sums stay in registers.
template <int NB> INLINE void few_products(const float * a, size_t lda, size_t na, const float * const * b, size_t n,
                                           float * const * out, bool adds) {
    floats sums[ROWS][NB];
    for (size_t x = 0; x < na; x += ROWS) {
        multiply<NB>(a + x * lda, lda, b, n, sums);
        for (int y = 0; y < NB; ++y) {
            put(out[y] + x, quad{ sum(sums[0][y]), sum(sums[1][y]), sum(sums[2][y]), sum(sums[3][y]) }, adds);
        }
    }
}

FOR_EACH_OTHER_PROCESSOR
static void products_one_by_one(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                                float * const * out, bool adds) {
    for (size_t y = 0; y < nb; ++y) {
        few_products<1>(a, lda, na, b + y, n, out + y, adds);
    }
}

#ifdef HAS_V4
// `sum` of 16 vectors at a time. Lanes 4·y to 4·y + 3 of the result are those of sums[0 … 3][y].
V4 INLINE floats sums_of(const floats (&s)[ROWS][4]) {
    floats eight[8], four[4], two[2];
    for (int i = 0; i < 8; ++i) { // two vectors, a half each
        const floats a = s[i / 2][i % 2 * 2], b = s[i / 2][i % 2 * 2 + 1];
        eight[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                   __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; ++i) { // a row of the tile, a quarter for each column
        const floats a = eight[2 * i], b = eight[2 * i + 1];
        four[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                  __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; ++i) { // two numbers of two rows in each quarter
        const floats a = four[2 * i], b = four[2 * i + 1];
        two[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    return __builtin_shufflevector(two[0], two[1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
           __builtin_shufflevector(two[0], two[1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

V4 static void products_v4(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                           float * const * out, bool adds) {
    size_t y = 0;
    for (; y + 4 <= nb; y += 4) {
        floats sums[ROWS][4];
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
    products_one_by_one(a, lda, na, b, nb, n, out, adds);
}

//
// F16
//

INLINE floats from_halves(halves raw) {
    const words  wide     = __builtin_convertvector(raw, words);
    const floats absolute = bits<floats>((wide & 0x7fff) << 13) * 0x1p112f;
    const words  endless  = bits<words>((wide & 0x7c00) == 0x7c00) & 0x7f800000; // infinite, or no number
    return bits<floats>(bits<words>(absolute) | endless | ((wide & 0x8000) << 16));
}

#if defined(HAS_F16C)
__attribute__((target("avx,f16c"))) static inline floats from_halves_f16c(halves raw) {
    struct pair_t {
        __m128i a, b;
    };
    struct floats_t {
        __m256 a, b;
    };
    const pair_t both = bits<pair_t>(raw);
    return bits<floats>(floats_t{ _mm256_cvtph_ps(both.a), _mm256_cvtph_ps(both.b) });
}
#endif

#ifdef HAS_V4
V4 static inline floats from_halves_v4(halves raw) {
    return bits<floats>(_mm512_cvtph_ps(bits<__m256i>(raw)));
}
#endif

// Rows lie far from each other, so that no processor prefetches them.
INLINE void prefetch(const char * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(from + i);
    }
}

template <floats (*Convert)(halves)> INLINE void convert(const rows_t & from, float * to, size_t stride) {
    const size_t n = from.n, rest = n % LANES, n_bytes = n * sizeof(uint16_t);
    const char * row = static_cast<const char *>(from.data);
    for (size_t x = 0; x < from.n_rows; ++x, row += from.stride, to += stride) {
        prefetch(row + from.ahead, n_bytes);
        const auto * numbers = reinterpret_cast<const uint16_t *>(row);
        for (size_t i = 0; i < n - rest; i += LANES) {
            store(to + i, Convert(*reinterpret_cast<const halves *>(numbers + i)));
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
    convert<from_halves_f16c>(from, to, stride);
}
#endif
#ifdef HAS_V4
V4 static void convert_v4(const rows_t & from, float * to, size_t stride) {
    convert<from_halves_v4>(from, to, stride);
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
    convert<from_halves>(from, to, stride);
}

//
// weights
//

FOR_EACH_PROCESSOR
void drop_bits(uint32_t n_bits, float * x, size_t n) {
    const uint32_t most = (1u << n_bits) - 1;
    for (size_t i = 0; i < n; i += LANES) {
        const words raw = bits<words>(load(x + i));
        store(x + i, bits<floats>((raw + most / 2 + ((raw >> n_bits) & 1)) & ~most));
    }
}

// exp of numbers that are at most zero, with an error of 2e-7.
INLINE floats exponential(floats at) {
    at                   = select(at < -87.0f, floats{} - 87.0f, at);
    const floats shifted = at * 1.44269504f + 12582912.0f; // rounds to a whole number in the lowest bits
    const floats power   = shifted - 12582912.0f;
    const floats rest    = at - power * 0.693145752f - power * 1.42860677e-6f;
    floats       p       = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    p                    = p * rest + 8.3334519073e-3f;
    p                    = p * rest + 4.1665795894e-2f;
    p                    = p * rest + 1.6666665459e-1f;
    p                    = p * rest + 5.0000001201e-1f;
    p                    = p * rest * rest + rest + 1.0f;
    return bits<floats>(bits<words>(p) + (bits<words>(shifted) << 23));
}

FOR_EACH_PROCESSOR
void soft_max(float * x, size_t n, float scale, const float * sink) {
    const size_t end  = whole(n);
    float        most = -INFINITY;
    if (n > 0) {
        std::fill(x + n, x + end, x[n - 1]);
        floats largest = load(x) * scale;
        for (size_t i = 0; i < end; i += LANES) {
            const floats at = load(x + i) * scale;
            store(x + i, at);
            largest = select(at > largest, at, largest);
        }
        for (size_t i = 0; i < LANES; ++i) {
            most = largest[i] > most ? largest[i] : most;
        }
    }
    float taken = 0.0f;
    if (sink) {
        most  = std::max(most, *sink);
        taken = std::exp(*sink - most);
    }
    floats total = {};
    for (size_t i = 0; i < end; i += LANES) {
        const floats at = exponential(load(x + i) - most);
        store(x + i, at);
        if (i + LANES > n) {
            std::fill(x + n, x + end, 0.0f);
        }
        total += load(x + i);
    }
    const float share = 1.0f / (sum(total) + taken);
    for (size_t i = 0; i < end; i += LANES) {
        store(x + i, load(x + i) * share);
    }
}

} // namespace tgr
