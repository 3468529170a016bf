// What the files of instructions (avx2.cpp, avx512.cpp) give to products.cpp.
#pragma once

#include "products.h"

namespace tgr {

// Rows of weights as a file holds them.
struct Rows {
    const uint8_t * base;
    int64_t         stride; // in bytes
    int64_t         n;
};

// A packed token: its numbers, and for each block of 32 of them the scale, the sum of the numbers times the scale, the
// sum of the numbers with its sign turned, and that of either half.
struct Token {
    const int8_t *  numbers;
    const float *   scales;
    const float *   sums;
    const int32_t * minus;
    const int32_t * minus_half;

    static constexpr int64_t BLOCK_BYTES = TOKEN_BLOCK + 5 * 4;

    Token() = default;

    // inline: a copy for one set of instructions must not serve the other
    __attribute__((always_inline)) Token(const void * packed, int64_t n) {
        const int64_t n_blocks = n / TOKEN_BLOCK;
        numbers                = static_cast<const int8_t *>(packed);
        scales                 = reinterpret_cast<const float *>(numbers + n);
        sums                   = scales + n_blocks;
        minus                  = reinterpret_cast<const int32_t *>(sums + n_blocks);
        minus_half             = minus + n_blocks;
    }
};

// One of these for each set of instructions and format; null where there is none.
using Multiply = void (*)(const Rows & rows, int64_t n, const void * tokens, int64_t n_tokens, float * products,
                          int64_t product_stride);

namespace avx2 {

constexpr int64_t ROWS = 8;

Multiply multiply(ggml_type type);
void     pack(const float * token, int64_t n, void * packed);

} // namespace avx2

namespace avx512 {

constexpr int64_t ROWS = 16;

Multiply multiply(ggml_type type);

} // namespace avx512

} // namespace tgr
