// Parses GBNF, the text of a grammar, into rules. The vocabulary is known only through a function that finds a token by
// its text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

// Most bytes of a grammar. The time to read it, and the size of the result, are linear in them.
inline constexpr size_t GRAMMAR_BYTES = 1 << 18;

struct GrammarSymbol {
    enum Kind : uint8_t { END, CHARS, TOKEN, RULE, REPEAT };

    static constexpr uint32_t NO_LIMIT = UINT32_MAX;

    Kind     kind    = END;
    bool     negated = false; // CHARS, TOKEN: everything else
    uint32_t value   = 0;     // CHARS: the first range; TOKEN: the token; RULE, REPEAT: the rule
    uint32_t least   = 0;     // CHARS: the number of ranges; REPEAT: of times
    uint32_t most    = 0;     // CHARS: how many of ASCII's printable characters match; REPEAT: of times
};

struct GrammarRules {
    using Range = std::pair<uint32_t, uint32_t>; // code points, both ends included

    std::vector<GrammarSymbol>         symbols; // sequences, with an END after each
    std::vector<Range>                 ranges;  // ranges of a symbol are sorted and apart
    std::vector<std::vector<uint32_t>> rules;   // first symbols of each rule's alternatives
    uint32_t                           root = 0;
};

// Reads a grammar. `token_of` finds the token that is written so, or returns a negative number. Throws ArgumentError
// for what is no grammar, and for left recursion, with which no text could be read.
GrammarRules parse_gbnf(const std::string & text, const std::function<int32_t(const std::string &)> & token_of);

// Marks the rules that match the empty text. (left_recursion.cpp)
std::vector<bool> nullable_rules(const GrammarRules & grammar);

// Whether a rule begins with itself and something follows it there: it could be expanded without end.
bool is_left_recursive(const GrammarRules & grammar, const std::vector<bool> & nullable);

} // namespace tgr
