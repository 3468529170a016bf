// A grammar's text, and what it reads, compared with the same grammar matched plainly, on short texts.
#include "constrain/grammar.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <memory>
#include <set>

namespace tgr {

static GrammarRules rules_of(const std::string & text) {
    return parse_gbnf(text, [](const std::string & token) { return token == "<end>" ? 7 : -1; });
}

namespace {

// A part of a grammar: what it is written as, and where it may end in a text in which it begins at `at`.
struct Part {
    std::string                                                          text;
    std::function<std::set<size_t>(const std::string & text, size_t at)> ends;
};

// Where it may end when it begins at one of these places.
std::set<size_t> after(const Part & part, const std::string & text, const std::set<size_t> & begins) {
    std::set<size_t> all;
    for (const size_t begin : begins) {
        all.merge(part.ends(text, begin));
    }
    return all;
}

const std::vector<std::string> LETTERS{ "a", "b", "c", "é" };

Part some_part(test::Draw & draw, int depth, const std::vector<Part> & rules);

Part letters(test::Draw & draw) {
    const std::string word = test::joined(draw.some_of(LETTERS, draw.below(3)));
    return { '"' + word + '"', [=](const std::string & text, size_t at) {
                return text.compare(at, word.size(), word) == 0 ? std::set{ at + word.size() } : std::set<size_t>();
            } };
}

Part one_letter(test::Draw & draw) {
    const bool negated = draw.below(3) == 0;
    const auto some    = draw.some_of(LETTERS, 2);
    return { (negated ? "[^" : "[") + test::joined(some) + "]", [=](const std::string & text, size_t at) {
                for (const auto & letter : LETTERS) {
                    const bool is_one = std::count(some.begin(), some.end(), letter) > 0;
                    if (text.compare(at, letter.size(), letter) == 0 && is_one != negated) {
                        return std::set{ at + letter.size() };
                    }
                }
                return std::set<size_t>();
            } };
}

Part repeated(test::Draw & draw, const Part & part) {
    const size_t      least = draw.below(3), most = least + draw.below(3);
    const std::string times = "{" + std::to_string(least) + "," + std::to_string(most) + "}";
    struct Times {
        std::string text;
        size_t      least, most;
    };
    const Times one = draw.one_of(std::vector<Times>{
        { "*", 0, 7 }, { "+", 1, 7 }, { "?", 0, 1 }, { times, least, most }, { "{2}", 2, 2 }, { "{1,}", 1, 7 } });
    return { part.text + one.text, [=](const std::string & text, size_t at) {
                std::set<size_t> now{ at }, all;
                for (size_t n = 0; n <= one.most && !now.empty(); ++n) {
                    if (n >= one.least) {
                        all.insert(now.begin(), now.end());
                    }
                    now = after(part, text, now);
                }
                return all;
            } };
}

Part in_a_row(test::Draw & draw, int depth, const std::vector<Part> & rules) {
    std::vector<Part> parts;
    std::string       written;
    for (size_t n = draw.from(1, 4); n > 0; --n) {
        parts.push_back(some_part(draw, depth, rules));
        written += (written.empty() ? "" : " ") + parts.back().text;
    }
    return { written, [=](const std::string & text, size_t at) {
                std::set<size_t> now{ at };
                for (const Part & part : parts) {
                    now = after(part, text, now);
                }
                return now;
            } };
}

Part alternatives(test::Draw & draw, int depth, const std::vector<Part> & rules) {
    std::vector<Part> parts;
    std::string       written;
    for (size_t n = draw.from(1, 4); n > 0; --n) {
        parts.push_back(in_a_row(draw, depth, rules));
        written += (written.empty() ? "" : " | ") + parts.back().text;
    }
    return { written, [=](const std::string & text, size_t at) {
                std::set<size_t> all;
                for (const Part & part : parts) {
                    all.merge(part.ends(text, at));
                }
                return all;
            } };
}

Part some_part(test::Draw & draw, int depth, const std::vector<Part> & rules) {
    const size_t kind = draw.below(depth > 0 ? 5 : 3);
    if (kind == 0) {
        return letters(draw);
    }
    if (kind < 3) {
        return rules.empty() || kind == 1 ? one_letter(draw) : draw.one_of(rules);
    }
    Part group = alternatives(draw, depth - 1, rules);
    group.text = "(" + group.text + ")";
    return kind == 3 ? group : repeated(draw, group);
}

} // namespace

TEST(a_grammar_reads_the_texts_that_a_plain_match_allows) {
    test::Draw       draw(1);
    size_t           n_whole = 0;
    const TokenTexts end(std::vector<std::string>{ "" });
    end.prepare();
    for (int i = 0; i < 150; ++i) {
        std::string       text;
        std::vector<Part> rules;
        for (const std::string name : { "one", "two" }) {
            const Part rule = alternatives(draw, 1, rules);
            text += name + " ::= " + rule.text + "\n";
            rules.push_back({ name, rule.ends });
        }
        const Part    root = alternatives(draw, 2, rules);
        const Grammar grammar(std::make_shared<const GrammarRules>(rules_of(text + "root ::= " + root.text)),
                              GRAMMAR_WORK);
        for (int k = 0; k < 100; ++k) {
            const std::string letters = test::joined(draw.some_of(LETTERS, draw.below(7)));
            const bool        whole   = root.ends(letters, 0).count(letters.size()) > 0;
            Grammar           copy    = grammar;
            CHECK_EQ(copy.accept(letters) && copy.accept(end, 0), whole);
            n_whole += whole;
        }
    }
    CHECK(n_whole > 1500 && n_whole < 12'000);
}

TEST(what_the_text_of_a_grammar_may_hold) {
    const auto reads = [](const std::string & rules, const std::string & text) {
        return Grammar(std::make_shared<const GrammarRules>(rules_of(rules)), GRAMMAR_WORK).accept(text);
    };
    CHECK(reads("root ::= ( # a comment\n \"a\"\n | \"b\" ) [\\]\\-\\\\x-]{2}\n\n# the end", "b]-"));
    CHECK(reads("root ::= \"\\x41\\u00e9\\U0001f600\\t\\r\\n\\\"\\\\\"", "Aé😀\t\r\n\"\\"));
    CHECK(reads("root::=.+", "é"));
    CHECK(!reads("root ::= [a-c]", "d"));
    for (const char * too_long : { "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf8", "\xbf" }) {
        CHECK(!reads("root ::= .+", too_long)); // it has no such characters
    }
    CHECK_EQ(rules_of("root ::= <end> !<[3]>").symbols[0].value, 7u);
    CHECK(rules_of("root ::= <end> !<[3]>").symbols[1].negated);
    // each character has a bit less of its code than of its bytes; overlapping ranges are one
    const GrammarRules rules = rules_of("root ::= [c-eéa-da]");
    CHECK(rules.ranges == std::vector<GrammarRules::Range>{ { 'a', 'e' }, { 0xE9, 0xE9 } });
}

TEST(what_is_no_grammar_is_refused) {
    for (const char * text :
         { "", "x ::= \"a\"", "root ::= x", "root ::= \"a", "root ::= [a", "root ::= []", "root ::= (\"a\"",
           "root ::= *", "root ::= \"a\"{3,2}", "root ::= \"a\"{,2}", "root ::= \"\\q\"", "root ::= \"\\x4\"",
           "root ::= <none>", "root ::= <[99999999999]>", "root = \"a\"", "root ::= \"a\" ) \"b\"" }) {
        bool refused = false;
        try {
            rules_of(text);
        } catch (const std::invalid_argument &) {
            refused = true;
        }
        test::check(refused, text, __FILE__, __LINE__);
    }
}

TEST(a_grammar_of_left_recursion_is_found) {
    const auto recursive = [](const std::string & text) {
        try {
            rules_of(text);
            return false;
        } catch (const std::invalid_argument & error) {
            return std::string(error.what()).find("left recursion") != std::string::npos;
        }
    };
    CHECK(recursive("root ::= root \"a\" | \"b\""));
    CHECK(recursive("root ::= \"a\"? root \"b\" | \"c\""));
    CHECK(recursive("root ::= x root \"b\" | \"c\"\nx ::= \"\" | y*\ny ::= \"y\""));
    CHECK(recursive("root ::= x | \"c\"\nx ::= y \"x\"\ny ::= root"));
    CHECK(recursive("root ::= x\nx ::= x{2} | \"a\""));
    CHECK(!recursive("root ::= \"a\" root | \"b\""));
    CHECK(!recursive("root ::= root | \"b\""));
    CHECK(!recursive("root ::= x | \"b\"\nx ::= root | \"a\"")); // which adds nothing
    CHECK(!recursive("root ::= x root | \"b\"\nx ::= \"a\" x?"));
}

TEST(rules_that_match_the_empty_text_are_found) {
    test::Draw draw(2);
    for (int i = 0; i < 500; ++i) {
        const size_t n = draw.from(1, 7);
        GrammarRules rules;
        for (size_t rule = 0; rule < n; ++rule) {
            rules.rules.emplace_back();
            for (size_t alternative = draw.from(1, 3); alternative > 0; --alternative) {
                rules.rules[rule].push_back(uint32_t(rules.symbols.size()));
                for (size_t k = draw.below(3); k > 0; --k) {
                    const auto kind = draw.one_of<GrammarSymbol::Kind>(
                        { GrammarSymbol::CHARS, GrammarSymbol::RULE, GrammarSymbol::RULE, GrammarSymbol::REPEAT });
                    rules.symbols.push_back({ kind, false, uint32_t(draw.below(n)), uint32_t(draw.below(2)), 3 });
                }
                rules.symbols.emplace_back();
            }
        }
        std::vector<bool> plain(n);
        for (size_t round = 0; round <= n; ++round) {
            for (size_t rule = 0; rule < n; ++rule) {
                for (const uint32_t begin : rules.rules[rule]) {
                    const GrammarSymbol * at = &rules.symbols[begin];
                    while (
                        (at->kind == GrammarSymbol::REPEAT && at->least == 0) ||
                        ((at->kind == GrammarSymbol::RULE || at->kind == GrammarSymbol::REPEAT) && plain[at->value])) {
                        ++at;
                    }
                    plain[rule] = plain[rule] || at->kind == GrammarSymbol::END;
                }
            }
        }
        CHECK_EQ(nullable_rules(rules), plain);
    }
}

} // namespace tgr
