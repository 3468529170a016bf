// The sorted texts of tokens, compared with a look at every token.
#include "constrain/token_texts.h"

#include "check.h"
#include "draw.h"

#include <algorithm>

namespace tgr {

static std::vector<std::string> some_texts(test::Draw & draw) {
    static const std::vector<std::string> PARTS{ "a", "b", "ab", "\xc3", "\xa9", " ", std::string(1, '\0'), "\xff" };
    std::vector<std::string>              texts;
    for (size_t n = draw.below(60); n > 0; --n) {
        texts.push_back(test::joined(draw.some_of(PARTS, draw.below(5))));
    }
    texts.push_back(std::string(300, 'a'));
    return texts;
}

// Whether a grammar can read it, and a reply holds it.
static bool is_text(const std::string & text) {
    return !text.empty() && text.find('\0') == text.npos;
}

TEST(the_texts_of_tokens_are_sorted) {
    test::Draw draw(1);
    for (int i = 0; i < 100; ++i) {
        const auto       given = some_texts(draw);
        const TokenTexts texts(given);
        texts.prepare();
        std::vector<std::string> expected, sorted;
        std::vector<llama_token> ends;
        for (llama_token token = 0; token < texts.n_tokens(); ++token) {
            const std::string & text = given[size_t(token)];
            CHECK_EQ(texts.text(token), is_text(text) ? text : "");
            CHECK_EQ(texts.is_visible(token), is_text(text));
            CHECK_EQ(texts.ends(token), text.empty());
            if (is_text(text)) {
                expected.push_back(text);
            }
            if (text.empty()) {
                ends.push_back(token);
            }
        }
        std::sort(expected.begin(), expected.end());
        for (size_t k = 0; k < texts.order().size(); ++k) {
            sorted.push_back(given[size_t(texts.order()[k])]);
            CHECK_EQ(texts.sorted_text(k), sorted[k]);
            const std::string before = k > 0 ? sorted[k - 1] : "";
            size_t            n      = 0;
            while (n < std::min(before.size(), sorted[k].size()) && before[n] == sorted[k][n]) {
                ++n;
            }
            CHECK_EQ(texts.shared()[k], n);
        }
        CHECK_EQ(sorted, expected);
        CHECK_EQ(texts.end_tokens(), ends);
        CHECK(texts.serial() != TokenTexts(given).serial());
    }
}

} // namespace tgr
