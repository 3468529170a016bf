#include "cache/prefixes.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <iterator>

namespace tgr {

static constexpr uint32_t N_CELLS = 400, N_LAYER = 2;

// A text of few words, so that many begin alike.
static std::vector<llama_token> some_text(test::Draw & draw) {
    std::vector<llama_token> text;
    for (size_t n = draw.from(1, 5); n > 0; --n) {
        text.insert(text.end(), draw.from(5, 30), llama_token(draw.below(2)));
    }
    return text;
}

TEST(a_store_finds_the_longest_prefix_and_keeps_its_cells) {
    for (const bool whole : { false, true }) {
        test::Draw draw(whole);
        CellPool   pool;
        pool.resize(N_CELLS);
        PrefixStore store(pool, 150, N_LAYER, whole);
        size_t      n_found = 0;
        for (int i = 0; i < 3000; ++i) {
            const auto        text     = some_text(draw);
            const uint32_t    n_before = pool.n_kept();
            const std::string digest   = draw.below(4) > 0 ? "" : "steered";
            if (draw.below(2) > 0) {
                Prefix         prefix{ text, digest, {}, {}, {} };
                const uint32_t first = uint32_t(draw.below(N_CELLS - text.size()));
                for (uint32_t k = 0; k < text.size(); ++k) {
                    prefix.cells.push(first + k);
                    prefix.norms.insert(prefix.norms.end(), N_LAYER, draw.below(200) > 0 ? 1.0f : -1.0f);
                }
                store.remember(std::move(prefix), 0);
            } else if (draw.below(8) == 0) {
                store.forget(uint32_t(draw.below(N_CELLS)));
            }
            const Prompt prompt{ text, digest, draw.below(2) > 0 ? norm_stride(text.size()) : 0 };
            uint32_t     longest = 0, keeps = 0, kept = 0;
            for (const auto & one : store.all()) { // one token after the other
                uint32_t n = 0;
                while (n < std::min(one->tokens.size(), text.size()) && one->tokens[n] == text[n] &&
                       (prompt.norm_stride == 0 || n % prompt.norm_stride > 0 || one->norms[n * N_LAYER + 1] >= 0)) {
                    ++n;
                }
                const bool usable = one->digest == digest && n >= least_shared && (!whole || n == one->tokens.size());
                longest           = std::max(longest, usable ? n : 0);
                keeps += one->cells.size();
            }
            const auto match = store.find(prompt);
            CHECK_EQ(match.n, longest);
            CHECK(!match.prefix || match.prefix == store.all().front()); // the latest that was used
            n_found += longest > 0;
            for (uint32_t cell = 0; cell < N_CELLS; ++cell) {
                keeps -= pool[cell].keeps;
                kept += pool[cell].keeps > 0;
            }
            CHECK_EQ(keeps, 0u);
            CHECK_EQ(pool.n_kept(), kept);
            CHECK(kept <= n_before || store.all().size() == 1 || kept <= 150 + store.longest());
        }
        CHECK(n_found > 300);
        while (store.reclaim()) {
        }
        CHECK_EQ(pool.n_kept(), 0u);
        CHECK_EQ(store.all().size(), 0u);
    }
}

TEST(the_norms_of_a_longer_prompt_are_among_those_of_its_beginning) {
    for (size_t n = 1; n < 5000; ++n) {
        const uint32_t stride = norm_stride(n);
        CHECK((n + stride - 1) / stride <= 32);
        CHECK(stride == 1 || (n - 1) / (stride / 2) >= 31); // no fewer than needed
        CHECK_EQ(norm_stride(n + 1) % stride, 0u);
    }
}

TEST(a_prompt_is_read_in_whole_blocks) {
    const Reading blocks{ 64 }, any;
    CHECK_EQ(blocks.whole(63), 0u);
    CHECK_EQ(blocks.whole(130), 128u);
    CHECK_EQ(any.whole(130), 130u);
    CHECK_EQ(blocks.next(0, 100), 64u);
    CHECK_EQ(blocks.next(60, 100), 4u);
    CHECK_EQ(blocks.next(64, 10), 10u);
    CHECK_EQ(any.next(60, 100), 100u);
}

} // namespace tgr
