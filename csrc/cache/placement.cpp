// Which cells a session gets, and which of them the tasks of a job.

#include "cache/cache.h"

#include <numeric>
#include <optional>
#include <utility>

namespace tgr {

//
// cells for a session
//

// n_cells free ones; fewer if there are not that many. Least recently used prefixes are dropped when they are needed,
// or when the cells would lie scattered and the cache cannot grow.
std::vector<uint32_t> CacheAllocator::free_cells(uint32_t n_cells, const CellList & behind) {
    while (true) {
        bool                  in_one_piece = false, possible = false;
        std::vector<uint32_t> cells = find_cells(n_cells, behind, &CellPool::Cell::free, &in_one_piece);
        if (in_one_piece) {
            return cells;
        }
        // what lies scattered does not make the cache larger than all that is kept and this would be in one piece
        const uint64_t most   = uint64_t(n_cells) + behind.size() + model_.params().prefix_cells + prefixes_.longest();
        const uint64_t end    = end_of_use();
        const uint64_t wanted = end + n_cells;
        if (reservations_.empty() && wanted > pool_.size() && wanted <= std::min<uint64_t>(most, model_.most_cells) &&
            grow(uint32_t(wanted))) {
            continue;
        }
        const size_t n_possible = find_cells(n_cells, behind, &CellPool::Cell::obtainable, &possible).size();
        if (n_possible < n_cells && !reservations_.empty()) { // others have to go first
            const uint64_t least = uint64_t(pool_.size()) + n_cells - n_possible;
            if (grows_in_use() && least <= model_.most_cells &&
                grow(uint32_t(std::min<uint64_t>(end + n_cells, model_.most_cells)))) {
                continue;
            }
            return cells;
        }
        if ((cells.size() == n_cells && !possible) || !prefixes_.reclaim()) {
            return cells;
        }
    }
}

// Behind the last cell that is not free.
uint32_t CacheAllocator::end_of_use() const {
    uint32_t end = pool_.size();
    while (end > 0 && pool_[end - 1].free()) {
        --end;
    }
    return end;
}

// Free cells: in one piece if there is such a piece, else the lowest ones. The best piece begins behind the cells of
// the session's prefix.
std::vector<uint32_t> CacheAllocator::find_cells(uint32_t n_cells, const CellList & behind, IsFree is_free,
                                                 bool * in_one_piece) const {
    const uint32_t          wanted = behind.size() > 0 ? behind.last() + 1 : UINT32_MAX;
    std::vector<uint32_t>   lowest;
    std::optional<uint32_t> piece;
    uint32_t                n_free = 0; // in one piece, up to here
    for (uint32_t cell = 0; cell < pool_.size(); ++cell) {
        n_free = (pool_[cell].*is_free)() ? n_free + 1 : 0;
        if (n_free > 0 && lowest.size() < n_cells) {
            lowest.push_back(cell);
        }
        const uint32_t begin = cell + 1 - n_cells;
        if (n_free >= n_cells && (!piece || begin == wanted)) {
            piece = begin;
        }
    }
    *in_one_piece = piece.has_value() || n_cells == 0;
    if (!piece) {
        return lowest;
    }
    std::vector<uint32_t> cells(n_cells);
    std::iota(cells.begin(), cells.end(), *piece);
    return cells;
}

//
// cells for the tasks of a job
//

std::vector<std::vector<uint32_t>> CacheAllocator::plan(uint64_t session, const std::vector<int32_t> & sequences,
                                                        const std::vector<uint32_t> & n_tokens) {
    Reservation &                      reservation = of(session);
    std::vector<std::vector<uint32_t>> planned(sequences.size());
    const auto                         take = [&](size_t task, uint32_t cell) {
        if (pool_[cell].keeps > 0) {
            prefixes_.forget(cell);
        }
        pool_.plan(cell, true);
        planned[task].push_back(cell);
        ++reservation.n_planned;
    };
    const auto idle = [&](uint32_t cell) {
        return cell < pool_.size() && pool_[cell].owner == session && pool_[cell].idle();
    };
    std::map<uint32_t, int> n_behind; // sequences that end with this cell
    for (const int32_t id : sequences) {
        const CellList & cells = sequence(session, id).cells;
        n_behind[cells.size() > 0 ? cells.last() : UINT32_MAX] += 1;
    }
    std::vector<size_t> others;
    for (size_t i = 0; i < sequences.size(); ++i) {
        const CellList & cells = sequence(session, sequences[i]).cells;
        bool             fits  = cells.size() > 0 && n_behind[cells.last()] == 1;
        for (uint32_t n = 1; fits && n <= n_tokens[i]; ++n) {
            fits = idle(cells.last() + n);
        }
        if (!fits) {
            others.push_back(i);
            continue;
        }
        for (uint32_t n = 1, last = cells.last(); n <= n_tokens[i]; ++n) {
            take(i, last + n);
        }
    }
    if (others.empty()) {
        return planned;
    }
    // the longest run is shared out evenly: space for each text to go on
    extent   longest, run;
    uint32_t most = 0;
    for (const uint32_t cell : reservation.cells) {
        if (!idle(cell)) {
            continue;
        }
        run     = run.n > 0 && run.begin + run.n == cell ? extent{ run.begin, run.n + 1 } : extent{ cell, 1 };
        longest = run.n > longest.n ? run : longest;
    }
    for (const size_t i : others) {
        most = std::max(most, n_tokens[i]);
    }
    const uint32_t distance = longest.n / uint32_t(others.size());
    auto           lowest   = reservation.cells.begin();
    for (size_t nth = 0; nth < others.size(); ++nth) {
        const size_t i = others[nth];
        for (uint32_t n = 0; n < n_tokens[i]; ++n) {
            if (distance >= most) {
                take(i, longest.begin + uint32_t(nth) * distance + n);
                continue;
            }
            lowest = std::find_if(lowest, reservation.cells.end(), idle);
            take(i, *lowest);
        }
    }
    return planned;
}

// The cells that a session uses.
std::vector<bool> CacheAllocator::used_by(const Reservation & reservation) const {
    std::vector<bool> used(pool_.size());
    const auto        mark = [&](uint32_t cell) { used[cell] = true; };
    reservation.base_cells.each(mark);
    for (const auto & [id, sequence] : reservation.sequences) {
        sequence.cells.each(mark);
    }
    return used;
}

void CacheAllocator::recall(uint64_t session) {
    Reservation &           lender = of(session);
    const std::vector<bool> used   = used_by(lender);
    for (auto & [id, borrower] : reservations_) {
        if (id == session) {
            continue;
        }
        const std::vector<bool> borrowed = used_by(borrower);
        auto                    spare    = borrower.cells.begin();
        for (uint32_t & cell : lender.cells) {
            if (pool_[cell].uses == 0 || used[cell] || !borrowed[cell]) {
                continue;
            }
            spare = std::find_if(spare, borrower.cells.end(), [&](uint32_t other) { return pool_[other].idle(); });
            if (spare == borrower.cells.end()) {
                break;
            }
            pool_.own(cell, id);
            pool_.own(*spare, session);
            std::swap(cell, *spare++);
            --lender.n_used;
            ++borrower.n_used;
        }
        std::sort(lender.cells.begin(), lender.cells.end());
        std::sort(borrower.cells.begin(), borrower.cells.end());
    }
}

void CacheAllocator::unplan(uint64_t session, const uint32_t * cells, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        pool_.plan(cells[i], false);
    }
    of(session).n_planned -= uint32_t(n);
}

} // namespace tgr
