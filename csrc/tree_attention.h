// Attention of sequences that share cells, as one operation: each stretch of cells is read once for all rows that look
// at it, wherever it lies.
//
// In: for every sequence its cells, oldest first, and its tokens. Reads tensors of ggml as memory with
// strides, and knows neither llama.cpp nor graphs. Sums are F32, whatever the type of the cache.
#pragma once

#include "extent.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct ggml_tensor;

namespace tgr {

// A token and the positions that it sees: [first, end).
struct seen_t {
    int32_t  token; // its place in the micro-batch
    uint32_t first, end;
};

// Sequences and the stretches of cells that they look at. A column of a sequence is a position less its `first`.
struct tree_t {
    struct sequence_t {
        uint32_t first_row, n_rows;
        uint32_t n_columns;
    };
    struct use_t {
        uint32_t sequence, column; // of the first cell
    };
    struct stretch_t {
        extent   cells;
        uint32_t first_use, n_uses;
    };

    std::vector<seen_t>     rows; // first and end are columns
    std::vector<sequence_t> sequences;
    std::vector<stretch_t>  stretches;
    std::vector<use_t>      uses; // of a stretch: ascending by sequence

    // A sequence with the cells of the positions from `first` on, and its tokens.
    void add(const std::vector<extent> & cells, uint32_t first, const std::vector<seen_t> & tokens);
    void finish(); // after the last one: finds the stretches

private:
    std::vector<std::vector<extent>> cells_; // of each sequence, until `finish`
};

// score -> cap * tanh(score * factor / cap) where there is a cap; the softmax is of score * scale. Its results are
// rounded to the type of the values where a product of ggml would do so.
struct tree_scores_t {
    float scale = 1.0f, factor = 1.0f, cap = 0.0f;
    bool  rounds = true;
};

// Rows of the tree [n_heads][d_v] in order, from q [d_k, n_heads, tokens] F32, keys [d_k, n_kv_heads, cells], values
// [d_v, n_kv_heads, cells] or transposed [cells, n_kv_heads, d_v], and sinks [n_heads] F32 or null. One of n_threads
// calls.
void attend_tree(float * out, const tree_t & tree, const tree_scores_t & scores, const ggml_tensor * q,
                 const ggml_tensor * k, const ggml_tensor * v, const ggml_tensor * sinks, int thread, int n_threads);

} // namespace tgr
