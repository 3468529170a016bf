#include "attention_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace tgr {

// In cells that a token looks at. A block is some twenty nodes in every layer, a shared span ten; cells that few rows
// look at cost more than their share, because they come from memory.
static constexpr uint64_t BLOCK_COST   = 512;
static constexpr uint64_t SPAN_COST    = 256;
static constexpr uint64_t EACH_COST    = 128; // of every one of several spans: a small product for each head
static constexpr uint64_t READ_COST    = 2;   // rows
static constexpr uint32_t PAD          = 64;  // spans grow by so many cells at a time: graphs can be used again
static constexpr uint32_t LEAST_SHARED = PAD;

static bool operator==(const extent & a, const extent & b) {
    return a.begin == b.begin && a.n == b.n;
}

static bool same(const std::vector<extent> & a, const std::vector<extent> & b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const extent & x, const extent & y) { return x == y; });
}

static uint32_t padded(uint32_t n, uint32_t most) {
    return std::min((n + PAD - 1) / PAD * PAD, most);
}

uint32_t block_t::n_cells() const {
    return std::accumulate(shared.begin(), shared.end(), own.n, [](uint32_t n, const extent & e) { return n + e.n; });
}

uint64_t block_t::cost() const {
    const uint64_t n_own = uint64_t(own.n) * n_spans * (n_rows + READ_COST);
    return n_own + (n_spans > 1 ? EACH_COST * n_spans : 0) +
           uint64_t(n_cells() - own.n) * (uint64_t(n_spans) * n_rows + READ_COST) + BLOCK_COST +
           SPAN_COST * shared.size();
}

bool block_t::same_shape(const block_t & other) const {
    return own == other.own && stride == other.stride && n_spans == other.n_spans && n_rows == other.n_rows &&
           same(shared, other.shared);
}

uint64_t plan_t::cost() const {
    return std::accumulate(blocks.begin(), blocks.end(), uint64_t(0),
                           [](uint64_t sum, const block_t & block) { return sum + block.cost(); });
}

bool plan_t::same_shape(const plan_t & other) const {
    return direct == other.direct && std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), other.blocks.end(),
                                                [](const block_t & a, const block_t & b) { return a.same_shape(b); });
}

//
// the spans of each sequence
//

namespace {
struct share_t {
    std::vector<int32_t> tokens;
    std::vector<extent>  rest;     // cells, oldest first
    size_t               at = 0;   // in rest: what is before it is in `shared`
    std::vector<extent>  shared{}; // with other sequences, or more than one span of its own
    extent               own{};    // the span with the newest cell

    uint32_t kind() const { // one, few or many tokens: those of one kind fit into one block
        const size_t n = tokens.size();
        return n <= 1 ? 0 : n <= 16 ? 1 : n <= 128 ? 2 : 3;
    }
};
} // namespace

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

// Moves the leading cells that sequences have in common from `rest` to `shared`, each time as many as all that begin
// alike have.
static void find_shared(const std::vector<share_t *> & shares, size_t most) {
    std::map<uint32_t, std::vector<share_t *>> alike;
    for (share_t * share : shares) {
        if (share->at < share->rest.size()) {
            alike[share->rest[share->at].begin].push_back(share);
        }
    }
    for (const auto & [begin, members] : alike) {
        uint32_t n = UINT32_MAX;
        for (const share_t * share : members) {
            const uint32_t n_new = share->at + 1 == share->rest.size() ? uint32_t(share->tokens.size()) : 0;
            n                    = std::min(n, share->rest[share->at].n - std::min(share->rest[share->at].n, n_new));
        }
        if (members.size() < 2 || n < LEAST_SHARED) {
            continue;
        }
        for (share_t * share : members) {
            extent & front = share->rest[share->at];
            share->shared.push_back({ begin, n });
            front = { begin + n, front.n - n };
            share->at += front.n == 0;
        }
        if (most > 1) {
            find_shared(members, most - 1);
        }
    }
}

// At most so many spans that hold all the extents; ascending, and apart from each other. Those with few cells between
// them are joined, by their number of rows.
static std::vector<extent> cover(std::vector<extent> spans, uint64_t n_rows, size_t most) {
    std::sort(spans.begin(), spans.end(), [](const extent & a, const extent & b) { return a.begin < b.begin; });
    const auto gap = [](const extent & a, const extent & b) {
        return b.begin > a.begin + a.n ? b.begin - a.begin - a.n : 0;
    };
    const auto absorb = [](extent & a, const extent & b) { a.n = std::max(a.begin + a.n, b.begin + b.n) - a.begin; };
    std::vector<extent> covered;
    for (const extent & span : spans) {
        if (!covered.empty() && gap(covered.back(), span) * (n_rows + READ_COST) <= SPAN_COST) {
            absorb(covered.back(), span);
        } else {
            covered.push_back(span);
        }
    }
    if (covered.size() > most) { // the widest gaps remain
        std::vector<uint32_t> gaps;
        for (size_t i = 0; i + 1 < covered.size(); ++i) {
            gaps.push_back(gap(covered[i], covered[i + 1]));
        }
        std::vector<size_t> widest(gaps.size());
        std::iota(widest.begin(), widest.end(), 0);
        std::stable_sort(widest.begin(), widest.end(), [&](size_t a, size_t b) { return gaps[a] > gaps[b]; });
        widest.resize(most - 1);
        std::sort(widest.begin(), widest.end());
        std::vector<extent> fewer{ covered[0] };
        for (size_t i = 0; i + 1 < covered.size(); ++i) {
            if (std::binary_search(widest.begin(), widest.end(), i)) {
                fewer.push_back(covered[i + 1]);
            } else {
                absorb(fewer.back(), covered[i + 1]);
            }
        }
        covered = std::move(fewer);
    }
    return covered;
}

static std::vector<share_t> shares_of(const std::vector<reader_t> & readers, uint32_t n_cells, size_t most_shared) {
    std::vector<share_t>   shares;
    std::vector<share_t *> all;
    for (const reader_t & reader : readers) {
        shares.push_back({ reader.tokens, cut(*reader.view, reader.first, reader.end) });
    }
    for (share_t & share : shares) {
        all.push_back(&share);
    }
    if (most_shared > 0) {
        find_shared(all, most_shared);
    }
    for (share_t & share : shares) {
        const uint32_t newest = share.rest.back().begin + share.rest.back().n - 1;
        share.rest.erase(share.rest.begin(), share.rest.begin() + share.at);
        for (const extent & span :
             cover(std::move(share.rest), share.tokens.size(), most_shared + 1 - share.shared.size())) {
            if (span.begin <= newest && newest < span.begin + span.n) {
                share.own = span;
            } else {
                share.shared.push_back(span);
            }
        }
        for (extent & span : share.shared) {
            span.n = padded(span.n, n_cells - span.begin);
        }
    }
    std::sort(shares.begin(), shares.end(), [](const share_t & a, const share_t & b) {
        uint32_t size_a = PAD, size_b = PAD;
        for (; size_a < a.own.n; size_a *= 2) {
        }
        for (; size_b < b.own.n; size_b *= 2) {
        }
        return std::make_tuple(a.kind(), size_a, a.own.begin) < std::make_tuple(b.kind(), size_b, b.own.begin);
    });
    return shares;
}

//
// blocks
//

static block_t block_of(const share_t & share, uint32_t n_cells) {
    const uint32_t n = padded(share.own.n, n_cells - share.own.begin);
    return { share.shared, { share.own.begin, n }, n, 1, uint32_t(share.tokens.size()), share.own.n, share.tokens };
}

// The cells of each span of a block: as many as there are between two, or fewer. Products are fast with multiples of 32
// cells, so a span may reach into the next one, where all spans as one still lie within the cache: ggml asks for that.
// 0 = the spans are too close to each other, or to the end of the cache.
static uint32_t fitting(const block_t & block, uint32_t n_cells) {
    const uint64_t room = n_cells - block.own.begin, last = uint64_t(block.n_spans - 1) * block.stride;
    const auto     fits = [&](uint64_t n) { return n * block.n_spans <= room && last + n <= room; };
    if (block.n_used > block.stride) {
        return 0;
    }
    const uint32_t most = (block.stride + 31) / 32 * 32;
    for (const uint32_t n : { padded(block.n_used, most), padded(block.n_used, block.stride) }) {
        if (fits(n)) {
            return n;
        }
    }
    return 0;
}

// Adds a sequence to a block when its span lies at a distance of the block's others and little padding is needed.
static bool extend(block_t & block, const share_t & share, uint32_t n_cells) {
    if (share.own.begin <= block.own.begin || !same(share.shared, block.shared)) {
        return false;
    }
    const uint32_t distance = share.own.begin - block.own.begin;
    const uint32_t before   = block.n_spans > 1 ? block.stride : distance;
    block_t        larger   = block;
    larger.stride           = std::gcd(before, distance);
    larger.n_spans          = distance / larger.stride + 1;
    larger.n_rows           = std::max(block.n_rows, uint32_t(share.tokens.size()));
    larger.n_used           = std::max(block.n_used, share.own.n);
    larger.own.n            = fitting(larger, n_cells);
    const uint32_t step     = before / larger.stride; // new spans for each that the block had
    if (larger.own.n == 0 || (block.n_spans - 1) * step + 1 >= larger.n_spans ||
        larger.cost() > 2 * (block.cost() + block_of(share, n_cells).cost())) {
        return false;
    }
    larger.tokens.assign(size_t(larger.n_spans) * larger.n_rows, -1);
    for (uint32_t i = 0; i < block.n_spans; ++i) {
        std::copy_n(block.tokens.begin() + size_t(i) * block.n_rows, block.n_rows,
                    larger.tokens.begin() + size_t(i) * step * larger.n_rows);
    }
    std::copy(share.tokens.begin(), share.tokens.end(), larger.tokens.end() - larger.n_rows);
    block = std::move(larger);
    return true;
}

// One block with all their rows, each of which looks at the spans of all, from one multiple of the padding to another:
// while its sequences grow, only the last one to pass a multiple changes the block.
static block_t joined(const block_t & a, const block_t & b, uint32_t n_cells, size_t most_shared) {
    block_t             both;
    std::vector<extent> spans;
    for (const block_t * block : { &a, &b }) {
        spans.insert(spans.end(), block->shared.begin(), block->shared.end());
        for (uint32_t i = 0; i < block->n_spans; ++i) {
            spans.push_back({ block->own.begin + i * block->stride, block->n_used });
        }
        std::copy_if(block->tokens.begin(), block->tokens.end(), std::back_inserter(both.tokens),
                     [](int32_t token) { return token >= 0; });
    }
    std::sort(both.tokens.begin(), both.tokens.end());
    both.n_rows = uint32_t(both.tokens.size());
    both.shared = cover(std::move(spans), both.n_rows, most_shared + 1);
    for (extent & span : both.shared) {
        const uint32_t begin = span.begin / PAD * PAD;
        span                 = { begin, padded(span.begin + span.n - begin, n_cells - begin) };
    }
    both.own = both.shared.back();
    both.shared.pop_back();
    both.stride = both.n_used = both.own.n;
    return both;
}

// Joins neighbours, each time those that it suits best, while that is cheaper or there are too many.
static void join(std::vector<block_t> & blocks, uint32_t n_cells, size_t most_shared) {
    std::sort(blocks.begin(), blocks.end(),
              [](const block_t & a, const block_t & b) { return a.own.begin < b.own.begin; });
    struct pair_t {
        block_t both;
        int64_t saved;
    };
    std::vector<std::optional<pair_t>> pairs(blocks.size()); // of a block and the next
    const auto                         too_many = [&] {
        size_t n_shared = 0;
        for (const block_t & block : blocks) {
            n_shared += block.shared.size();
        }
        return blocks.size() > MAX_BLOCKS || n_shared > MAX_SHARED_TOTAL;
    };
    while (blocks.size() > 1) {
        size_t best = 0;
        for (size_t i = 0; i + 1 < blocks.size(); ++i) {
            if (!pairs[i]) {
                block_t       both  = joined(blocks[i], blocks[i + 1], n_cells, most_shared);
                const int64_t saved = int64_t(blocks[i].cost() + blocks[i + 1].cost()) - int64_t(both.cost());
                pairs[i]            = pair_t{ std::move(both), saved };
            }
            best = pairs[i]->saved > pairs[best]->saved ? i : best;
        }
        if (pairs[best]->saved <= 0 && !too_many()) {
            return;
        }
        blocks[best] = std::move(pairs[best]->both);
        blocks.erase(blocks.begin() + best + 1);
        pairs.erase(pairs.begin() + best);
        pairs[best].reset();
        if (best > 0) {
            pairs[best - 1].reset();
        }
    }
}

plan_t plan_attention(const std::vector<reader_t> & readers, uint32_t n_cells, size_t most_shared) {
    plan_t plan;
    auto & blocks = plan.blocks;
    auto   kinds  = std::vector<uint32_t>{};
    for (const share_t & share : shares_of(readers, n_cells, most_shared)) {
        size_t i = blocks.size();
        while (i > 0 && !(kinds[i - 1] == share.kind() && extend(blocks[i - 1], share, n_cells))) {
            --i;
        }
        if (i == 0) {
            blocks.push_back(block_of(share, n_cells));
            kinds.push_back(share.kind());
        }
    }
    join(blocks, n_cells, most_shared);
    plan.direct  = true;
    int32_t next = 0;
    for (const block_t & block : blocks) {
        for (const int32_t token : block.tokens) {
            plan.direct &= token == next++;
        }
    }
    return plan;
}

} // namespace tgr
