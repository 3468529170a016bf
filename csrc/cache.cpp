#include "cache.h"

#include <numeric>
#include <optional>
#include <stdexcept>

namespace tgr {

CacheAllocator::CacheAllocator(Model & model) : model_(model) {
    reset();
}

void CacheAllocator::reset() {
    const uint32_t n_seq_max = model_.params().n_seq_max;
    sequence_taken_.assign(n_seq_max, false);
    injection_taken_.assign(n_seq_max + 1, false); // row 0 means no injection
    shift_pending_ = false;
}

uint32_t CacheAllocator::used() const {
    uint32_t used = 0;
    for (const auto & [session, reservation] : reservations_) {
        used += reservation.used;
    }
    return used;
}

//
// reservations
//

void CacheAllocator::check(uint32_t n_cells, uint32_t n_seqs) const {
    const EngineParams & params      = model_.params();
    const int32_t        n_ctx_train = model_.info().n_ctx_train;
    if (n_seqs > params.n_seq_max) {
        throw CapacityError("needs " + std::to_string(n_seqs) + " sequences at a time, but the engine holds " +
                            std::to_string(params.n_seq_max) + "; raise n_seq_max or lower n_candidates or n_mc");
    }
    const uint64_t most = uint64_t(params.n_seq_max) * std::max(n_ctx_train, 1);
    if (n_cells > most) {
        throw CapacityError("needs " + std::to_string(n_cells) + " cache cells, but " +
                            std::to_string(params.n_seq_max) + " sequences of the " + std::to_string(n_ctx_train) +
                            " tokens that the model was trained for take " + std::to_string(most) + " at most");
    }
    if (params.n_ctx != 0 && n_cells > model_.n_ctx()) {
        throw CapacityError("needs " + std::to_string(n_cells) + " cache cells, but n_ctx is " +
                            std::to_string(model_.n_ctx()) +
                            "; raise n_ctx, or shorten the query, chunk_len or rollout_len");
    }
}

bool CacheAllocator::grow(uint32_t n_cells) {
    if (!reservations_.empty() || model_.params().n_ctx != 0) {
        return false;
    }
    const bool grown = model_.resize(n_cells);
    reset();
    return grown;
}

bool CacheAllocator::reserve(uint64_t session, uint32_t n_cells, uint32_t n_seqs) {
    if (reservations_.empty() && (n_cells > model_.n_ctx() || !model_.context()) && !grow(n_cells)) {
        throw CapacityError("needs a cache of " + std::to_string(n_cells) +
                            " cells, but there is not enough memory for it; shorten the query, chunk_len or "
                            "rollout_len");
    }
    uint64_t cells = n_cells, seqs = n_seqs;
    for (const auto & [id, reservation] : reservations_) {
        cells += reservation.cells.size();
        seqs += reservation.n_seqs;
    }
    if (cells > model_.n_ctx() || seqs > model_.params().n_seq_max) {
        return false;
    }
    Reservation made;
    made.cells  = find_cells(n_cells);
    made.n_seqs = n_seqs;
    reservations_.emplace(session, std::move(made));
    return true;
}

// Free cells: in one piece at a multiple of the stride if there is such a piece, so that sessions of nearly the same
// size are at equal distances (session_attention.cpp); else in any piece; else the lowest ones.
std::vector<uint32_t> CacheAllocator::find_cells(uint32_t n_cells) const {
    std::vector<bool> taken(model_.n_ctx(), false);
    for (const auto & [id, reservation] : reservations_) {
        for (const uint32_t cell : reservation.cells) {
            taken[cell] = true;
        }
    }
    const uint64_t          stride = session_stride(n_cells);
    std::vector<uint32_t>   lowest;
    std::optional<uint32_t> piece;
    uint32_t                n_free = 0; // in one piece, up to here
    for (uint32_t cell = 0; cell < taken.size(); ++cell) {
        n_free = taken[cell] ? 0 : n_free + 1;
        if (!taken[cell] && lowest.size() < n_cells) {
            lowest.push_back(cell);
        }
        if (n_free < n_cells) {
            continue;
        }
        const uint32_t begin = cell + 1 - n_cells;
        if (begin % stride == 0) {
            piece = begin;
            break;
        }
        piece = piece ? piece : begin;
    }
    if (!piece) {
        return lowest;
    }
    std::vector<uint32_t> cells(n_cells);
    std::iota(cells.begin(), cells.end(), *piece);
    return cells;
}

void CacheAllocator::release(uint64_t session) {
    Reservation & reservation = of(session);
    while (!reservation.sequences.empty()) {
        drop(session, reservation.sequences.begin()->first);
    }
    for (const int32_t row : reservation.injections) {
        injection_taken_[row] = false;
    }
    reservations_.erase(session);
}

Reservation & CacheAllocator::of(uint64_t session) {
    const auto it = reservations_.find(session);
    if (it == reservations_.end()) {
        throw Error("the session is closed");
    }
    return it->second;
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
        throw Error(std::string("the sequence is in a running job; wait for it before ") + doing);
    }
    return found;
}

int32_t CacheAllocator::add_sequence(uint64_t session) {
    Reservation & reservation = of(session);
    if (reservation.sequences.size() >= reservation.n_seqs) {
        throw CapacityError("the session reserved " + std::to_string(reservation.n_seqs) +
                            " sequences and uses them all; drop one or reserve more");
    }
    const auto    it    = std::find(sequence_taken_.begin(), sequence_taken_.end(), false);
    const int32_t id    = int32_t(it - sequence_taken_.begin());
    sequence_taken_[id] = true;
    reservation.sequences[id];
    return id;
}

int32_t CacheAllocator::fork(uint64_t session, int32_t id) {
    const Sequence & from        = idle_sequence(session, id, "forking");
    Reservation &    reservation = of(session);
    const int32_t    child       = add_sequence(session);
    llama_memory_seq_cp(memory(), id, child, -1, -1);
    reservation.sequences[child].cells = from.cells;
    for (const uint32_t place : from.cells) {
        ++reservation.refs[place];
    }
    return child;
}

void CacheAllocator::truncate(uint64_t session, int32_t id, uint32_t n_tokens) {
    Sequence &    from        = idle_sequence(session, id, "truncating");
    Reservation & reservation = of(session);
    if (n_tokens >= from.cells.size()) {
        return;
    }
    if (!llama_memory_seq_rm(memory(), id, llama_pos(n_tokens), -1)) {
        throw Error("this model's cache cannot be rolled back");
    }
    for (size_t i = n_tokens; i < from.cells.size(); ++i) {
        reservation.drop_cell(from.cells[i]);
    }
    from.cells.resize(n_tokens);
}

void CacheAllocator::shift(uint64_t session, int32_t id, uint32_t start, uint32_t end) {
    auto &        cells       = idle_sequence(session, id, "shifting").cells;
    Reservation & reservation = of(session);
    if (start > end || end > cells.size()) {
        throw std::invalid_argument("the tokens from " + std::to_string(start) + " to " + std::to_string(end) +
                                    " are not in a sequence of " + std::to_string(cells.size()));
    }
    if (start == end) {
        return;
    }
    const auto shared = [&](uint32_t place) { return reservation.refs[place] > 1; };
    if (std::any_of(cells.begin() + end, cells.end(), shared)) {
        throw Error("the tokens that would move are shared with a fork, whose positions stay; drop the fork, or "
                    "shift before forking");
    }
    if (end < cells.size()) {
        // quantised keys would be rounded again, those of all sessions
        const char * reason = ggml_is_quantized(model_.params().type_k) ? "its keys are quantised, set type_k to f16"
                                                                        : graph_no_shift(model_.context());
        if (reason) {
            throw Error(std::string("the tokens of this cache cannot be moved: ") + reason +
                        "; truncate the sequence and decode what follows again");
        }
        shift_pending_ = true;
    }
    llama_memory_seq_rm(memory(), id, llama_pos(start), llama_pos(end));
    llama_memory_seq_add(memory(), id, llama_pos(end), -1, llama_pos(start) - llama_pos(end));
    for (size_t i = start; i < end; ++i) {
        reservation.drop_cell(cells[i]);
    }
    cells.erase(cells.begin() + start, cells.begin() + end);
}

void CacheAllocator::drop(uint64_t session, int32_t id) {
    Reservation & reservation = of(session);
    llama_memory_seq_rm(memory(), id, -1, -1);
    graph_set_seq_row(model_.context(), id, 0);
    for (const uint32_t place : reservation.sequences[id].cells) {
        reservation.drop_cell(place);
    }
    reservation.sequences.erase(id);
    sequence_taken_[id] = false;
}

void CacheAllocator::undo_decode(uint64_t session, int32_t id, const std::vector<uint32_t> & places) {
    llama_memory_seq_rm(memory(), id, llama_pos(sequence(session, id).cells.size()), -1);
    for (const uint32_t place : places) {
        of(session).drop_cell(place);
    }
}

std::string CacheAllocator::apply_shift() {
    shift_pending_ = false;
    std::string reason;
    return model_.apply_shift(reason)
               ? ""
               : "the cache could not be shifted (" + reason + "); all sessions are closed, open new ones";
}

//
// injections
//

int32_t CacheAllocator::add_injection(uint64_t session, const std::vector<float> & vectors) {
    Reservation & reservation = of(session);
    if (reservation.injections.size() >= reservation.n_seqs) {
        throw CapacityError("the session reserved " + std::to_string(reservation.n_seqs) +
                            " injections and uses them all; drop one or reserve more");
    }
    const auto    it      = std::find(injection_taken_.begin() + 1, injection_taken_.end(), false);
    const int32_t row     = int32_t(it - injection_taken_.begin());
    injection_taken_[row] = true;
    reservation.injections.insert(row);
    graph_set_row(model_.context(), row, vectors.data());
    return row;
}

void CacheAllocator::drop_injection(uint64_t session, int32_t injection) {
    if (of(session).injections.erase(injection)) {
        injection_taken_[injection] = false;
    }
}

} // namespace tgr
