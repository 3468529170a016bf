// Which cells the tokens of a micro-batch look at, as a few operations on spans of cells.
//
// In: for every sequence of the micro-batch its view and its tokens. Out: blocks, each of which is one attention
// operation. Knows neither llama.cpp nor ggml. What a row of a block may not see, its mask hides
// (session_attention.cpp); a plan promises only that every row finds each cell that it sees in some span of its block.
#pragma once

#include "graph.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

// The tokens of one sequence. They see cells of the positions [first, end) of their view.
struct reader_t {
    const std::vector<extent> * view;
    uint32_t                    first, end;
    std::vector<int32_t>        tokens; // places in the micro-batch
};

// Rows [n_spans][n_rows]. All of them look at the shared spans, those of span i also at `own`, moved by i strides.
struct block_t {
    std::vector<extent>  shared;
    extent               own;
    uint32_t             stride = 0, n_spans = 1, n_rows = 0;
    uint32_t             n_used = 0; // cells of `own` that are not padding
    std::vector<int32_t> tokens;     // of every row the place in the micro-batch, -1 = padding

    uint32_t n_cells() const; // that a row looks at
    uint64_t cost() const;    // in cells that a token looks at
    bool     same_shape(const block_t & other) const;
};

struct plan_t {
    std::vector<block_t> blocks;
    bool                 direct = false; // their rows are the tokens of the micro-batch, in order

    uint64_t cost() const;
    bool     same_shape(const plan_t & other) const;
};

constexpr size_t MAX_BLOCKS       = 8; // more are joined: every layer has all operations of all blocks
constexpr size_t MAX_SHARED       = 3; // shared spans of a block
constexpr size_t MAX_SHARED_TOTAL = 8; // … of a plan

// The plan for a cache of n_cells. With most_shared = 0 every block is one span for each sequence, over all that lies
// between its cells.
plan_t plan_attention(const std::vector<reader_t> & readers, uint32_t n_cells, size_t most_shared);

} // namespace tgr
