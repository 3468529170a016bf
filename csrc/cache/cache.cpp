// Reservations, sequences and injections. Which cells they get, and what is reused, is in placement.cpp and reuse.cpp.

#include "cache/cache.h"

#include <utility>

namespace tgr {

CacheAllocator::CacheAllocator(Model & model) :
    model_(model),
    kind_(memory_of(model.context())),
    reading_(model.reading()),
    prefixes_(pool_, model.params().prefix_cells, uint32_t(model.info().n_layer), kind_.recurrent) {
    reset();
}

void CacheAllocator::reset() {
    const uint32_t n_seq_max = model_.params().n_seq_max;
    pool_.resize(model_.n_ctx());
    sequence_taken_.assign(n_seq_max, false);
    injection_taken_.assign(n_seq_max + 1, false); // row 0 means no injection
    shift_pending_ = false;
    queue_.clear();
}

//
// reservations
//

void CacheAllocator::check(uint32_t n_cells, uint32_t n_seqs) const {
    const EngineParams & params      = model_.params();
    const int32_t        n_ctx_train = model_.info().n_ctx_train;
    if (n_seqs > params.n_seq_max) {
        throw CapacityError("needs ", n_seqs, " sequences at a time, but the engine holds ", params.n_seq_max,
                            "; raise n_seq_max or lower n_candidates or n_mc");
    }
    const uint64_t most = uint64_t(params.n_seq_max) * std::max(n_ctx_train, 1);
    if (n_cells > most) {
        throw CapacityError("needs ", n_cells, " cache cells, but ", params.n_seq_max, " sequences of the ",
                            n_ctx_train, " tokens that the model was trained for take ", most, " at most");
    }
    if (params.n_ctx != 0 && n_cells > model_.n_ctx()) {
        throw CapacityError("needs ", n_cells, " cache cells, but n_ctx is ", model_.n_ctx(),
                            "; raise n_ctx, or shorten the query, chunk_len or rollout_len");
    }
    model_.check_memory(n_cells);
}

bool CacheAllocator::grow(uint32_t n_cells) {
    if (model_.params().n_ctx != 0 || !model_.context()) {
        return false;
    }
    apply();
    if (!reservations_.empty()) {
        const bool may_grow = grows_in_use() && fault_.empty() && n_cells < least_refused_;
        if (!may_grow || !model_.resize(n_cells, /*contents =*/true)) {
            least_refused_ = std::min(least_refused_, may_grow ? n_cells : UINT32_MAX);
            return false;
        }
        pool_.resize(model_.n_ctx());
        return true;
    }
    const bool keep  = pool_.n_kept() > 0 || pool_.n_used() > 0; // in use: a prefix that a request has pinned
    const bool grown = model_.resize(n_cells, keep);
    reset();
    return grown;
}

void CacheAllocator::shrink(uint32_t n_cells) {
    if (!reservations_.empty() || pool_.n_used() > 0 || model_.params().n_ctx != 0 || !model_.context()) {
        return;
    }
    const uint64_t size = std::max(n_cells, pool_.n_kept());
    if (size + size / 3 > model_.n_ctx()) {
        return;
    }
    apply();
    std::vector<uint32_t> place(pool_.size());
    CellList              kept;
    for (uint32_t cell = 0; cell < pool_.size(); ++cell) {
        if (pool_[cell].keeps > 0) {
            place[cell] = kept.size();
            kept.push(cell);
        }
    }
    if (!fault_.empty() || !model_.shrink(uint32_t(size), kept.runs())) {
        return;
    }
    pool_ = CellPool();
    reset();
    prefixes_.move(place);
}

void CacheAllocator::set_scales(const std::vector<float> & scales) {
    if (!reservations_.empty() || pool_.n_used() > 0) {
        throw Error("the scales of adapters cannot change while ", reservations_.size(),
                    " sessions are open; close them first");
    }
    apply();
    model_.set_scales(scales);
    prefixes_.clear();
}

bool CacheAllocator::reserve(uint64_t session, uint32_t n_cells, uint32_t n_seqs, const Prompt & prompt) {
    uint64_t seqs = n_seqs;
    for (const auto & [id, reservation] : reservations_) {
        seqs += reservation.n_seqs;
    }
    if (seqs > model_.params().n_seq_max) {
        return false;
    }
    Reservation made;
    Source      known = longest(prompt, nullptr, -1);
    if (reading_.block > 0 && known.n > 0 &&
        known.n == prompt.tokens.size()) { // the last token is decoded, in its block
        known.n = reading_.whole(known.n - 1);
    }
    if (known.sequence >= 0) { // its state is there only as long as the sequence; it is copied
        known = {};
    }
    made.n_seqs = n_seqs;
    made.digest = prompt.digest;
    if (known.n > 0) { // in use from now on, so that nothing below reclaims it
        made.base       = known.prefix;
        made.base_cells = known.prefix->cells.part(0, known.n);
        made.n_shared   = known.n;
        use(made.base_cells);
    }
    // cells of another session that is open may have to be exchanged for own ones (recall)
    uint32_t own = n_cells;
    made.base_cells.each([&](uint32_t cell) { own -= own > 0 && pool_[cell].owner == 0; });
    made.cells = free_cells(own, made.base_cells);
    if (made.cells.size() < own || !model_.context()) {
        unuse(made.base_cells);
        if (reservations_.empty() && made.base) { // a cache that is large enough leaves no room for the old one
            prefixes_.clear();
            return reserve(session, n_cells, n_seqs, prompt);
        }
        if (reservations_.empty()) {
            throw CapacityError("needs a cache of ", n_cells,
                                " cells, but there is not enough memory for it; "
                                "shorten the query, chunk_len or rollout_len");
        }
        return false;
    }
    for (const uint32_t cell : made.cells) {
        pool_.own(cell, session);
    }
    reservations_.emplace(session, std::move(made));
    return true;
}

void CacheAllocator::own(Reservation & reservation, uint64_t session, const std::vector<uint32_t> & cells) {
    for (const uint32_t cell : cells) {
        pool_.own(cell, session);
    }
    reservation.cells.insert(reservation.cells.end(), cells.begin(), cells.end());
    std::sort(reservation.cells.begin(), reservation.cells.end());
}

bool CacheAllocator::extend(uint64_t session, uint32_t n_cells, uint32_t last) {
    CellList behind;
    behind.push(last);
    const auto cells = free_cells(n_cells, behind);
    if (cells.size() < n_cells) {
        return false;
    }
    own(of(session), session, cells);
    return true;
}

void CacheAllocator::preempt(uint64_t session) {
    Reservation & reservation = of(session);
    for (auto & [id, sequence] : reservation.sequences) {
        remember(session, id);
        Sequence emptied;
        emptied.again  = sequence.again.empty() ? sequence.tokens : sequence.again;
        emptied.digest = sequence.digest;
        emptied.busy   = sequence.busy;
        unuse(sequence.cells);
        sequence = std::move(emptied);
        later([id = id](llama_context * context) { llama_memory_seq_rm(llama_get_memory(context), id, -1, -1); });
    }
    unuse(std::exchange(reservation.base_cells, {}));
    reservation.base.reset();
    for (const uint32_t cell : std::exchange(reservation.cells, {})) {
        pool_.own(cell, 0);
    }
    reservation.n_shared = reservation.n_used = 0;
    least_refused_                            = UINT32_MAX;
}

bool CacheAllocator::resume(uint64_t session, uint32_t n_cells) {
    Reservation & reservation = of(session);
    for (const auto & [id, sequence] : reservation.sequences) {
        n_cells += sequence.n_again();
    }
    const auto cells = free_cells(n_cells, {});
    if (cells.size() < n_cells) {
        return false;
    }
    own(reservation, session, cells);
    for (auto & [id, sequence] : reservation.sequences) {
        if (sequence.size() == 0 &&
            reuse(session, id, { sequence.again, sequence.digest, 0 }) == sequence.again.size()) {
            sequence.again.clear();
        }
    }
    return true;
}

void CacheAllocator::release(uint64_t session) {
    Reservation & reservation = of(session);
    while (!reservation.sequences.empty()) {
        drop(session, reservation.sequences.begin()->first);
    }
    for (const auto & [row, injected] : reservation.injections) {
        injection_taken_[row] = false;
    }
    unuse(reservation.base_cells);
    for (const uint32_t cell : reservation.cells) {
        pool_.own(cell, 0);
        pool_.plan(cell, false);
    }
    reservations_.erase(session);
    least_refused_ = UINT32_MAX;
}

Reservation & CacheAllocator::of(uint64_t session) {
    const auto it = reservations_.find(session);
    if (it == reservations_.end()) {
        throw Error("the session is closed");
    }
    return it->second;
}

void CacheAllocator::use(const CellList & cells) {
    cells.each([&](uint32_t cell) { use(cell); });
}

void CacheAllocator::use(uint32_t cell) {
    const CellPool::Cell & held = pool_[cell];
    if (held.uses == 0 && held.owner != 0) {
        Reservation & owner = of(held.owner);
        ++owner.n_used;
        owner.note_most();
    }
    pool_.use(cell);
}

void CacheAllocator::unuse(const CellList & cells) {
    cells.each([&](uint32_t cell) {
        if (pool_.unuse(cell) && pool_[cell].owner != 0) {
            --of(pool_[cell].owner).n_used;
        }
    });
}

//
// sequences
//

Sequence & CacheAllocator::sequence(uint64_t session, int32_t sequence) {
    auto &     sequences = of(session).sequences;
    const auto it        = sequences.find(sequence);
    if (it == sequences.end()) {
        throw Error("the sequence was dropped or belongs to another session");
    }
    return it->second;
}

Sequence & CacheAllocator::idle_sequence(uint64_t session, int32_t id, const char * doing) {
    Sequence & found = sequence(session, id);
    if (found.busy) {
        throw Error("the sequence is in a running job; wait for it before ", doing);
    }
    return found;
}

int32_t CacheAllocator::add_sequence(uint64_t session) {
    Reservation & reservation = of(session);
    if (reservation.sequences.size() >= reservation.n_seqs) {
        throw CapacityError("the session reserved ", reservation.n_seqs,
                            " sequences and uses them all; drop one or reserve more");
    }
    const auto    it    = std::find(sequence_taken_.begin(), sequence_taken_.end(), false);
    const int32_t id    = int32_t(it - sequence_taken_.begin());
    sequence_taken_[id] = true;
    reservation.sequences[id];
    return id;
}

int32_t CacheAllocator::fork(uint64_t session, int32_t id) {
    const Sequence & from  = idle_sequence(session, id, "forking");
    const int32_t    child = add_sequence(session);
    Sequence &       copy  = sequence(session, child);
    copy.tokens            = from.tokens;
    copy.cells             = from.cells;
    copy.digest            = from.digest;
    copy.n_clean           = from.n_clean;
    copy.n_whole           = from.n_whole;
    copy.lost              = from.lost;
    use(copy.cells);
    later([=](llama_context * context) { llama_memory_seq_cp(llama_get_memory(context), id, child, -1, -1); });
    return child;
}

// What is known of the tokens behind the first ones.
void CacheAllocator::forget_behind(Sequence & of, uint32_t n_tokens) const {
    of.n_clean = std::min(of.n_clean, n_tokens);
    of.n_whole = reading_.whole(std::min(of.n_whole, n_tokens));
    of.norms.resize(std::min(of.norms.size(), size_t(n_tokens) * model_.info().n_layer));
}

void CacheAllocator::truncate(uint64_t session, int32_t id, uint32_t n_tokens) {
    Sequence & from = idle_sequence(session, id, "truncating");
    if (n_tokens < from.again.size()) {
        from.again.resize(n_tokens);
    }
    if (n_tokens <= from.size()) { // nothing is left to read again
        from.again.clear();
    }
    if (n_tokens >= from.size()) {
        return;
    }
    if (kind_.recurrent) {
        throw Error("this model cannot roll back: its recurrent layers keep the state after the last token only; "
                    "fork a sequence before it grows");
    }
    const CellList kept = from.cells.part(0, n_tokens);
    unuse(from.cells.part(n_tokens, from.size()));
    from.cells = kept;
    from.tokens.resize(n_tokens);
    forget_behind(from, n_tokens);
    later(
        [=](llama_context * context) { llama_memory_seq_rm(llama_get_memory(context), id, llama_pos(n_tokens), -1); });
}

void CacheAllocator::shift(uint64_t session, int32_t id, uint32_t start, uint32_t end) {
    Sequence & from = idle_sequence(session, id, "shifting");
    if (from.n_again() > 0) {
        throw Error("the sequence is read again, its tokens cannot be moved; truncate it");
    }
    if (start > end || end > from.size()) {
        throw ArgumentError("the tokens from ", start, " to ", end, " are not in a sequence of ", from.size());
    }
    if (start == end) {
        return;
    }
    const CellList behind = from.cells.part(end, from.size());
    bool           shared = false;
    behind.each([&](uint32_t cell) { shared |= pool_[cell].uses > 1 || pool_[cell].keeps > 0; });
    if (shared) {
        throw Error("the tokens that would move are shared with a fork, whose positions stay; drop the fork, or "
                    "shift before forking");
    }
    if (end < from.size()) {
        // quantised keys would be rounded again, those of all sessions
        const char * reason = ggml_is_quantized(model_.params().type_k) ? "its keys are quantised, set type_k to f16"
                                                                        : graph_no_shift(model_.context());
        if (reason) {
            throw Error("the tokens of this cache cannot be moved: ", reason,
                        "; truncate the sequence and decode what follows again");
        }
        shift_pending_ = true;
    }
    unuse(from.cells.part(start, end));
    CellList cells = from.cells.part(0, start);
    cells.append(behind);
    from.cells = std::move(cells);
    from.tokens.erase(from.tokens.begin() + start, from.tokens.begin() + end);
    forget_behind(from, start); // the moved ones know the removed ones
    later([=](llama_context * context) {
        llama_memory_t memory = llama_get_memory(context);
        llama_memory_seq_rm(memory, id, llama_pos(start), llama_pos(end));
        llama_memory_seq_add(memory, id, llama_pos(end), -1, llama_pos(start) - llama_pos(end));
    });
}

void CacheAllocator::drop(uint64_t session, int32_t id) {
    empty(session, id);
    of(session).sequences.erase(id);
    sequence_taken_[id] = false;
}

void CacheAllocator::empty(uint64_t session, int32_t id) {
    Sequence & emptied = sequence(session, id);
    unuse(emptied.cells);
    emptied = Sequence();
    later([=](llama_context * context) { llama_memory_seq_rm(llama_get_memory(context), id, -1, -1); });
}

void CacheAllocator::append(uint64_t session, Sequence & to, llama_token token, uint32_t cell,
                            const Injected & injected) {
    pool_.plan(cell, false);
    --of(session).n_planned;
    use(cell);
    to.cells.push(cell);
    to.tokens.push_back(token);
    const bool follows = injected.clean && to.n_clean + 1 == to.size();
    if (follows && (to.n_clean == 0 || to.digest == injected.digest)) {
        to.digest = injected.digest;
        ++to.n_clean;
    }
}

void CacheAllocator::undo_decode(uint64_t session, int32_t id) {
    if (!kind_.recurrent) {
        llama_memory_seq_rm(llama_get_memory(model_.context()), id, llama_pos(sequence(session, id).size()), -1);
        return;
    }
    for (auto & [other, reservation] : reservations_) { // llama.cpp moves states of sequences outside of the batch, too
        for (auto & [number, lost] : reservation.sequences) {
            lost.lost = true;
        }
    }
}

void CacheAllocator::apply() {
    if (std::exchange(shift_pending_, false)) {
        later([this](llama_context *) { model_.apply_shift(); });
    }
    const auto queue = std::move(queue_);
    queue_.clear();
    for (const auto & operation : queue) {
        try {
            operation(model_.context());
        } catch (const std::exception & error) { // the others still have to be applied
            fault_ = concat("the cache could not be changed (", error.what(), ")");
        }
    }
}

//
// injections
//

int32_t CacheAllocator::add_injection(uint64_t session, std::vector<float> vectors, Injected injected) {
    if (vectors.size() != size_t(model_.info().n_layer) * model_.info().n_embd) {
        throw ArgumentError("an injection needs n_layer × n_embd values");
    }
    Reservation & reservation = of(session);
    if (reservation.injections.size() >= reservation.n_seqs) {
        throw CapacityError("the session reserved ", reservation.n_seqs,
                            " injections and uses them all; drop one or reserve more");
    }
    const auto    it      = std::find(injection_taken_.begin() + 1, injection_taken_.end(), false);
    const int32_t row     = int32_t(it - injection_taken_.begin());
    injection_taken_[row] = true;
    reservation.injections.emplace(row, std::move(injected));
    later(
        [row, vectors = std::move(vectors)](llama_context * context) { graph_set_row(context, row, vectors.data()); });
    return row;
}

void CacheAllocator::drop_injection(uint64_t session, int32_t injection) {
    if (of(session).injections.erase(injection)) {
        injection_taken_[injection] = false;
    }
}

Injected CacheAllocator::injected(uint64_t session, int32_t injection) {
    const Reservation & reservation = of(session);
    return injection == 0 ? Injected{ true, reservation.digest } : reservation.injections.at(injection);
}

} // namespace tgr
