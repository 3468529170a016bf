// Products of quantized weights with tokens, for x86 processors with AVX2 and ARM processors with dot products.
//
// In: rows of weights as a file holds them, tokens as floats. Out: their products. A token is rounded to eight bits, 32
// numbers with one scale, as ggml does for Q8_0; a block of 32 numbers is multiplied in whole numbers and scaled. The
// blocks are added in the order of the row, so a product has the same bits whatever is multiplied with it. ggml reads
// the weights again for every few tokens; here a tile of rows is laid out once for all of them. Nothing here knows
// llama.cpp or threads.
//
// formats.h   how a file lays out its numbers and scales, and how a tile has them
// multiply.h  a tile times tokens, and all tiles of a part of the rows
// vectors.h, vectors_256.h, add_products.h  what several instructions have in common
// avx2.cpp, avxvnni.cpp, avx512.cpp, neon.cpp  the instructions that these are written with, and an instance of them
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>

namespace tgr {

// Whether this processor has the instructions, and weights of this type a format here. The environment variable
// TGR_PRODUCTS turns all of them off ("ggml"), or names the best to be used: "avxvnni", "avx2"; it is read once.
bool has_products(ggml_type type);

// The instructions that are used: "avx512", "avxvnni", "avx2" or "neon"; "ggml" where its products are.
const char * products_name();

// Acts as if the variable had this value, "best" = none; not while anything is multiplied. For tests.
void use_products(const char * name);

// Numbers of a token that have a scale in common; a token's length is a multiple of it.
constexpr int64_t TOKEN_BLOCK = 32;

// Bytes of a packed token of n numbers.
size_t packed_token_bytes(int64_t n);

// Rounds a token of n numbers into packed_token_bytes(n) bytes, which are aligned to 4.
void pack_token(const float * token, int64_t n, void * packed);

// products[t * product_stride + r] for the rows [first, last) of weights of n numbers each and for all tokens, whose
// packed bytes follow each other.
void multiply_rows(ggml_type type, const void * weights, int64_t n, int64_t first, int64_t last, const void * tokens,
                   int64_t n_tokens, float * products, int64_t product_stride);

// Rows of a group. The words of its rows are interleaved, in the order in which they are multiplied: so memory is read
// in one run, and nothing is put side by side again for every token.
constexpr int64_t GROUP_ROWS = 16;

// Interleaves the rows [first, last), which are whole groups, of weights of n numbers each. A group begins
// where its first row does in the file, and has as many bytes.
void interleave_rows(ggml_type type, const void * weights, int64_t n, int64_t first, int64_t last, void * interleaved);

// multiply_rows for rows that are whole groups and interleaved.
void multiply_interleaved_rows(ggml_type type, const void * interleaved, int64_t n, int64_t first, int64_t last,
                               const void * tokens, int64_t n_tokens, float * products, int64_t product_stride);

// Rows that are laid out together for so many tokens: parts of the work should begin at multiples of it.
int64_t rows_together(int64_t n_tokens);

} // namespace tgr
