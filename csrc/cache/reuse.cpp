// Which tokens of a prompt need no decoding, because a remembered prefix or another sequence has them.

#include "cache/cache.h"
#include "job/job.h"
#include "machine/rpc.h"

#include <utility>

namespace tgr {

// What a remembered state of recurrent layers is divided by, to count as cells, where cells are smaller or have none.
static constexpr size_t least_cell_bytes = 64 << 10;

CacheAllocator::Source CacheAllocator::longest(const Prompt & prompt, const Reservation * own, int32_t except) {
    Source best;
    // norms of the last layer depend on the rows of the batch
    const bool not_in_blocks = reading_.block > 0 && prompt.norm_stride > 0;
    if (!prefixes_.enabled() || prompt.tokens.size() < least_shared || not_in_blocks) {
        return best;
    }
    const uint32_t n_layer = uint32_t(model_.info().n_layer);
    const auto     n_of    = [&](const DecodedText & text) { return n_usable(prompt, text, n_layer, kind_.recurrent); };
    if (const auto match = prefixes_.find(prompt); match.prefix) {
        best = { match, -1 };
    }
    for (const auto & [session, reservation] : reservations_) {
        // the prefix that it has pinned, which may be remembered no longer
        if (reservation.base && (!kind_.recurrent || !reservation.base->state.empty())) {
            const uint32_t n = std::min(n_of(*reservation.base), reservation.base_cells.size());
            if (n > best.n || (n == best.n && n > 0 && &reservation == own)) {
                best = { { reservation.base, n }, -1 };
            }
        }
        for (const auto & [id, sequence] : reservation.sequences) {
            const uint32_t n_lasts = n_lasting(sequence);
            if (id == except || sequence.lost || n_lasts < least_shared ||
                (kind_.recurrent && (sequence.busy || n_lasts < sequence.size()))) {
                continue;
            }
            const uint32_t n = std::min(n_of(sequence), n_lasts);
            if (n > best.n) {
                best = { { std::make_shared<const Prefix>(Prefix{ sequence.beginning(n, n_layer), {} }), n },
                         kind_.recurrent ? id : -1 };
            }
        }
    }
    best.n = reading_.whole(best.n);
    return best.n > 0 ? best : Source();
}

// Leading tokens of a sequence that others may use.
uint32_t CacheAllocator::n_lasting(const Sequence & sequence) const {
    return reading_.block ? reading_.whole(std::min(sequence.n_clean, sequence.n_whole)) : sequence.n_clean;
}

uint32_t CacheAllocator::reuse(uint64_t session, int32_t id, const Prompt & prompt) {
    const Source   known = longest(prompt, &of(session), id);
    const uint32_t n     = sequence(session, id).size();
    if (known.n < n + least_shared || (n > 0 && (kind_.recurrent || reading_.block > 0))) {
        return n;
    }
    take(session, id, known);
    return known.n;
}

// Gives the sequence the source's tokens behind its own.
void CacheAllocator::take(uint64_t session, int32_t id, const Source & source) {
    Reservation &  reservation = of(session);
    Sequence &     to          = sequence(session, id);
    const Prefix & from        = *source.prefix;
    const uint32_t before      = to.size();
    const CellList cells       = from.cells.part(before, source.n);
    use(cells);
    to.cells.append(cells);
    uint32_t n_shared = 0;
    to.cells.each([&](uint32_t cell) { n_shared += pool_[cell].owner != session; });
    reservation.n_shared = std::max(reservation.n_shared, n_shared);
    reservation.note_most();
    to.tokens.assign(from.tokens.begin(), from.tokens.begin() + source.n);
    to.norms.assign(from.norms.begin(),
                    from.norms.begin() + std::min(from.norms.size(), size_t(source.n) * model_.info().n_layer));
    to.digest  = from.digest;
    to.n_clean = source.n;
    to.n_whole = reading_.block ? source.n : 0;
    if (kind_.recurrent && source.sequence >= 0) {
        later([id, donor = source.sequence](llama_context * context) {
            llama_memory_seq_cp(llama_get_memory(context), donor, id, -1, -1);
        });
        return;
    }
    later([id, before, cells](llama_context * context) { memory_attach(context, id, before, cells.runs()); });
    if (kind_.recurrent) {
        later([id, prefix = source.prefix](llama_context * context) {
            memory_write_state(context, id, uint32_t(prefix->tokens.size()), prefix->state);
        });
    }
}

void CacheAllocator::note_block(uint64_t session, int32_t id) {
    Sequence & read = sequence(session, id);
    if (read.n_whole + reading_.block == read.size()) {
        read.n_whole = read.size();
    }
}

void CacheAllocator::remember(uint64_t session, int32_t id) {
    const Sequence & from = sequence(session, id);
    const uint32_t   n    = n_lasting(from);
    if (!prefixes_.enabled() || from.lost || n < least_shared || (kind_.recurrent && n < from.size())) {
        return;
    }
    Prefix prefix{ from.beginning(n, uint32_t(model_.info().n_layer)), {} };
    if (kind_.recurrent) {
        apply();
        prefix.state = memory_read_state(model_.context(), id);
    }
    remember(std::move(prefix));
}

void CacheAllocator::remember(Prefix prefix) {
    const size_t n = prefix.state.size();
    prefixes_.remember(std::move(prefix), n ? uint32_t(n / std::max(kind_.cell_bytes, least_cell_bytes)) + 1 : 0);
}

//
// files
//

PrefixData CacheAllocator::read_prefix(const Prompt & prompt) {
    auto match = prefixes_.find(prompt);
    match.n    = reading_.whole(match.n);
    if (!match.prefix || match.n == 0) {
        return {};
    }
    apply();
    Prefix prefix{ match.prefix->beginning(match.n, uint32_t(model_.info().n_layer)), match.prefix->state };
    auto   cells = memory_read_cells(model_.context(), prefix.cells.runs());
    require_servers(model_.params().rpc); // of a lost one the bytes are zeros
    return { std::move(prefix), std::move(cells) };
}

bool CacheAllocator::add_prefix(PrefixData data) {
    Prefix &     prefix = data.prefix;
    const size_t n = prefix.tokens.size(), n_layer = size_t(model_.info().n_layer);
    if (data.cells.size() != n * kind_.cell_bytes || prefix.state.size() != kind_.state_bytes ||
        prefix.norms.size() % n_layer != 0 || prefix.norms.size() > n * n_layer) {
        throw Error("the saved prefix is of another model or another cache type");
    }
    check_tokens("the saved prefix", prefix.tokens, model_.info().n_vocab);
    if (!prefixes_.enabled() || n < least_shared) {
        return false;
    }
    const auto free = free_cells(uint32_t(n), {});
    if (free.size() < n) {
        return false;
    }
    for (const uint32_t cell : free) {
        prefix.cells.push(cell);
    }
    apply();
    memory_write_cells(model_.context(), prefix.cells.runs(), data.cells);
    remember(std::move(prefix));
    return true;
}

} // namespace tgr
