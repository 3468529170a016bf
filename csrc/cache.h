// The cache allocator: which cells, sequences and injection rows of the model's cache belong to which session.
//
// In: numbers of cells and sequences, operations on sequences. Out: reservations, and cells for the tokens of a batch.
// llama.cpp's own cache is changed here only, together with these books. The allocator does not know jobs or waiting
// requests. Worker only.
#pragma once

#include "errors.h"
#include "graph.h"
#include "model.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tgr {

// One sequence and the cells that hold its tokens, as places in its reservation. A fork shares cells; their reference
// counts say how many a session really uses.
struct Sequence {
    std::vector<uint32_t> cells;        // of token i, which is at position i
    bool                  busy = false; // in a job that runs
};

// What one session holds.
struct Reservation {
    std::vector<uint32_t> cells; // of the cache, ascending
    uint32_t              n_seqs = 0;

    std::map<int32_t, Sequence> sequences;
    std::set<int32_t>           injections;

    // places in `cells`; the lowest free one is taken first, so that those in use are close together
    std::vector<uint32_t> refs; // up to the highest place in use
    std::set<uint32_t>    free_places;
    uint32_t              used     = 0;
    uint32_t              peak     = 0;
    size_t                promised = 0; // cells that running jobs have yet to take

    uint32_t take_cell() {
        const uint32_t place = free_places.empty() ? uint32_t(refs.size()) : *free_places.begin();
        if (free_places.empty()) {
            refs.push_back(0);
        } else {
            free_places.erase(free_places.begin());
        }
        refs[place] = 1;
        peak        = std::max(peak, ++used);
        return place;
    }

    void drop_cell(uint32_t place) {
        if (--refs[place] > 0) {
            return;
        }
        --used;
        free_places.insert(place);
        while (!refs.empty() && refs.back() == 0) {
            refs.pop_back();
            free_places.erase(uint32_t(refs.size()));
        }
    }

    // The part of the cache that the session's tokens attend to.
    graph_group group() const {
        const uint32_t span = cells.back() + 1 - cells.front();
        return { cells.front(), cells[refs.size() - 1] + 1,
                 span == cells.size() ? uint32_t(session_stride(span)) : span };
    }
};

class CacheAllocator {
public:
    explicit CacheAllocator(Model & model);

    const std::map<uint64_t, Reservation> & reservations() const { return reservations_; }
    uint32_t                                used() const; // cells

    // CapacityError for what this cache can never hold.
    void check(uint32_t n_cells, uint32_t n_seqs) const;

    // Enlarges the cache to n_cells if it may grow and nothing is reserved. False when it is too small then.
    bool grow(uint32_t n_cells);

    // Reserves cells and sequences under the id of a session. False when they are not free now. CapacityError when the
    // memory is not there.
    bool reserve(uint64_t session, uint32_t n_cells, uint32_t n_seqs);

    // Frees everything that the session holds.
    void release(uint64_t session);

    // Throws Error for a session that is closed, and for a sequence that it does not have.
    Reservation & of(uint64_t session);
    Sequence &    sequence(uint64_t session, int32_t sequence);

    int32_t add_sequence(uint64_t session);
    int32_t fork(uint64_t session, int32_t sequence);
    void    truncate(uint64_t session, int32_t sequence, uint32_t n_tokens);
    void    shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end); // removes [start, end)
    void    drop(uint64_t session, int32_t sequence);

    // Forgets the tokens of a sequence that a failed decode has added to llama.cpp's cache.
    void undo_decode(uint64_t session, int32_t sequence, const std::vector<uint32_t> & places);

    int32_t add_injection(uint64_t session, const std::vector<float> & vectors); // [n_layer][n_embd]
    void    drop_injection(uint64_t session, int32_t injection);

    // Whether moved tokens wait for apply_shift. It returns an error, and the cache is lost, when that failed.
    bool        shift_pending() const { return shift_pending_; }
    std::string apply_shift();

private:
    std::vector<uint32_t> find_cells(uint32_t n_cells) const;
    Sequence &            idle_sequence(uint64_t session, int32_t sequence, const char * doing);
    void                  reset();
    llama_memory_t        memory() const { return llama_get_memory(model_.context()); }

    Model &                         model_;
    std::map<uint64_t, Reservation> reservations_;
    std::vector<bool>               sequence_taken_, injection_taken_;
    bool                            shift_pending_ = false;
};

} // namespace tgr
