// Interface of the kernel files, one for each instruction set (avx2.cpp, avx512.cpp, …). products.cpp chooses among
// them.
#pragma once

#include "quantized/products.h"

namespace tgr {

// Rows of weights, as a file holds them or interleaved. Of interleaved ones the first begins a group, the last ends
// one.
struct Rows {
    const uint8_t * base;
    int64_t         stride; // bytes of a row
    int64_t         n;
    bool            interleaved;
};

// A block of a packed token: 32 numbers, their scale, the sum of the numbers times the scale, the sum of the numbers
// with its sign turned, that of either half, and of a half those of the numbers 4i and 4i + 1, and of 4i + 2 and 4i
// + 3. Side by side: a kernel has a register for the place of each token, not six.
struct TokenBlock {
    int8_t  numbers[TOKEN_BLOCK];
    float   scale;
    float   sum;
    int32_t minus;
    int32_t minus_half[2];
    int16_t minus_pairs[2][2];
};

static_assert(alignof(TokenBlock) == 4);

// The kernels of an instruction set for a format; null where it has none.
struct Products {
    void (*multiply)(const Rows & rows, int64_t n, const TokenBlock * tokens, int64_t n_tokens, float * products,
                     int64_t product_stride)                                = nullptr;
    void (*interleave)(const Rows & rows, int64_t n, uint8_t * interleaved) = nullptr;
};

// Of each set of instructions: the rows of a tile, the tiles that are multiplied together with many tokens, and how a
// token is packed.
namespace avx2 {

constexpr int64_t ROWS  = 8;
constexpr int     TILES = 2;

Products products(ggml_type type);
void     pack(const float * token, int64_t n, TokenBlock * packed);

} // namespace avx2

namespace avxvnni {

constexpr int64_t ROWS  = 8;
constexpr int     TILES = 1;

Products products(ggml_type type);

} // namespace avxvnni

namespace avx512 {

constexpr int64_t ROWS       = 16;
constexpr int     TILES      = 2;
constexpr int     FEW_TOKENS = 8; // most tokens with which a tile is multiplied alone

Products products(ggml_type type);

} // namespace avx512

namespace neon {

constexpr int64_t ROWS  = 4;
constexpr int     TILES = 2;

Products products(ggml_type type);
void     pack(const float * token, int64_t n, TokenBlock * packed);

} // namespace neon

} // namespace tgr
