#include "attention_plan.h"

#include <algorithm>
#include <numeric>

namespace tgr {

static constexpr size_t   LEAST_ROWS = 32;  // of a block: matrix products are faster then
static constexpr uint32_t PAD        = 64;  // cells by which spans grow at a time: graphs can be used again
static constexpr uint32_t LEAST_GAP  = 256; // between two spans, cells
static constexpr uint32_t STEP       = 256; // by which the first cell of a sliding window moves, for the same reason

uint32_t block_t::n_cells() const {
    return std::accumulate(spans.begin(), spans.end(), 0u, [](uint32_t n, const extent & e) { return n + e.n; });
}

bool plan_t::same_shape(const plan_t & other) const {
    const auto same_span  = [](const extent & a, const extent & b) { return a.begin == b.begin && a.n == b.n; };
    const auto same_block = [&](const block_t & a, const block_t & b) {
        return a.tokens.size() == b.tokens.size() &&
               std::equal(a.spans.begin(), a.spans.end(), b.spans.begin(), b.spans.end(), same_span);
    };
    return direct == other.direct && tree.rows.size() == other.tree.rows.size() &&
           std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), other.blocks.end(), same_block);
}

// The cells of the positions [first, end), in as few extents as they are.
static std::vector<extent> cut(const std::vector<extent> & view, uint32_t first, uint32_t end) {
    std::vector<extent> cells;
    uint32_t            position = 0;
    for (const extent & run : view) {
        const uint32_t from = std::max(position, first), to = std::min(position + run.n, end);
        if (from < to) {
            const uint32_t begin = run.begin + (from - position);
            if (!cells.empty() && cells.back().begin + cells.back().n == begin) {
                cells.back().n += to - from;
            } else {
                cells.push_back({ begin, to - from });
            }
        }
        position += run.n;
    }
    return cells;
}

// At most `most` spans that hold all the extents, apart from each other: the widest gaps remain.
static std::vector<extent> cover(std::vector<extent> cells, size_t most, uint32_t n_cells) {
    for (extent & run : cells) { // from one multiple to another
        const uint32_t begin = run.begin / PAD * PAD, end = run.begin + run.n;
        run = { begin, std::min((end - begin + PAD - 1) / PAD * PAD, n_cells - begin) };
    }
    std::sort(cells.begin(), cells.end(), [](const extent & a, const extent & b) { return a.begin < b.begin; });
    const auto gap = [](const extent & a, const extent & b) {
        return b.begin > a.begin + a.n ? b.begin - a.begin - a.n : 0;
    };
    std::vector<uint32_t> gaps;
    for (size_t i = 0; i + 1 < cells.size(); ++i) {
        gaps.push_back(gap(cells[i], cells[i + 1]));
    }
    std::sort(gaps.rbegin(), gaps.rend());
    const uint32_t      least = std::max(LEAST_GAP, gaps.size() >= most ? gaps[most - 1] + 1 : 0);
    std::vector<extent> spans;
    for (const extent & run : cells) {
        if (!spans.empty() && gap(spans.back(), run) < least) {
            spans.back().n = std::max(spans.back().begin + spans.back().n, run.begin + run.n) - spans.back().begin;
        } else {
            spans.push_back(run);
        }
    }
    return spans;
}

plan_t plan_attention(const std::vector<reader_t> & readers, uint32_t n_cells, size_t most_spans) {
    std::vector<size_t> longest; // those with the most to multiply are blocks
    for (size_t i = 0; i < readers.size(); ++i) {
        if (readers[i].tokens.size() >= LEAST_ROWS) {
            longest.push_back(i);
        }
    }
    std::stable_sort(longest.begin(), longest.end(), [&](size_t a, size_t b) {
        const auto work = [&](size_t i) { return readers[i].tokens.size() * readers[i].tokens.back().end; };
        return work(a) > work(b);
    });
    longest.resize(std::min(longest.size(), MAX_BLOCKS));

    plan_t plan;
    for (size_t i = 0; i < readers.size(); ++i) {
        const reader_t & reader = readers[i];
        const uint32_t   first = reader.tokens.front().first, end = reader.tokens.back().end;
        if (std::find(longest.begin(), longest.end(), i) != longest.end()) {
            auto cells = cut(*reader.view, first / STEP * STEP, end);
            plan.blocks.push_back({ cover(std::move(cells), most_spans, n_cells), reader.tokens });
        } else {
            plan.tree.add(cut(*reader.view, first, end), first, reader.tokens);
        }
    }
    plan.tree.finish();

    int32_t    next  = 0;
    const auto is_in = [&](const seen_t & seen) { return seen.token == next++; };
    plan.direct      = std::all_of(plan.tree.rows.begin(), plan.tree.rows.end(), is_in);
    for (const block_t & block : plan.blocks) {
        plan.direct = plan.direct && std::all_of(block.tokens.begin(), block.tokens.end(), is_in);
    }
    return plan;
}

} // namespace tgr
