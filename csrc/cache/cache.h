// The cache allocator: which cells, sequences and injection rows of the model's cache belong to which session, and
// which cells hold remembered prefixes.
//
// In: numbers of cells and sequences, prompts, operations on sequences. Out: reservations, and cells for the tokens of
// a batch. The allocator's state changes at once; the changes of llama.cpp's own memory are queued, and the worker
// applies them before the next decode (apply). So any thread that holds the engine's lock may call it during a decode,
// except where a comment says "worker". The allocator does not know jobs or waiting requests.
#pragma once

#include "base/cells.h"
#include "base/errors.h"
#include "cache/prefixes.h"
#include "graph/graph.h"
#include "graph/memory.h"
#include "model/model.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

// One text in the cache; token i is at position i. A fork shares cells. The digest is that of the first n_clean tokens.
struct Sequence : DecodedText {
    uint32_t                 n_clean = 0;     // tokens before the first that a search's injection steered
    uint32_t                 n_whole = 0;     // leading tokens that were read in whole blocks (Reading)
    bool                     busy    = false; // used by a job that runs
    bool                     lost    = false; // damaged by a failed decode that cannot be rolled back
    std::vector<llama_token> again;           // all its tokens, while tokens without cells are decoded again

    uint32_t size() const { return uint32_t(tokens.size()); }
    uint32_t n_again() const { return again.empty() ? 0 : uint32_t(again.size()) - size(); }
    uint32_t length() const { return size() + n_again(); }
};

// Effect of an injection on remembered prefixes.
struct Injected {
    bool        clean = true; // no injection, or a control vector
    std::string digest;       // digest of the control vector and the owner
};

// Cells, sequences and injections of one session.
struct Reservation {
    std::vector<uint32_t>         cells; // indices in the cache, ascending
    uint32_t                      n_seqs = 0;
    std::string                   digest; // digest of tokens that are read without an injection
    std::map<int32_t, Sequence>   sequences;
    std::map<int32_t, Injected>   injections;
    std::shared_ptr<const Prefix> base;          // the prefix for which it reserved no cells of its own
    CellList                      base_cells;    // cells of the base, in use as long as the session is open
    uint32_t                      n_shared  = 0; // cells of others that it uses
    uint32_t                      n_used    = 0; // own cells in use
    uint32_t                      n_most    = 0; // cells in use at a time, with the shared ones
    uint32_t                      n_planned = 0; // own cells that running jobs have yet to use

    void note_most() { n_most = std::max(n_most, n_used + n_shared); }
};

class CacheAllocator {
public:
    explicit CacheAllocator(Model & model);

    const std::map<uint64_t, Reservation> & reservations() const { return reservations_; }
    const CellPool &                        pool() const { return pool_; }
    bool                                    rolls_back() const { return !kind_.recurrent; }
    Reading                                 reading() const { return reading_; }
    PrefixStore &                           prefixes() { return prefixes_; }

    // Throws CapacityError for more than this cache can ever hold.
    void check(uint32_t n_cells, uint32_t n_seqs) const;

    // Worker. Enlarges the cache to n_cells if it may grow; remembered prefixes stay if the memory allows. While a
    // session is open, it grows only if the owner has set a bound, and never in a reproducible engine. False when the
    // cache is still smaller than n_cells.
    bool grow(uint32_t n_cells);

    // Worker. Shrinks a cache that may grow to n_cells, or to the size of the remembered prefixes, which move to its
    // first cells. Nothing changes while a session is open, or where it would save less than a quarter.
    void shrink(uint32_t n_cells);

    // Worker. Sets the scales of the adapters and forgets all prefixes. Throws Error, and changes nothing, while a
    // session is open.
    void set_scales(const std::vector<float> & scales);

    // Worker. Reserves sequences, and cells: n_cells less those of the longest known prefix of the prompt, which is
    // pinned. Drops remembered prefixes for it. False when the cells are not free now. CapacityError when the memory is
    // not there.
    bool reserve(uint64_t session, uint32_t n_cells, uint32_t n_seqs, const Prompt & prompt);

    // Frees everything that the session holds.
    void release(uint64_t session);

    // Worker. Reserves n_cells more, behind the cell `last` if they are free there. False when not enough are free now.
    bool extend(uint64_t session, uint32_t n_cells, uint32_t last);

    // Worker. Takes its cells from a session whose jobs have none planned. Its sequences know their tokens.
    void preempt(uint64_t session);

    // Worker. Reserves cells for what its sequences have to read again, and n_cells; gives them what the cache still
    // has of it. False when the cells are not free now.
    bool resume(uint64_t session, uint32_t n_cells);

    // Throws Error for a session that is closed, and for a sequence that it does not have.
    Reservation & of(uint64_t session);
    Sequence &    sequence(uint64_t session, int32_t sequence);

    int32_t add_sequence(uint64_t session);
    int32_t fork(uint64_t session, int32_t sequence);
    void    truncate(uint64_t session, int32_t sequence, uint32_t n_tokens);
    void    shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end); // removes [start, end)
    void    drop(uint64_t session, int32_t sequence);

    // --- prefixes ---

    // Extends a sequence that is empty, or holds the beginning of the prompt, by the tokens that a remembered prefix or
    // another sequence has, if that is at least least_shared tokens more. Returns its length then. Where prompts are
    // read in blocks: whole ones, and an empty sequence only.
    uint32_t reuse(uint64_t session, int32_t sequence, const Prompt & prompt);

    // Notes that one more whole block of the sequence was read, alone in its batch.
    void note_block(uint64_t session, int32_t sequence);

    // Takes all tokens from a sequence again.
    void empty(uint64_t session, int32_t sequence);

    // Keeps the leading tokens of a sequence that no search steered, as a prefix. Worker, where there is a recurrent
    // state to read.
    void remember(uint64_t session, int32_t sequence);

    // --- tokens ---

    // Cells of the session for n tokens of each of these sequences: behind its last cell if they are free there, else a
    // run with as much space behind it as there is. The caller has checked that there are enough.
    std::vector<std::vector<uint32_t>> plan(uint64_t session, const std::vector<int32_t> & sequences,
                                            const std::vector<uint32_t> & n_tokens);
    void                               unplan(uint64_t session, const uint32_t * cells, size_t n);

    // Exchanges cells of the session that only other sessions use for unused cells of these sessions, so that the
    // session has all its reserved cells again.
    void recall(uint64_t session);

    // Appends a decoded token, in a planned cell, to a sequence.
    void append(uint64_t session, Sequence & sequence, llama_token token, uint32_t cell, const Injected & injected);

    // Worker. Removes the tokens that a failed decode has added to llama.cpp's memory behind those of a sequence.
    void undo_decode(uint64_t session, int32_t sequence);

    // --- injections ---

    int32_t  add_injection(uint64_t session, std::vector<float> vectors, Injected injected); // [n_layer][n_embd]
    void     drop_injection(uint64_t session, int32_t injection);
    Injected injected(uint64_t session, int32_t injection); // row 0 too

    // Worker. Applies what is queued to llama.cpp's memory.
    void apply();

    // Returns why apply() failed since the last call; empty = it did not. After a failure no session's cells can be
    // trusted.
    std::string take_fault() { return std::exchange(fault_, ""); }

    // Worker. The longest remembered prefix of the prompt with its keys and values; without tokens where there is none.
    PrefixData read_prefix(const Prompt & prompt);

    // Worker. Remembers a prefix. False when there are no cells for it. Throws Error for data that do not fit the
    // model.
    bool add_prefix(PrefixData data);

private:
    // Leading tokens of a prompt that are in the cache.
    struct Source : PrefixStore::Match {
        int32_t sequence = -1; // sequence that still has them, -1 = none
    };

    void                  remember(Prefix prefix);
    void                  own(Reservation & reservation, uint64_t session, const std::vector<uint32_t> & cells);
    Source                longest(const Prompt & prompt, const Reservation * own, int32_t except);
    uint32_t              n_lasting(const Sequence & sequence) const;
    void                  take(uint64_t session, int32_t sequence, const Source & source);
    Sequence &            idle_sequence(uint64_t session, int32_t sequence, const char * doing);
    void                  forget_behind(Sequence & sequence, uint32_t n_tokens) const;
    std::vector<uint32_t> free_cells(uint32_t n_cells, const CellList & behind);
    using IsFree = bool (CellPool::Cell::*)() const;
    std::vector<uint32_t> find_cells(uint32_t n_cells, const CellList & behind, IsFree is_free,
                                     bool * in_one_piece) const;
    uint32_t              end_of_use() const;
    void                  use(uint32_t cell);
    void                  use(const CellList & cells);
    void                  unuse(const CellList & cells);
    bool grows_in_use() const { return model_.most_cells < uint32_t(INT32_MAX) && !model_.params().reproducible; }
    std::vector<bool> used_by(const Reservation & reservation) const;
    void              reset();
    void              later(std::function<void(llama_context *)> operation) { queue_.push_back(std::move(operation)); }

    Model &                                           model_;
    const memory_kind                                 kind_;
    const Reading                                     reading_;
    CellPool                                          pool_;
    PrefixStore                                       prefixes_;
    std::map<uint64_t, Reservation>                   reservations_;
    std::vector<bool>                                 sequence_taken_, injection_taken_;
    std::vector<std::function<void(llama_context *)>> queue_;
    bool                                              shift_pending_ = false;
    uint32_t    least_refused_ = UINT32_MAX; // smallest size that growing was refused, since the last release
    std::string fault_;
};

} // namespace tgr
