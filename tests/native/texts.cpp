// The texts of tokens, sorted and as a tree, compared with a look at every token.
#include "token_texts.h"

#include "check.h"
#include "draw.h"
#include "token_trie.h"

#include <algorithm>
#include <set>

namespace tgr {

static std::vector<std::string> some_texts(test::Draw & draw) {
    static const std::vector<std::string> PARTS{ "a", "b", "ab", "\xc3", "\xa9", " ", std::string(1, '\0'), "\xff" };
    std::vector<std::string>              texts;
    for (size_t n = draw.below(60); n > 0; --n) {
        texts.push_back(test::joined(draw.some_of(PARTS, draw.below(5))));
    }
    texts.push_back(std::string(TokenTrie::LONGEST, 'a'));
    texts.push_back(std::string(TokenTrie::LONGEST + 1, 'a'));
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

TEST(the_tree_of_tokens_has_what_a_scan_finds) {
    test::Draw draw(2);
    for (int i = 0; i < 100; ++i) {
        const auto        given = some_texts(draw);
        const TokenTexts  texts(given);
        const TokenTrie & trie = texts.trie();
        for (int k = 0; k < 100; ++k) {
            std::string begin = draw.one_of(given);
            begin.resize(draw.below(begin.size() + 1));
            begin += draw.below(3) > 0 ? "" : "b";
            uint32_t node = 0; // the root, which is NONE for a child
            for (size_t at = 0; at < begin.size() && (at == 0 || node != TokenTrie::NONE); ++at) {
                node = trie.child(node, uint8_t(begin[at]));
            }
            std::set<uint8_t>     bytes;
            std::set<llama_token> here;
            std::set<size_t>      lengths;
            bool                  begins = false;
            for (size_t token = 0; token < given.size(); ++token) {
                const std::string & text = given[token];
                if (!is_text(text) || text.size() > TokenTrie::LONGEST) {
                    continue;
                }
                if (text.compare(0, begin.size(), begin) == 0) {
                    begins = true;
                    if (text.size() > begin.size()) {
                        bytes.insert(uint8_t(text[begin.size()]));
                    } else {
                        here.insert(llama_token(token));
                    }
                }
                if (begin.compare(0, text.size(), text) == 0) {
                    lengths.insert(text.size());
                }
            }
            CHECK_EQ(begin.empty() || node != TokenTrie::NONE, begin.empty() || begins);
            std::vector<size_t> found;
            trie.each_beginning(begin, [&](size_t length) { found.push_back(length); });
            CHECK_EQ(found, std::vector<size_t>(lengths.begin(), lengths.end()));
            if (!begins) {
                continue;
            }
            const auto & [first_child, first_token, end_token, n_children, byte] = trie[node];
            const auto tokens                                                    = trie.tokens().begin();
            CHECK(std::set<llama_token>(tokens + first_token, tokens + end_token) == here);
            std::vector<uint8_t> children;
            for (uint32_t child = first_child; child < first_child + n_children; ++child) {
                children.push_back(trie[child].byte);
            }
            CHECK_EQ(children, std::vector<uint8_t>(bytes.begin(), bytes.end()));
            CHECK(begin.empty() || byte == uint8_t(begin.back()));
        }
    }
}

} // namespace tgr
