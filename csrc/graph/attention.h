// Attention of sequences that share cells, as one operation: a cell is read once for all rows that attend to it,
// wherever it lies in the cache.
//
// In: for every sequence its cells, by position, and its tokens. Reads tensors of ggml as memory with strides, and
// knows neither llama.cpp nor graphs. Sums are F32, whatever the type of the cache, and their order depends on the
// positions alone. So the result of a token is the same bit for bit in every batch, wherever its cells lie.
#pragma once

#include "base/cells.h"

#include <cstdint>
#include <vector>

struct ggml_tensor;

namespace tgr {

// A token and the positions that it sees: [first, end).
struct seen_t {
    int32_t  token; // index in the micro-batch
    uint32_t first, end;
};

// Cells that each sequence looks at, in blocks of consecutive positions. Sequences with the same cells in a block
// share it.
struct attention_plan_t {
    static constexpr uint32_t BLOCK = 256; // positions

    struct sequence_t {
        uint32_t first_row, n_rows;
        uint32_t begin, n; // positions, from the first one of its first block to the last one that a token sees
    };
    struct block_t {
        uint32_t begin, n; // positions
        uint32_t first_extent, n_extents;
        uint32_t first_use, n_uses;
    };

    std::vector<seen_t>     rows; // rows of a sequence: by ascending `end`
    std::vector<sequence_t> sequences;
    std::vector<block_t>    blocks; // sorted by ascending `begin`
    std::vector<extent>     extents;
    std::vector<uint32_t>   uses; // indices of sequences

    // A sequence with the cells of all its positions, and its tokens by ascending position.
    void add(const std::vector<extent> & view, const std::vector<seen_t> & tokens);
    void finish(); // finds who shares a block; called after the last add()
};

// score -> cap * tanh(score * factor / cap) where there is a cap; the softmax is of score * scale. Its results are
// rounded to the type of the values where a product of ggml would do so.
struct attention_scores_t {
    float scale = 1.0f, factor = 1.0f, cap = 0.0f;
    bool  rounds = true;
};

// out [d_v, n_heads, tokens], from q [d_k, n_heads, tokens] F32, keys [d_k, n_kv_heads, cells], values [d_v,
// n_kv_heads, cells] or transposed [cells, n_kv_heads, d_v], and sinks [n_heads] F32 or null. One of n_threads calls.
void attend(float * out, const attention_plan_t & plan, const attention_scores_t & scores, const ggml_tensor * q,
            const ggml_tensor * k, const ggml_tensor * v, const ggml_tensor * sinks, int thread, int n_threads);

} // namespace tgr
