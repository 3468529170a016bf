#include "constrain/gbnf.h"

#include "base/errors.h"
#include "base/log.h"

#include <algorithm>
#include <unordered_map>

namespace tgr {

namespace {

using Kind   = GrammarSymbol::Kind;
using Ranges = std::vector<GrammarRules::Range>;

constexpr int      MOST_NESTED  = 500;  // groups: the parser follows them by recursion
constexpr uint32_t MOST_REPEATS = 2000; // that a repetition demands; it may allow more
constexpr size_t   TOKEN_BYTES  = 256;  // of a token's text

template <class... Why> [[noreturn]] void fail(const Why &... why) {
    throw ArgumentError("the grammar does not parse (", why..., "); check it against GBNF and give it a rule 'root'");
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}

class Parser {
public:
    Parser(const std::string & text, const std::function<int32_t(const std::string &)> & token_of) :
        pos_(text.c_str()),
        end_(pos_ + text.size()),
        token_of_(token_of) {}

    GrammarRules parse() {
        space(true);
        while (pos_ < end_) {
            rule();
        }
        for (const auto & [name, id] : ids_) {
            if (out_.rules[id].empty()) {
                fail("Undefined rule identifier '", printable(name), "'");
            }
        }
        const auto root = ids_.find("root");
        if (root == ids_.end()) {
            fail("the grammar does not contain a 'root' symbol");
        }
        out_.root = root->second;
        return std::move(out_);
    }

private:
    const char *                                        pos_; // a NUL stands at the end
    const char *                                        end_;
    const std::function<int32_t(const std::string &)> & token_of_;
    GrammarRules                                        out_;
    std::unordered_map<std::string, uint32_t>           ids_;
    int                                                 nested_ = 0;

    using Sequence = std::vector<GrammarSymbol>;

    [[noreturn]] void expected(const std::string & what) const {
        fail(pos_ < end_ ? "expecting " + what + " at " + printable(std::string(pos_, std::min(pos_ + 40, end_)))
                         : "unexpected end of input, expecting " + what);
    }

    void take(const char * token) {
        const std::string wanted = token;
        if (size_t(end_ - pos_) < wanted.size() || wanted.compare(0, wanted.size(), pos_, wanted.size()) != 0) {
            expected(wanted);
        }
        pos_ += wanted.size();
    }

    void space(bool newlines) {
        while (*pos_ == ' ' || *pos_ == '\t' || *pos_ == '#' || (newlines && (*pos_ == '\r' || *pos_ == '\n'))) {
            if (*pos_ != '#') {
                ++pos_;
                continue;
            }
            while (pos_ < end_ && *pos_ != '\r' && *pos_ != '\n') {
                ++pos_;
            }
        }
    }

    uint32_t new_rule() {
        out_.rules.emplace_back();
        return uint32_t(out_.rules.size() - 1);
    }

    uint32_t name() {
        const char * begin = pos_;
        while (is_word(*pos_)) {
            ++pos_;
        }
        if (pos_ == begin) {
            expected("name");
        }
        const auto [found, fresh] = ids_.emplace(std::string(begin, pos_), uint32_t(out_.rules.size()));
        return fresh ? new_rule() : found->second;
    }

    void rule() {
        const uint32_t id = name();
        space(false);
        take("::=");
        space(true);
        out_.rules[id] = alternatives();
        if (*pos_ == '\r' || *pos_ == '\n') {
            space(true);
        } else if (pos_ < end_) {
            expected("newline or end");
        }
    }

    uint32_t append(const Sequence & sequence) {
        const uint32_t begin = uint32_t(out_.symbols.size());
        out_.symbols.insert(out_.symbols.end(), sequence.begin(), sequence.end());
        out_.symbols.emplace_back();
        return begin;
    }

    std::vector<uint32_t> alternatives() {
        std::vector<uint32_t> found;
        while (true) {
            found.push_back(append(sequence()));
            if (*pos_ != '|') {
                return found;
            }
            ++pos_;
            space(true);
        }
    }

    // Items, each with what repeats it.
    Sequence sequence() {
        Sequence out;
        size_t   item = 0; // where the last one begins
        for (; pos_ < end_; space(nested_ > 0)) {
            const char c = *pos_;
            if (c == '*' || c == '+' || c == '?' || c == '{') {
                if (item == out.size()) {
                    expected("preceding item to */+/?/{");
                }
                const auto [least, most] = times();
                repeat(out, item, least, most);
                continue;
            }
            item = out.size();
            if (c == '"') {
                literal(out);
            } else if (c == '[') {
                out.push_back(char_class());
            } else if (c == '.') {
                ++pos_;
                out.push_back(chars({ { 0, UINT32_MAX } }, false));
            } else if (c == '<' || c == '!') {
                out.push_back(token());
            } else if (c == '(') {
                out.push_back(group());
            } else if (is_word(c)) {
                out.push_back({ Kind::RULE, false, name(), 0, 0 });
            } else {
                break;
            }
        }
        return out;
    }

    GrammarSymbol group() {
        if (++nested_ > MOST_NESTED) {
            fail("it nests more than ", MOST_NESTED, " parentheses; name parts of it as rules");
        }
        ++pos_;
        space(true);
        const uint32_t id = new_rule();
        auto           of = alternatives();
        out_.rules[id]    = std::move(of);
        take(")");
        --nested_;
        return { Kind::RULE, false, id, 0, 0 };
    }

    uint32_t number() {
        if (!is_digit(*pos_)) {
            expected("an int");
        }
        uint64_t value = 0;
        for (; is_digit(*pos_); ++pos_) {
            value = std::min<uint64_t>(value * 10 + uint64_t(*pos_ - '0'), UINT32_MAX);
        }
        return uint32_t(value);
    }

    std::pair<uint32_t, uint32_t> times() {
        switch (*pos_++) {
        case '*':
            return { 0, GrammarSymbol::NO_LIMIT };
        case '+':
            return { 1, GrammarSymbol::NO_LIMIT };
        case '?':
            return { 0, 1 };
        }
        space(nested_ > 0);
        const uint32_t least = number();
        uint32_t       most  = least;
        space(nested_ > 0);
        if (*pos_ == ',') {
            ++pos_;
            space(nested_ > 0);
            most = is_digit(*pos_) ? number() : GrammarSymbol::NO_LIMIT;
            space(nested_ > 0);
        }
        take("}");
        if (least > MOST_REPEATS) {
            fail("one of its repetitions demands more than ", MOST_REPEATS, " repetitions; demand fewer");
        }
        if (most < least) {
            fail("a repetition {", least, ",", most, "} ends before it begins");
        }
        return { least, most };
    }

    // What follows `item` in the sequence becomes a rule, which is repeated.
    void repeat(Sequence & out, size_t item, uint32_t least, uint32_t most) {
        uint32_t id = out[item].value;
        if (out.size() != item + 1 || out[item].kind != Kind::RULE) {
            id             = new_rule();
            out_.rules[id] = { append(Sequence(out.begin() + ptrdiff_t(item), out.end())) };
        }
        out.resize(item);
        out.push_back({ Kind::REPEAT, false, id, least, most });
    }

    void literal(Sequence & out) {
        ++pos_;
        while (*pos_ != '"') {
            const uint32_t c = character();
            out.push_back(chars({ { c, c } }, false));
        }
        ++pos_;
    }

    GrammarSymbol char_class() {
        ++pos_;
        const bool negated = *pos_ == '^';
        pos_ += negated;
        Ranges found;
        while (*pos_ != ']') {
            const uint32_t low  = character();
            uint32_t       high = low;
            if (pos_[0] == '-' && pos_[1] != ']') {
                ++pos_;
                high = character();
            }
            found.emplace_back(low, high);
        }
        ++pos_;
        if (found.empty()) {
            fail("a character class is empty");
        }
        return chars(std::move(found), negated);
    }

    GrammarSymbol chars(Ranges ranges, bool negated) {
        std::sort(ranges.begin(), ranges.end());
        const uint32_t first = uint32_t(out_.ranges.size());
        for (const auto & [low, high] : ranges) {
            if (low > high) {
                continue;
            }
            if (out_.ranges.size() > first && low <= uint64_t(out_.ranges.back().second) + 1) {
                out_.ranges.back().second = std::max(out_.ranges.back().second, high);
            } else {
                out_.ranges.emplace_back(low, high);
            }
        }
        uint32_t printable = 0;
        for (size_t i = first; i < out_.ranges.size(); ++i) {
            const uint32_t low = std::max(out_.ranges[i].first, 32u), high = std::min(out_.ranges[i].second, 126u);
            printable += high >= low ? high - low + 1 : 0;
        }
        return { Kind::CHARS, negated, first, uint32_t(out_.ranges.size()) - first,
                 negated ? 95 - printable : printable };
    }

    GrammarSymbol token() {
        const bool negated = *pos_ == '!';
        pos_ += negated;
        const char * begin = pos_;
        take("<");
        if (*pos_ == '[') {
            ++pos_;
            const uint32_t id = number();
            if (id == UINT32_MAX) {
                fail("a token's number is too big");
            }
            take("]>");
            return { Kind::TOKEN, negated, id, 0, 0 };
        }
        const char * close = std::find(pos_, std::min(end_, pos_ + TOKEN_BYTES), '>');
        if (*close != '>') {
            expected("a token's text and >");
        }
        pos_                   = close + 1;
        const std::string text = { begin, pos_ };
        const int32_t     id   = token_of_(text);
        if (id < 0) {
            fail("'", printable(text), "' is no token");
        }
        return { Kind::TOKEN, negated, uint32_t(id), 0, 0 };
    }

    uint32_t hex(int n) {
        uint32_t value = 0;
        for (; n > 0; --n, ++pos_) {
            const char c = *pos_;
            if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) {
                expected(concat(n, " more hex digits"));
            }
            value = value << 4 | uint32_t(is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
        }
        return value;
    }

    // One character of a literal or a class, as a code point.
    uint32_t character() {
        if (pos_ >= end_) {
            fail("unexpected end of input in a text or a character class");
        }
        if (*pos_ == '\\') {
            ++pos_;
            const char c = *pos_;
            pos_ += pos_ < end_;
            switch (c) {
            case 'x':
                return hex(2);
            case 'u':
                return hex(4);
            case 'U':
                return hex(8);
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'n':
                return '\n';
            case '\\':
            case '"':
            case '[':
            case ']':
            case '-':
                return uint32_t(c);
            }
            pos_ -= 2;
            expected("a known escape");
        }
        const uint8_t first = uint8_t(*pos_++);
        const int     more  = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        uint32_t      value = more > 0 ? first & (0x3Fu >> more) : first;
        for (int i = 0; i < more && pos_ < end_; ++i) {
            value = value << 6 | (uint8_t(*pos_++) & 0x3Fu);
        }
        return value;
    }
};

} // namespace

GrammarRules parse_gbnf(const std::string & text, const std::function<int32_t(const std::string &)> & token_of) {
    if (text.find('\0') != std::string::npos) {
        throw ArgumentError("the grammar holds a NUL character; remove it");
    }
    if (text.size() > GRAMMAR_BYTES) {
        throw ArgumentError("the grammar has ", text.size(), " bytes, but may have ", GRAMMAR_BYTES, "; shorten it");
    }
    GrammarRules grammar  = Parser(text, token_of).parse();
    const auto   nullable = nullable_rules(grammar);
    for (auto & symbol : grammar.symbols) {
        if (symbol.kind == Kind::REPEAT && nullable[symbol.value]) {
            symbol.least = 0; // the others may be empty
        }
    }
    if (is_left_recursive(grammar, nullable)) {
        fail("left recursion: a rule begins with itself");
    }
    return grammar;
}

} // namespace tgr
