#include "job/drafts.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tgr {

//
// looking up
//

// What look_up must find, by trying every place.
static Draft plain_look_up(const Tokens & own, llama_token next, const std::vector<const Tokens *> & others,
                           size_t most) {
    Tokens end = own;
    end.push_back(next);
    std::vector<const Tokens *> texts{ &own };
    texts.insert(texts.end(), others.begin(), others.end());
    Draft found;
    for (const Tokens * text : texts) {
        for (size_t at = text == &own ? own.size() : std::max<size_t>(text->size(), 1) - 1; at-- > 0;) {
            size_t n = 0;
            while (n < std::min<size_t>({ 32, at + 1, end.size() }) && (*text)[at - n] == end[end.size() - 1 - n]) {
                ++n;
            }
            if (n > found.n_matched) {
                found = { Tokens(text->begin() + ptrdiff_t(at) + 1, text->end()), n };
                if (text == &own) {
                    found.tokens.push_back(next);
                    while (found.tokens.size() < most) { // it repeats itself
                        found.tokens.push_back(found.tokens[found.tokens.size() - (own.size() - at)]);
                    }
                }
                found.tokens.resize(std::min(found.tokens.size(), most));
            }
        }
    }
    return found;
}

TEST(a_draft_follows_the_longest_place_that_is_alike) {
    for (const size_t n_values : { 2, 5, 40 }) {
        test::Draw draw(n_values);
        const auto text = [&](size_t most) {
            Tokens tokens(draw.below(most));
            for (auto & token : tokens) {
                token = llama_token(draw.below(n_values));
            }
            return tokens;
        };
        for (int i = 0; i < 300; ++i) {
            const Tokens                      own = text(150), a = text(80), b = text(80), c = text(80);
            const std::vector<const Tokens *> others = { &a, &b, &c };
            const llama_token                 next   = llama_token(draw.below(n_values));
            const size_t                      most   = draw.below(40);
            const Draft                       found  = look_up(own, next, others, most, 10'000),
                                              plain  = plain_look_up(own, next, others, most);
            CHECK_EQ(found.tokens, plain.tokens);
            CHECK_EQ(found.n_matched, plain.n_matched);
        }
    }
}

TEST(a_look_up_reads_no_more_than_it_may) {
    Tokens own{ 1, 2, 3 };
    for (llama_token token = 10; token < 100; ++token) {
        own.push_back(token);
    }
    CHECK_EQ(look_up(own, 1, {}, 2, 93).tokens, Tokens{ 2, 3 });
    CHECK_EQ(look_up(own, 1, {}, 2, 93).n_matched, 1u);
    CHECK_EQ(look_up(own, 1, {}, 2, 92).n_matched, 0u);
    CHECK_EQ(look_up({ 7 }, 1, { &own }, 2, 93).tokens, Tokens{ 2, 3 });
    CHECK_EQ(look_up({ 7 }, 1, { &own }, 2, 92).tokens, Tokens{});
}

TEST(a_draft_is_followed_while_it_is_right) {
    Followed text;
    Hits     hits;
    CHECK(text.short_of() && text.n_left() == 0);
    text.look({ { 5, 6, 7 }, 2 });
    text.went_on(5, hits);
    CHECK_EQ(text.guess(0), 6);
    CHECK_EQ(text.n_left(), 2u);
    CHECK_EQ(text.n_alike(), 3u);
    text.look({ Tokens(31, 6), 9 }); // a longer one, while the old one is right
    CHECK_EQ(text.n_alike(), 3u);
    CHECK(!text.short_of());
    text.went_on(8, hits);
    CHECK(text.n_left() == 0 && text.n_alike() == 0);
    text.look({ { 1 }, 4 });
    CHECK_EQ(text.n_alike(), 4u);
    CHECK_EQ(hits.expected(2, 0), 1.0 / 3); // one token was right, and the newest counts a third
    CHECK_EQ(hits.expected(1, 0), 0.0);
}

//
// how many are decoded
//

using Pairs = std::vector<std::pair<size_t, size_t>>;

// How many tokens are decoded along with each of several texts, of which (tokens, tokens that are alike) are given,
// after runs of right tokens (alike, right) that ended with a wrong one.
static std::vector<size_t> rows(const Pairs & drafts, const Pairs & runs, size_t widest = 64, double slowest = INFINITY,
                                StepTimes times = { Kernels::ggml, 1 }) {
    Hits hits;
    for (const auto & [n_matched, n_right] : runs) {
        for (size_t n = 1; n <= n_right; ++n) {
            hits.note(n_matched, n, false);
        }
        hits.note(n_matched, n_right, true);
    }
    std::vector<Guess> guesses;
    for (const auto & [n_left, n_alike] : drafts) {
        guesses.push_back({ n_left, {} });
        for (size_t k = 0; k < Hits::LENGTHS.size(); ++k) {
            guesses.back().right[k] = hits.expected(n_alike, k);
        }
    }
    return choose_rows(guesses, times, widest, slowest);
}

static Pairs times(size_t n, const Pairs & runs) {
    Pairs all;
    for (size_t i = 0; i < n * runs.size(); ++i) {
        all.push_back(runs[i % runs.size()]);
    }
    return all;
}

using Rows = std::vector<size_t>;

static const Pairs GOOD = times(6, { { 2, 29 } }); // after two tokens that were alike, 29 followed

TEST(nothing_is_decoded_before_guesses_were_right) {
    CHECK_EQ(rows({ { 40, 30 } }, {}), Rows{ 0 });
    CHECK_EQ(rows({ { 40, 30 } }, times(50, { { 1, 0 }, { 2, 1 }, { 3, 2 }, { 20, 3 } })), Rows{ 0 });
    CHECK_EQ(rows({ { 40, 2 } }, { { 2, 15 } }), Rows{ 0 });
    CHECK_EQ(rows({ { 40, 2 } }, times(2, { { 2, 15 } })), Rows{ 15 });
    CHECK_EQ(rows({ { 40, 1 } }, GOOD), Rows{ 0 }); // after one token that was alike nothing was seen
    CHECK(rows({ { 40, 30 } }, GOOD)[0] >= 15);
    CHECK_EQ(rows({ { 0, 0 } }, GOOD), Rows{ 0 });
}

TEST(drafts_are_as_long_as_what_is_right) {
    const Pairs right = times(8, { { 2, 15 } });
    CHECK_EQ(rows({ { 60, 2 } }, times(8, { { 2, 7 } })), Rows{ 7 });
    CHECK_EQ(rows({ { 60, 2 } }, right), Rows{ 15 });
    CHECK_EQ(rows({ { 60, 2 } }, times(8, { { 2, 31 } })), Rows{ 31 });
    CHECK_EQ(rows({ { 9, 2 } }, right), Rows{ 7 });
    CHECK_EQ(rows({ { 5, 2 } }, right), Rows{ 0 }); // five take as long as seven
    Pairs missed = right;
    missed.insert(missed.end(), 2, { 2, 0 });
    CHECK_EQ(rows({ { 60, 2 } }, missed), Rows{ 0 });                   // misses count at once
    CHECK_EQ(rows({ { 60, 18 } }, times(8, { { 3, 15 } })), Rows{ 0 }); // nothing is right after so many
}

TEST(cheaper_rows_pay_sooner) {
    for (const StepTimes & cheap : { StepTimes(Kernels::own, 1), { Kernels::gpu, 1 }, { Kernels::ggml, 8 } }) {
        for (const Pairs & runs : { Pairs{ { 2, 7 } }, times(9, { { 2, 5 } }) }) {
            CHECK_EQ(rows({ { 60, 2 } }, runs), Rows{ 0 });
            CHECK_EQ(rows({ { 60, 2 } }, runs, 64, INFINITY, cheap), Rows{ 7 });
        }
    }
}

TEST(rows_go_where_they_pay) {
    const Rows found = rows({ { 40, 16 }, { 40, 1 } }, GOOD);
    CHECK(found[0] > 0 && found[1] == 0);
    const Rows narrow = rows({ { 40, 16 }, { 40, 16 } }, GOOD, 10);
    CHECK_EQ(narrow[0] + narrow[1], 7u);
    CHECK_EQ(rows(times(4, { { 15, 16 } }), GOOD), Rows(4, 7));
    const Rows one = rows({ { 40, 16 }, { 0, 0 } }, GOOD);
    CHECK(one[0] + one[1] >= 7);
    CHECK_EQ(rows({ { 40, 16 }, { 0, 0 } }, GOOD, 64, 1.25), Rows{ 0, 0 }); // others would wait
}

} // namespace tgr
