#include "q8_0.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_PRODUCTS 1
#include <immintrin.h>
#endif

namespace tgr {

#ifdef HAS_PRODUCTS

namespace {

constexpr int64_t BLOCK       = Q8_0_BLOCK;
constexpr int64_t BLOCK_BYTES = 2 + BLOCK; // in a file: an F16 scale, and numbers from -127 to 127
constexpr int64_t CHUNK       = 32; // blocks of a row that are laid out at a time: a tile of them stays in the L1
constexpr int64_t FEW         = 32; // tokens, all numbers of which stay in the L2
constexpr int     COLUMNS     = 8;  // tokens whose sums stay in registers

// A token: the numbers of all blocks, their scales, and what the sum of a block's products begins with.
struct Token {
    const int8_t *  numbers;
    const float *   scales;
    const int32_t * begin;

    Token(const void * packed, int64_t n) {
        numbers = static_cast<const int8_t *>(packed);
        scales  = reinterpret_cast<const float *>(numbers + n);
        begin   = reinterpret_cast<const int32_t *>(scales + n / BLOCK);
    }
};

// Rows of weights from `base` on; a tile that is not full has its last row several times.
struct Rows {
    const uint8_t * base;
    int64_t         stride;
    int64_t         n;

    const uint8_t * at(int64_t row, int64_t block) const {
        return base + std::min(row, n - 1) * stride + block * BLOCK_BYTES;
    }
};

template <class T> __attribute__((target("avx2"))) inline __m256i load(const T * at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
}

//
// AVX-512 VNNI: 16 rows; weights are shifted to 0 … 255, which the first term of each sum takes back
//

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

struct alignas(64) Tile512 {
    static constexpr int64_t ROWS = 16;

    uint8_t numbers[CHUNK][BLOCK / 4][ROWS][4];
    float   scales[CHUNK][ROWS];
};

AVX512 void lay_out(const Rows & rows, int64_t first_block, int64_t n_blocks, int64_t ahead, Tile512 & tile) {
    alignas(64) int32_t offsets[16];
    for (int i = 0; i < 16; ++i) {
        offsets[i] = int32_t(rows.at(i, 0) - rows.base);
    }
    const __m512i at    = _mm512_load_si512(offsets);
    const __m512i shift = _mm512_set1_epi8(char(0x80));
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i upper = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for (int64_t b = 0; b < n_blocks; ++b) {
        const uint8_t * base  = rows.base + (first_block + b) * BLOCK_BYTES;
        const __m512i   words = _mm512_and_si512(_mm512_i32gather_epi32(at, base, 1), _mm512_set1_epi32(0xffff));
        _mm512_store_ps(tile.scales[b], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)));

        for (int i = 0; i < 16 && b % 2 == 0; ++i) { // a line of 64 bytes holds nearly two blocks
            _mm_prefetch(reinterpret_cast<const char *>(base + offsets[i] + ahead), _MM_HINT_T1);
        }
        __m512i row[8], pair[8], four[8];
        for (int i = 0; i < 8; ++i) { // rows i and i + 8, eight words of four numbers each
            const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load(base + offsets[i] + 2)),
                                                    load(base + offsets[i + 8] + 2), 1);
            row[i]             = _mm512_xor_si512(both, shift);
        }
        for (int i = 0; i < 4; ++i) {
            pair[2 * i]     = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
            pair[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
        }
        for (int i = 0; i < 2; ++i) {
            four[4 * i]     = _mm512_unpacklo_epi64(pair[4 * i], pair[4 * i + 2]);
            four[4 * i + 1] = _mm512_unpackhi_epi64(pair[4 * i], pair[4 * i + 2]);
            four[4 * i + 2] = _mm512_unpacklo_epi64(pair[4 * i + 1], pair[4 * i + 3]);
            four[4 * i + 3] = _mm512_unpackhi_epi64(pair[4 * i + 1], pair[4 * i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            _mm512_store_si512(tile.numbers[b][i], _mm512_permutex2var_epi64(four[i], lower, four[i + 4]));
            _mm512_store_si512(tile.numbers[b][i + 4], _mm512_permutex2var_epi64(four[i], upper, four[i + 4]));
        }
    }
}

template <int N> AVX512 void multiply_tile(const Tile512 & tile, int64_t first_block, int64_t n_blocks,
                                           const Token * tokens, float * products, int64_t stride, int64_t n_rows,
                                           bool add) {
    const __mmask16 mask = __mmask16((1u << n_rows) - 1);
    __m512          sums[N];
    for (int t = 0; t < N; ++t) {
        sums[t] = add ? _mm512_maskz_loadu_ps(mask, products + t * stride) : _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        const int64_t block = first_block + b;
        __m512i       whole[N];
        for (int t = 0; t < N; ++t) {
            whole[t] = _mm512_set1_epi32(tokens[t].begin[block]);
        }
        for (int i = 0; i < BLOCK / 4; ++i) {
            const __m512i weights = _mm512_load_si512(tile.numbers[b][i]);
            for (int t = 0; t < N; ++t) {
                int32_t four;
                std::memcpy(&four, tokens[t].numbers + block * BLOCK + 4 * i, 4);
                whole[t] = _mm512_dpbusd_epi32(whole[t], weights, _mm512_set1_epi32(four));
            }
        }
        const __m512 scales = _mm512_load_ps(tile.scales[b]);
        for (int t = 0; t < N; ++t) {
            const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(tokens[t].scales[block]));
            sums[t]            = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[t]), scale, sums[t]);
        }
    }
    for (int t = 0; t < N; ++t) {
        _mm512_mask_storeu_ps(products + t * stride, mask, sums[t]);
    }
}

// One token: each row's block is multiplied as it lies there, and the sums are laid out instead.
AVX512 void multiply_one(const Rows & rows, int64_t n_blocks, const Token & token, float * products, Tile512 &) {
    alignas(64) int32_t offsets[16];
    for (int i = 0; i < 16; ++i) {
        offsets[i] = int32_t(rows.at(i, 0) - rows.base);
    }
    const __m512i at    = _mm512_load_si512(offsets);
    const __m512i shift = _mm512_set1_epi8(char(0x80));
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i upper = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    const int64_t ahead = 16 * rows.stride;
    __m512        sum   = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b) {
        const uint8_t * base   = rows.base + b * BLOCK_BYTES;
        const __m512i   words  = _mm512_and_si512(_mm512_i32gather_epi32(at, base, 1), _mm512_set1_epi32(0xffff));
        const __m512    scales = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
        const __m512i   number = _mm512_broadcast_i64x4(load(token.numbers + b * BLOCK));
        for (int i = 0; i < 16 && b % 2 == 0; ++i) {
            _mm_prefetch(reinterpret_cast<const char *>(base + offsets[i] + ahead), _MM_HINT_T1);
        }
        __m512i row[8], pair[4];
        for (int i = 0; i < 8; ++i) {
            const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load(base + offsets[i] + 2)),
                                                    load(base + offsets[i + 8] + 2), 1);
            row[i]             = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_xor_si512(both, shift), number);
        }
        for (int i = 0; i < 4; ++i) {
            pair[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]),
                                       _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]));
        }
        const __m512i low =
            _mm512_add_epi32(_mm512_unpacklo_epi64(pair[0], pair[1]), _mm512_unpackhi_epi64(pair[0], pair[1]));
        const __m512i high =
            _mm512_add_epi32(_mm512_unpacklo_epi64(pair[2], pair[3]), _mm512_unpackhi_epi64(pair[2], pair[3]));
        const __m512i halves =
            _mm512_add_epi32(_mm512_permutex2var_epi64(low, lower, high), _mm512_permutex2var_epi64(low, upper, high));
        const __m512i whole = _mm512_add_epi32(halves, _mm512_set1_epi32(token.begin[b]));
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_mul_ps(scales, _mm512_set1_ps(token.scales[b])), sum);
    }
    _mm512_mask_storeu_ps(products, __mmask16((1u << rows.n) - 1), sum);
}

//
// AVX2: 8 rows; the sign of each weight goes to the token's number, so that two products fit into 16 bits
//

#define AVX2 __attribute__((target("avx2,fma,f16c")))

struct alignas(64) Tile256 {
    static constexpr int64_t ROWS = 8;

    int8_t numbers[CHUNK][BLOCK / 4][ROWS][4];
    float  scales[CHUNK][ROWS];
};

AVX2 void lay_out(const Rows & rows, int64_t first_block, int64_t n_blocks, int64_t ahead, Tile256 & tile) {
    for (int64_t b = 0; b < n_blocks; ++b) {
        const uint8_t *      at[8];
        alignas(16) uint16_t scales[8];
        __m256i              row[8], pair[8], four[8];
        for (int i = 0; i < 8; ++i) {
            at[i] = rows.at(i, first_block + b);
            std::memcpy(&scales[i], at[i], 2);
            row[i] = load(at[i] + 2);
            if (b % 2 == 0) {
                _mm_prefetch(reinterpret_cast<const char *>(at[i] + ahead), _MM_HINT_T1);
            }
        }
        _mm256_store_ps(tile.scales[b], _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i *>(scales))));
        for (int i = 0; i < 4; ++i) {
            pair[2 * i]     = _mm256_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
            pair[2 * i + 1] = _mm256_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
        }
        for (int i = 0; i < 2; ++i) {
            four[4 * i]     = _mm256_unpacklo_epi64(pair[4 * i], pair[4 * i + 2]);
            four[4 * i + 1] = _mm256_unpackhi_epi64(pair[4 * i], pair[4 * i + 2]);
            four[4 * i + 2] = _mm256_unpacklo_epi64(pair[4 * i + 1], pair[4 * i + 3]);
            four[4 * i + 3] = _mm256_unpackhi_epi64(pair[4 * i + 1], pair[4 * i + 3]);
        }
        const auto store = [&](int i, __m256i words)
                               AVX2 { _mm256_store_si256(reinterpret_cast<__m256i *>(tile.numbers[b][i]), words); };
        for (int i = 0; i < 4; ++i) {
            store(i, _mm256_permute2x128_si256(four[i], four[i + 4], 0x20));
            store(i + 4, _mm256_permute2x128_si256(four[i], four[i + 4], 0x31));
        }
    }
}

template <int N> AVX2 void multiply_tile(const Tile256 & tile, int64_t first_block, int64_t n_blocks,
                                         const Token * tokens, float * products, int64_t stride, int64_t n_rows,
                                         bool add) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n_rows)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256        sums[N];
    for (int t = 0; t < N; ++t) {
        sums[t] = add ? _mm256_maskload_ps(products + t * stride, mask) : _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        const int64_t block = first_block + b;
        __m256i       whole[N];
        for (int t = 0; t < N; ++t) {
            whole[t] = _mm256_setzero_si256();
        }
        for (int i = 0; i < BLOCK / 4; ++i) {
            const __m256i weights = load(tile.numbers[b][i]);
            const __m256i sizes   = _mm256_abs_epi8(weights);
            for (int t = 0; t < N; ++t) {
                int32_t four;
                std::memcpy(&four, tokens[t].numbers + block * BLOCK + 4 * i, 4);
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(_mm256_set1_epi32(four), weights));
                whole[t]            = _mm256_add_epi32(whole[t], _mm256_madd_epi16(pairs, ones));
            }
        }
        const __m256 scales = _mm256_load_ps(tile.scales[b]);
        for (int t = 0; t < N; ++t) {
            const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(tokens[t].scales[block]));
            sums[t]            = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[t]), scale, sums[t]);
        }
    }
    for (int t = 0; t < N; ++t) {
        _mm256_maskstore_ps(products + t * stride, mask, sums[t]);
    }
}

AVX2 void multiply_one(const Rows & rows, int64_t n_blocks, const Token & token, float * products, Tile256 &) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(rows.n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const uint8_t * at[8];
    for (int i = 0; i < 8; ++i) {
        at[i] = rows.at(i, 0);
    }
    const int64_t ahead = 8 * rows.stride;
    __m256        sum   = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b) {
        const __m256i        numbers = load(token.numbers + b * BLOCK);
        alignas(16) uint16_t words[8];
        __m256i              row[8];
        for (int i = 0; i < 8; ++i, at[i - 1] += BLOCK_BYTES) {
            if (b % 2 == 0) {
                _mm_prefetch(reinterpret_cast<const char *>(at[i] + ahead), _MM_HINT_T1);
            }
            std::memcpy(&words[i], at[i], 2);
            const __m256i weights = load(at[i] + 2);
            const __m256i pairs   = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(numbers, weights));
            row[i]                = _mm256_madd_epi16(pairs, ones);
        }
        const __m256i low  = _mm256_hadd_epi32(_mm256_hadd_epi32(row[0], row[1]), _mm256_hadd_epi32(row[2], row[3]));
        const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(row[4], row[5]), _mm256_hadd_epi32(row[6], row[7]));
        const __m256i whole =
            _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
        const __m256 scales = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i *>(words)));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scales, _mm256_set1_ps(token.scales[b])), sum);
    }
    _mm256_maskstore_ps(products, mask, sum);
}

//
// all tiles of a part of the rows
//

template <class Tile, int N> void multiply_some(const Tile & tile, int64_t first_block, int64_t n_blocks,
                                                const void * tokens, int64_t n, float * products, int64_t stride,
                                                int64_t n_rows) {
    const size_t bytes         = q8_0_token_bytes(n);
    const auto   token         = [&](int t) { return Token(static_cast<const uint8_t *>(tokens) + t * bytes, n); };
    Token        some[COLUMNS] = { token(0),
                                   token(N > 1 ? 1 : 0),
                                   token(N > 2 ? 2 : 0),
                                   token(N > 3 ? 3 : 0),
                                   token(N > 4 ? 4 : 0),
                                   token(N > 5 ? 5 : 0),
                                   token(N > 6 ? 6 : 0),
                                   token(N > 7 ? 7 : 0) };
    multiply_tile<N>(tile, first_block, n_blocks, some, products, stride, n_rows, first_block > 0);
}

template <class Tile>
void multiply(const Rows & rows, int64_t n, const void * tokens, int64_t n_tokens, float * products, int64_t stride) {
    using Some = void (*)(const Tile &, int64_t, int64_t, const void *, int64_t, float *, int64_t, int64_t);
    static constexpr Some SOME[COLUMNS] = { multiply_some<Tile, 1>, multiply_some<Tile, 2>, multiply_some<Tile, 3>,
                                            multiply_some<Tile, 4>, multiply_some<Tile, 5>, multiply_some<Tile, 6>,
                                            multiply_some<Tile, 7>, multiply_some<Tile, 8> };
    // few tokens: in the order of memory; many: a chunk of all tokens stays in the L2
    const int64_t n_together = n_tokens <= FEW ? Tile::ROWS : std::max<int64_t>(rows.n, 1);
    Tile          tile;
    for (int64_t row = 0; n_tokens == 1 && row < rows.n; row += Tile::ROWS) {
        const Rows part{ rows.base + row * rows.stride, rows.stride, std::min(Tile::ROWS, rows.n - row) };
        multiply_one(part, n / BLOCK, Token(tokens, n), products + row, tile);
    }
    for (int64_t begin = 0; n_tokens > 1 && begin < rows.n; begin += n_together) {
        for (int64_t block = 0; block < n / BLOCK; block += CHUNK) {
            const int64_t n_blocks = std::min(CHUNK, n / BLOCK - block);
            for (int64_t row = begin; row < std::min(begin + n_together, rows.n); row += Tile::ROWS) {
                const Rows    part{ rows.base + row * rows.stride, rows.stride, std::min(Tile::ROWS, rows.n - row) };
                const bool    same_rows = n_tokens <= FEW && block + n_blocks < n / BLOCK;
                const int64_t ahead = same_rows ? n_blocks * BLOCK_BYTES
                                                : Tile::ROWS * rows.stride - (n_tokens <= FEW) * block * BLOCK_BYTES;
                lay_out(part, block, n_blocks, ahead, tile);
                for (int64_t t = 0; t < n_tokens; t += COLUMNS) {
                    const Some some = SOME[std::min<int64_t>(COLUMNS, n_tokens - t) - 1];
                    some(tile, block, n_blocks, static_cast<const uint8_t *>(tokens) + t * q8_0_token_bytes(n), n,
                         products + t * stride + row, stride, part.n);
                }
            }
        }
    }
}

AVX2 void pack(const float * numbers, int64_t n, int8_t * to, float * scales, int32_t * begin) {
    for (int64_t b = 0; b < n / BLOCK; ++b, numbers += BLOCK, to += BLOCK) {
        __m256 most = _mm256_setzero_ps(), parts[4];
        for (int i = 0; i < 4; ++i) {
            parts[i] = _mm256_loadu_ps(numbers + 8 * i);
            most     = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), parts[i]));
        }
        alignas(32) float greatest[8];
        _mm256_store_ps(greatest, most);
        const float amax    = *std::max_element(greatest, greatest + 8);
        const float inverse = amax != 0.0f ? 127.0f / amax : 0.0f;
        scales[b]           = _cvtsh_ss(_cvtss_sh(amax / 127.0f, 0)); // as exact as ggml's, no more
        __m256i whole[4];
        for (int i = 0; i < 4; ++i) {
            whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], _mm256_set1_ps(inverse))); // to the nearest, or even
        }
        const __m256i sums =
            _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
        alignas(32) uint32_t sum[8]; // what is not finite wraps around
        _mm256_store_si256(reinterpret_cast<__m256i *>(sum), sums);
        begin[b] = int32_t(-128u * std::accumulate(sum, sum + 8, 0u));
        // packing works within halves, so words are put into order afterwards
        const __m256i shorts_a = _mm256_packs_epi32(whole[0], whole[1]),
                      shorts_b = _mm256_packs_epi32(whole[2], whole[3]);
        const __m256i bytes    = _mm256_packs_epi16(shorts_a, shorts_b);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to),
                            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
}

enum class Kind { none, avx2, avx512 };

Kind find_kind() {
    __builtin_cpu_init();
    const bool avx2   = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); // these have F16C too
    const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return !avx2 ? Kind::none : avx512 ? Kind::avx512 : Kind::avx2;
}

Kind limited(Kind best, const char * name) {
    const auto is = [&](const char * wanted) { return name && std::strcmp(name, wanted) == 0; };
    return is("ggml") ? Kind::none : is("avx2") ? std::min(best, Kind::avx2) : best;
}

// The environment is read once: another thread may change it later.
std::atomic<Kind> & kind() {
    static std::atomic<Kind> chosen{ limited(find_kind(), std::getenv("TGR_PRODUCTS")) };
    return chosen;
}

} // namespace

bool has_q8_0_products() {
    return kind() != Kind::none;
}

void use_q8_0_products(const char * name) {
    kind() = limited(find_kind(), name);
}

int64_t q8_0_tile() {
    return kind() == Kind::avx512 ? Tile512::ROWS : Tile256::ROWS;
}

void q8_0_pack(const float * token, int64_t n, void * packed) {
    const Token to(packed, n);
    pack(token, n, const_cast<int8_t *>(to.numbers), const_cast<float *>(to.scales), const_cast<int32_t *>(to.begin));
}

void q8_0_multiply(const void * weights, int64_t n, int64_t first, int64_t last, const void * tokens, int64_t n_tokens,
                   float * products, int64_t product_stride) {
    const int64_t stride = n / BLOCK * BLOCK_BYTES;
    const Rows    rows{ static_cast<const uint8_t *>(weights) + first * stride, stride, last - first };
    (kind() == Kind::avx512 ? multiply<Tile512> : multiply<Tile256>)(rows, n, tokens, n_tokens, products + first,
                                                                     product_stride);
}

#else

bool has_q8_0_products() {
    return false;
}

void use_q8_0_products(const char *) {}

int64_t q8_0_tile() {
    return 1;
}

void q8_0_pack(const float *, int64_t, void *) {}

void q8_0_multiply(const void *, int64_t, int64_t, int64_t, const void *, int64_t, float *, int64_t) {}

#endif

size_t q8_0_token_bytes(int64_t n) {
    return size_t(n) + size_t(n / Q8_0_BLOCK) * (sizeof(float) + sizeof(int32_t));
}

} // namespace tgr
