// The cells of the KV cache: lists of cells, and which session, sequences and prefixes hold each cell.
//
// A cell holds the keys and values of one token in all layers. A session owns the cells that it reserved; sequences use
// cells, remembered prefixes keep them, and both may share them. A cell is free when nobody owns, uses or keeps it.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace tgr {

// Consecutive cells.
struct extent {
    uint32_t begin = 0, n = 0;
};

inline uint64_t n_cells_of(const std::vector<extent> & runs) {
    return std::accumulate(runs.begin(), runs.end(), uint64_t(0),
                           [](uint64_t sum, const extent & run) { return sum + run.n; });
}

// The cells of consecutive tokens, as extents: token i is in the i-th cell.
class CellList {
public:
    uint32_t                    size() const { return size_; }
    const std::vector<extent> & runs() const { return runs_; }
    uint32_t last() const { return runs_.back().begin + runs_.back().n - 1; } // requires a list that is not empty

    void push(uint32_t cell) {
        if (!runs_.empty() && last() + 1 == cell) {
            ++runs_.back().n;
        } else {
            runs_.push_back({ cell, 1 });
        }
        ++size_;
    }

    // Calls visit(cell) for the cells of the tokens [first, last).
    template <class F> void each(uint32_t first, uint32_t last, F && visit) const {
        uint32_t token = 0;
        for (const extent & run : runs_) {
            for (uint32_t i = first > token ? first - token : 0; i < run.n && token + i < last; ++i) {
                visit(run.begin + i);
            }
            token += run.n;
        }
    }
    template <class F> void each(F && visit) const { each(0, size_, visit); }

    // Cells of the tokens [first, last).
    CellList part(uint32_t first, uint32_t last) const {
        CellList some;
        each(first, last, [&](uint32_t cell) { some.push(cell); });
        return some;
    }

    void append(const CellList & more) {
        more.each([&](uint32_t cell) { push(cell); });
    }

private:
    std::vector<extent> runs_;
    uint32_t            size_ = 0;
};

// Owner and number of users of every cell.
class CellPool {
public:
    struct Cell {
        uint64_t owner   = 0;     // session, 0 = none
        uint32_t uses    = 0;     // number of sequences, and of sessions that pinned a prefix
        uint32_t keeps   = 0;     // number of remembered prefixes
        bool     planned = false; // reserved for a token of a running task

        bool free() const { return owner == 0 && uses == 0 && keeps == 0; }
        bool idle() const { return uses == 0 && !planned; } // free for its owner
        bool reclaimable() const { return owner == 0 && uses == 0 && keeps > 0; }
        bool obtainable() const { return owner == 0 && uses == 0; } // free, or free once prefixes are dropped
    };

    void resize(uint32_t n_cells) { cells_.resize(n_cells); }

    uint32_t     size() const { return uint32_t(cells_.size()); }
    const Cell & operator[](uint32_t cell) const { return cells_[cell]; }
    uint32_t     n_used() const { return n_used_; }
    uint32_t     n_kept() const { return n_kept_; }

    void own(uint32_t cell, uint64_t session) { cells_[cell].owner = session; }
    void plan(uint32_t cell, bool planned) { cells_[cell].planned = planned; }
    void use(uint32_t cell) { n_used_ += cells_[cell].uses++ == 0; }
    bool unuse(uint32_t cell) { // true when it was the last use
        const bool last = --cells_[cell].uses == 0;
        n_used_ -= last;
        return last;
    }
    void keep(uint32_t cell) { n_kept_ += cells_[cell].keeps++ == 0; }
    void unkeep(uint32_t cell) { n_kept_ -= --cells_[cell].keeps == 0; }

private:
    std::vector<Cell> cells_;
    uint32_t          n_used_ = 0, n_kept_ = 0;
};

} // namespace tgr
