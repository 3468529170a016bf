// Remembered prefixes: texts whose cells stay in the cache after their sessions. The least recently used go first.
//
// In: tokens with their cells, norms and state. Out: the longest prefix of a prompt that is remembered. The store holds
// no sequence of llama.cpp: the keys and values stay where they are until the cells are reclaimed.
//
// The rounding of a product may depend on the number of rows in the batch. Then a reproducible engine reads a prompt in
// blocks of `Reading::block` tokens, each alone in its batch, and only whole blocks are remembered and reused. So the
// rest of the prompt is decoded in the same batches as in an engine that remembers nothing.
#pragma once

#include "base/cells.h"
#include "job/records.h"

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace tgr {

// Tokens that were decoded, from the first of a text.
struct DecodedText {
    std::vector<llama_token> tokens;
    std::string              digest; // digest of their control vector and their owner; empty = none
    CellList                 cells;  // a mere count where the model has no attention
    std::vector<float>       norms;  // [n][n_layer] residual norms of the first n tokens, negative = not measured

    // The first n tokens.
    DecodedText beginning(uint32_t n, uint32_t n_layer) const;
};

struct Prefix : DecodedText {
    std::vector<uint8_t> state; // state of the recurrent layers after all tokens; empty without such layers
};

// A prefix with its keys and values, as it is written to a file.
struct PrefixData {
    Prefix               prefix; // prefix, whose list of cells does not count
    std::vector<uint8_t> cells;
};

// The fewest tokens to share: sharing fewer costs more than it saves.
constexpr uint32_t least_shared = 16;

// Bound of the tokens of all prefixes together, as a multiple of the cells that they may keep.
constexpr uint64_t most_tokens = 16;

// Length of the common beginning of two texts, in tokens.
uint32_t n_common(const std::vector<llama_token> & a, const std::vector<llama_token> & b);

// The tokens of a prompt of n whose norms after the last layer are measured: every stride-th. A power of two, so that
// those of a longer prompt are among those of its beginning.
uint32_t norm_stride(size_t n);

// Leading tokens of the prompt that can be taken from a text. `whole`: all of it or none.
uint32_t n_usable(const Prompt & prompt, const DecodedText & text, uint32_t n_layer, bool whole);

class PrefixStore {
public:
    // `whole`: only a whole prefix can be used, because the model cannot roll back.
    PrefixStore(CellPool & pool, uint32_t most_cells, uint32_t n_layer, bool whole) :
        pool_(pool),
        most_cells_(most_cells),
        n_layer_(n_layer),
        whole_(whole) {}

    bool enabled() const { return most_cells_ > 0; }

    // Tokens of the longest prefix. It may be kept in addition to most_cells, since reading it again takes longest.
    uint32_t longest() const;

    // `state_cells`: the number of cells as which a state of recurrent layers counts.
    void remember(Prefix prefix, uint32_t state_cells);

    struct Match {
        std::shared_ptr<const Prefix> prefix;
        uint32_t                      n = 0; // leading tokens that can be used
    };

    // The longest one; none below least_shared tokens.
    Match find(const Prompt & prompt);

    // Drops the least recently used prefix that frees a cell. False when there is none.
    bool reclaim();

    // Drops the prefixes that keep this cell.
    void forget(uint32_t cell);

    void clear();

    // The cells have moved: what was in cell i is in place[i] of a pool that keeps none yet.
    void move(const std::vector<uint32_t> & place);

    const std::list<std::shared_ptr<Prefix>> & all() const { return prefixes_; } // latest first

private:
    using Place = std::list<std::shared_ptr<Prefix>>::iterator;

    void drop(Place prefix);

    CellPool & pool_;
    uint32_t   most_cells_, n_layer_;
    bool       whole_;
    uint32_t   state_cells_ = 0; // cells that the state of one prefix counts as
    uint64_t   n_tokens_    = 0; // tokens of all prefixes

    std::list<std::shared_ptr<Prefix>> prefixes_; // latest first
};

} // namespace tgr
