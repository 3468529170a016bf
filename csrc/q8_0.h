// Products of Q8_0 weights with tokens, for x86 processors with AVX2 or AVX-512 VNNI.
//
// In: rows of weights as a file holds them, tokens as floats. Out: their products. A block of 32 numbers is multiplied
// in whole numbers and scaled, as ggml does, which quantizes tokens in the same way; only the order in which the blocks
// are added differs. It is the order of the row, so a product has the same bits whatever is multiplied beside it. ggml
// reads the weights anew for every few tokens; here a tile of rows is laid out once for all of them. Nothing here knows
// llama.cpp or threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tgr {

// Whether this processor has the instructions. The environment variable TGR_PRODUCTS turns it off ("ggml") or keeps it
// to AVX2 ("avx2"); it is read once.
bool has_q8_0_products();

// As if the variable had this value, "best" = none; not while anything is multiplied. For tests.
void use_q8_0_products(const char * name);

// Numbers of a row; a multiple of 32.
constexpr int64_t Q8_0_BLOCK = 32;

// Bytes of a packed token of n numbers.
size_t q8_0_token_bytes(int64_t n);

// Quantizes a token of n numbers into q8_0_token_bytes(n) bytes, which are aligned to 4.
void q8_0_pack(const float * token, int64_t n, void * packed);

// products[t * product_stride + r] for the rows [first, last) of weights of n numbers each and for all tokens, whose
// packed bytes follow each other.
void q8_0_multiply(const void * weights, int64_t n, int64_t first, int64_t last, const void * tokens, int64_t n_tokens,
                   float * products, int64_t product_stride);

// Rows that are laid out together: parts of the work should begin at multiples of it.
int64_t q8_0_tile();

} // namespace tgr
