#include "constrain/trigger.h"

#include "check.h"
#include "draw.h"

namespace tgr {

static constexpr size_t NONE = std::string::npos;

// Where the grammar begins when a text is read in such pieces; NONE where it does not.
static size_t begin_of(TriggerSearch & search, const std::vector<std::string> & pieces) {
    size_t n_read = 0;
    for (const auto & piece : pieces) {
        n_read += piece.size();
        if (const auto found = search.read(piece)) {
            return n_read - found->size();
        }
    }
    return NONE;
}

static std::vector<std::string> pieces_of(test::Draw & draw, const std::string & text) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
        pieces.push_back(text.substr(at, draw.from(1, 6)));
    }
    return pieces;
}

static const TriggerParams WORDS{ { "<a", "<b>", "call" }, {}, "[t]", { "[/t]", "[u]" } };

// The first word outside of the thinking, by looking at every place.
static size_t plain_begin(const std::string & text, bool thinks) {
    const auto stands = [&](const std::string & word, size_t at) { return text.compare(at, word.size(), word) == 0; };
    for (size_t at = 0; at < text.size(); ++at) {
        for (const auto & word : WORDS.words) {
            if (!thinks && stands(word, at)) {
                return at;
            }
        }
        thinks = thinks ? !stands("[/t]", at) && !stands("[u]", at) : stands("[t]", at);
    }
    return NONE;
}

TEST(a_trigger_is_found_outside_of_the_thinking_in_whatever_pieces) {
    const std::vector<std::string> parts{
        "[t]", "[t]", "[/t]", "[u]", "<a", "<b>", "call", "<", "[", "cal", "x ", "t]"
    };
    test::Draw draw(1);
    size_t     n_found = 0;
    for (int i = 0; i < 3000; ++i) {
        const std::string text   = test::joined(draw.some_of(parts, draw.below(8)));
        const bool        thinks = draw.below(4) == 0;
        TriggerSearch     search(WORDS, thinks ? "[t] [/t] [t] x" : "[t] [u]");
        const size_t      begin = plain_begin(text, thinks);
        CHECK_EQ(begin_of(search, pieces_of(draw, text)), begin);
        n_found += begin != NONE;
    }
    CHECK(n_found > 1000 && n_found < 2500);
}

TEST(a_pattern_is_found_once_it_matches) {
    const auto begin = [](const std::string & pattern, const std::string & text) {
        TriggerSearch            search({ {}, { pattern }, "", {} }, "");
        std::vector<std::string> bytes;
        for (const char byte : text) {
            bytes.emplace_back(1, byte);
        }
        return begin_of(search, bytes);
    };
    CHECK_EQ(begin("x(yz)", "aaxyzb"), 3u); // its first group
    CHECK_EQ(begin("x+y", "aaxxy"), 2u);
    CHECK_EQ(begin("(x)?y", "aay"), 2u); // a group that is empty is none
    CHECK_EQ(begin("^\\s+to$", " to"), 0u);
    CHECK_EQ(begin("^\\s+to$", "x to"), NONE);
    CHECK_EQ(begin("ab?c|d", "xd"), 1u);
    CHECK_EQ(begin("ab?c", "xac"), 1u);
    CHECK_EQ(begin("<\\|s\\|>", "a<|s|>"), 1u);
}

TEST(a_trigger_is_found_after_a_long_text) {
    test::Draw        draw(2);
    const std::string text = std::string(10 * TRIGGER_BYTES, 'x') + "[t]" + std::string(10 * TRIGGER_BYTES, 'y') + "<a";
    TriggerSearch     words(WORDS, ""), pattern({ {}, { "x\\[t" }, "", {} }, "");
    CHECK_EQ(begin_of(words, pieces_of(draw, text + "[u]zz<a")), text.size() + 5);
    CHECK(words.state().text.size() < 10 * TRIGGER_BYTES);
    CHECK_EQ(begin_of(pattern, pieces_of(draw, text)), 10 * TRIGGER_BYTES - 1);
}

TEST(a_search_for_a_trigger_goes_back_and_on) {
    TriggerSearch search(WORDS, "");
    CHECK(!search.read("x<"));
    const auto before = search.state();
    CHECK_EQ(search.read("a1").value_or(""), "<a1");
    search.pass_over(3); // it was none
    CHECK_EQ(search.read("y<a2").value_or(""), "<a2");
    search.go_back(before);
    CHECK(!search.read("[t]a"));
    search.go_back(before);
    CHECK_EQ(search.read("b>").value_or(""), "<b>");
}

TEST(a_trigger_that_is_none_is_refused) {
    const std::vector<TriggerParams> all{
        { { "" }, {}, "", {} },         { {}, { "(" }, "", {} },
        { {}, { "" }, "", {} },         { { std::string(TRIGGER_BYTES + 1, 'x') }, {}, "", {} },
        { { "a" }, {}, "[t]", { "" } },
    };
    for (const auto & params : all) {
        bool refused = false;
        try {
            TriggerSearch(params, "");
        } catch (const std::invalid_argument &) {
            refused = true;
        }
        CHECK(refused);
    }
}

} // namespace tgr
