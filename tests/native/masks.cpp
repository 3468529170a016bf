// The mask of a grammar allows the tokens that the grammar reads one by one, whatever way it takes: by classes of
// characters, by states, or by stacks where the states are too many.
#include "check.h"
#include "constrain/grammar.h"
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace tgr {

using test::Draw;
using Texts = std::vector<std::string>;

static const std::string CHARACTER = R"~(
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt/] | "u" [0-9a-fA-F]{4}))~";

static const Texts GRAMMARS{
    R"~(root ::= "\"" char* "\"")~" + CHARACTER,
    R"~(root ::= "\"" char{0,40} "\"")~" + CHARACTER,
    R"~(root ::= ("\"" char{2,5} "\"")*)~" + CHARACTER,
    R"~(root ::= "\"" (char* "a" | [b-\u3000]{3} char) "\"")~" + CHARACTER,
    R"~(root ::= [^a]{0,3} [^b]* [\u00e0-\u4fff\U00010000-\U0001f640])~",
    R"~(root ::= [\u0080-\u00ff]* | [\u0800-\u0fff] [\U00010000-\U0010ffff]{2})~",
    R"~(root ::= [^\x00-\U0010ffff] | [a-\u0400]+)~",
    R"~(root ::= ([ -~] | [b-z\u00e0-\uffff]+)* <[97]>)~",
    R"~(root ::= !<[97]> [^"]* <[98]>{1,3})~",
    "root ::= [^x]{3} nowhere | [^y]{2}\nnowhere ::= nowhere",
    R"~(root ::= ([a-z]{1,3} [a-m]{0,4} ","?){0,30} "é")~",
    R"~(root ::= "a" root "a" | "b" root "b" | "c")~", // a state for every beginning
};

// All bytes first, so that a number names each, then parts of texts, some of which begin or end within a character.
static Texts some_tokens(Draw & draw) {
    static const Texts PARTS{ "a",     "b", "c",  "xy", "the ", " ",      "\n",     "\"",     "\":", "\", ", "\\",
                              "\\u00", "é", "語", "😀", "\x7f", "\u07ff", "\u0800", "\uffff", "0f",  "Z" };
    Texts              tokens;
    for (int byte = 0; byte < 256; ++byte) {
        tokens.emplace_back(1, char(byte));
    }
    for (int i = 0; i < 300; ++i) {
        const std::string text  = test::joined(draw.some_of(PARTS, draw.from(1, 6)));
        const size_t      begin = draw.below(4) == 0, end = text.size() - (draw.below(4) == 0);
        tokens.push_back(begin < end ? text.substr(begin, end - begin) : "?");
    }
    for (const char * no_character :
         { "\xed\xa0\x80", "\xc0\x80", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80" }) {
        tokens.push_back(no_character);
    }
    return tokens;
}

static std::string some_class(Draw & draw) {
    static const Texts ENDS{ " ", "\"",    "0",       "9", "Z",       "a",       "b",  "m",          "z",
                             "~", "\\x7f", "\\u0080", "é", "\\u07ff", "\\u0800", "語", "\\U0001f600" };
    std::string        ranges = draw.below(2) > 0 ? "[" : "[^";
    for (size_t n = draw.from(1, 4); n > 0; --n) {
        const size_t a = draw.below(ENDS.size()), b = draw.below(ENDS.size());
        ranges += ENDS[std::min(a, b)] + "-" + ENDS[std::max(a, b)];
    }
    return ranges + "]";
}

// Rules that name those after them, or any one behind a character.
static std::string some_grammar(Draw & draw) {
    const size_t n     = draw.from(1, 5);
    std::string  rules = "root ::= r0";
    const auto   name  = [&](size_t first) { return "r" + std::to_string(draw.from(first, n)); };
    for (size_t i = 0; i < n; ++i) {
        rules += "\nr" + std::to_string(i) + " ::=";
        for (size_t n_left = draw.from(1, 4); n_left > 0; --n_left) {
            for (size_t items = draw.from(1, 4); items > 0; --items) {
                const size_t kind = draw.below(4);
                rules += " ";
                rules += kind == 0 ? draw.one_of<std::string>({ "\"a\"", "\"the \"", "\"\\\"\"", "\"é\"", "\"語x\"" })
                         : kind == 1 && i + 1 < n ? name(i + 1)
                         : kind == 2              ? "(" + some_class(draw) + " " + name(0) + " | \"b\")"
                                                  : some_class(draw);
                rules += draw.one_of<std::string>({ "", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,50}" });
            }
            rules += n_left > 1 ? " |" : "";
        }
    }
    return rules;
}

// How many masks of a random text of n tokens at most were compared. An empty text ends the vocabulary.
static size_t compared(const std::string & rules, Texts tokens, Draw & draw, size_t n) {
    tokens.emplace_back();
    const TokenTexts texts(tokens);
    texts.prepare();
    Grammar grammar(std::make_shared<const GrammarRules>(parse_gbnf(rules, [](const std::string &) { return -1; })),
                    GRAMMAR_WORK);
    for (size_t i = 0; i < n; ++i) {
        std::vector<float>       logits(tokens.size());
        std::vector<llama_token> going_on;
        grammar.mask(texts, logits.data());
        for (llama_token token = 0; token < texts.n_tokens(); ++token) {
            Grammar    copy    = grammar;
            const bool allowed = !std::isinf(logits[size_t(token)]);
            test::check(allowed == copy.accept(texts, token), rules + "\n" + tokens[size_t(token)], __FILE__, __LINE__);
            if (allowed && !texts.ends(token)) {
                going_on.push_back(token);
            }
        }
        if (going_on.empty()) {
            return i + 1;
        }
        CHECK(grammar.accept(texts, draw.one_of(going_on)));
    }
    return n;
}

TEST(a_mask_allows_what_can_be_read) {
    Draw draw(1);
    for (const auto & grammar : GRAMMARS) {
        size_t n = 0;
        for (int i = 0; i < 3; ++i) {
            Texts tokens = some_tokens(draw);
            for (const size_t length : { 39, 40, 41, 254, 255, 256, 300 }) {
                for (const char * one : { " ", "x", "é" }) {
                    const std::string text = test::joined(Texts(length, one));
                    tokens.insert(tokens.end(), { text, text + "\"" });
                }
            }
            n += compared(grammar, tokens, draw, 12);
        }
        CHECK(n > 3);
    }
}

TEST(a_mask_of_random_grammars_allows_what_can_be_read) {
    Draw   draw(2);
    size_t n = 0;
    for (int i = 0; i < 40; ++i) {
        try {
            n += compared(some_grammar(draw), some_tokens(draw), draw, 8);
        } catch (const GrammarTooCostly &) {
        } // ambiguous without end
    }
    CHECK(n > 100);
}

TEST(a_mask_of_too_many_states_allows_what_can_be_read) {
    Draw  draw(3);
    Texts tokens{ "a", "b", "c", "aca", "bcb" };
    for (int i = 0; i < 3000; ++i) {
        const std::string begins = test::joined(draw.some_of<std::string>({ "a", "b" }, draw.from(1, 18)));
        const size_t      n      = std::min<size_t>(3, begins.size());
        tokens.push_back(
            begins + draw.one_of<std::string>(
                         { "", "", "c", "c" + std::string(begins.rbegin(), begins.rbegin() + ptrdiff_t(n)), "ca" }));
    }
    CHECK(compared(GRAMMARS.back(), tokens, draw, 6) > 1);
}

} // namespace tgr
