// Which operations the attention of a micro-batch takes.
//
// In: for every sequence its view and its tokens. Out: blocks, each of which is matrix products over the cells of one
// sequence of many tokens, and a tree for all others (tree_attention.h).
#pragma once

#include "tree_attention.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

// The tokens of one sequence, by ascending position.
struct reader_t {
    const std::vector<extent> * view;
    std::vector<seen_t>         tokens;
};

// The tokens of a sequence and spans of cells that hold all that they see, with others, which a mask hides.
struct block_t {
    std::vector<extent> spans;
    std::vector<seen_t> tokens;

    uint32_t n_cells() const;
};

struct plan_t {
    tree_t               tree;
    std::vector<block_t> blocks;
    bool                 direct = false; // the rows of the tree and then of the blocks are the tokens, in order

    bool same_shape(const plan_t & other) const;
};

constexpr size_t MAX_BLOCKS = 8;
constexpr size_t MAX_SPANS  = 4; // of a block

// The plan for a cache of n_cells, with blocks of at most `most_spans` spans.
plan_t plan_attention(const std::vector<reader_t> & readers, uint32_t n_cells, size_t most_spans);

} // namespace tgr
