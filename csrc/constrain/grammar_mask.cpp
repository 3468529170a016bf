#include "constrain/grammar.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tgr {

using Kind = GrammarSymbol::Kind;

//
// by classes
//

// The tokens of this many characters at most, all of one class, are allowed. Most of a vocabulary is so within a text.
struct Grammar::Run {
    const uint8_t * lengths = nullptr; // of the tokens in their order, in characters; 0 = it has others
    uint32_t        most    = 0;

    bool allows(size_t i) const { return most > 0 && uint32_t(lengths[i]) - 1 < most; }
};

// The tokens that consist of the characters of a class. A thread keeps those of the classes that it used last.
class Grammar::ClassTokens {
public:
    static constexpr size_t   N_KEPT      = 8; // each a byte for each token of the vocabulary
    static constexpr uint32_t MOST_RANGES = 64;
    static constexpr uint32_t LEAST       = 48; // printable characters of ASCII: a smaller class has few tokens

    static const uint8_t * lengths(const Grammar & grammar, const TokenTexts & texts, const GrammarSymbol & symbol) {
        thread_local std::array<ClassTokens, N_KEPT> kept; // that used last is the first
        const auto begin = grammar.rules_->ranges.begin() + symbol.value, end = begin + symbol.least;
        auto       found = std::find_if(kept.begin(), kept.end(), [&](const ClassTokens & one) {
            return one.serial_ == texts.serial() && one.negated_ == symbol.negated &&
                   std::equal(begin, end, one.ranges_.begin(), one.ranges_.end());
        });
        if (found == kept.end()) {
            --found;
            found->serial_  = texts.serial();
            found->negated_ = symbol.negated;
            found->ranges_.assign(begin, end);
            found->count(grammar, texts, symbol);
        }
        std::rotate(kept.begin(), found, found + 1);
        return kept[0].lengths_.data();
    }

private:
    uint64_t                         serial_  = 0; // of the texts
    bool                             negated_ = false;
    std::vector<GrammarRules::Range> ranges_;
    std::vector<uint8_t>             lengths_;

    void count(const Grammar & grammar, const TokenTexts & texts, const GrammarSymbol & symbol) {
        struct Place {
            Character character;
            uint32_t  n = 0; // characters
        };
        std::array<bool, 128> ascii;
        for (uint32_t c = 0; c < ascii.size(); ++c) {
            ascii[c] = grammar.matches(symbol, c);
        }
        const size_t       n = texts.order().size();
        std::vector<Place> places(1); // after each byte of the token
        lengths_.assign(n, 0);
        for (size_t i = 0; i < n; ++i) {
            const std::string_view text = texts.sorted_text(i);
            if (texts.shared()[i] >= places.size()) {
                continue; // it begins with what the one before has and the class has not
            }
            places.resize(texts.shared()[i] + 1);
            Place now = places.back();
            while (places.size() <= text.size() && now.character.read(uint8_t(text[places.size() - 1]))) {
                const bool     whole = now.character.n_more == 0;
                const uint32_t c     = now.character.value;
                if (whole && !(c < 128 ? ascii[c] : grammar.matches(symbol, c))) {
                    break;
                }
                now.n += whole;
                places.push_back(now);
            }
            if (places.size() > text.size() && now.character.n_more == 0 && now.n <= UINT8_MAX) {
                lengths_[i] = uint8_t(now.n);
            }
        }
    }
};

// How many characters of its uppermost symbol a stack reads one after another, 255 at most.
uint32_t Grammar::repeats(uint32_t stack) {
    const uint32_t symbol = nodes_[stack].symbol;
    const auto     before = ptrdiff_t(stacks_.size());
    uint32_t       n      = 0;
    while (stack != 0 && n < UINT8_MAX) {
        spend(1);
        ++expansion_;
        expand(this->stack(symbol + 1, nodes_[stack].below));
        const auto begin = stacks_.begin() + before;
        n += begin < stacks_.end(); // else that character leads nowhere
        const auto next =
            std::find_if(begin, stacks_.end(), [&](uint32_t one) { return one != 0 && nodes_[one].symbol == symbol; });
        const uint32_t last = stack;
        stack               = next < stacks_.end() ? *next : 0;
        stacks_.resize(size_t(before));
        if (stack == last) {
            return UINT8_MAX;
        }
    }
    return n;
}

Grammar::Run Grammar::run(const TokenTexts & texts) {
    uint32_t widest = 0, most = 0;
    for (size_t i = 0; i < now_.end && now_.character.n_more == 0; ++i) {
        const GrammarSymbol & symbol = rules_->symbols[nodes_[stacks_[i]].symbol];
        if (stacks_[i] != 0 && symbol.kind == Kind::CHARS && symbol.most > most &&
            symbol.least <= ClassTokens::MOST_RANGES) {
            widest = stacks_[i];
            most   = symbol.most;
        }
    }
    const uint32_t n = most < ClassTokens::LEAST ? 0 : repeats(widest);
    if (n < 2) { // few tokens are one character
        return {};
    }
    return { ClassTokens::lengths(*this, texts, rules_->symbols[nodes_[widest].symbol]), n };
}

//
// by states
//

// What takes more goes by stacks.
static constexpr uint64_t STATES_WORK = GRAMMAR_WORK / 64;
static constexpr size_t   MOST_STATES = 1 << 12; // some 3 MB
static constexpr size_t   MOST_STACKS = 1 << 18; // of all states: 1 MB

static constexpr uint32_t UNKNOWN = UINT32_MAX, NOWHERE = UINT32_MAX - 1; // no states

// The sets of stacks to which the characters of a vocabulary lead, numbered: an automaton that grows where a character
// is read for the first time. Most tokens lead through few of them.
class Grammar::ByStates {
public:
    void begin(Grammar & grammar) {
        grammar_ = &grammar;
        states_.clear();
        stacks_.clear();
        table_.assign(2 * MOST_STATES, UNKNOWN);
        found_.assign(grammar.stacks_.begin(), grammar.stacks_.end());
        places_.assign(1, { add(), grammar.now_.character });
    }

    // Forgets all but the first n bytes.
    void go_back(size_t n) { places_.resize(n + 1); }

    // False when no stack allows that byte.
    bool read(uint8_t byte) {
        Place now = places_.back();
        if (now.character.n_more == 0 && byte < 128) {
            const uint32_t next = states_[now.state].after[byte];
            now.state           = next != UNKNOWN ? next : expand(now.state, byte).next;
        } else if (!now.character.read(byte)) {
            return false;
        } else if (now.character.n_more == 0) {
            now.state = around(now.state, now.character.value).next;
        } else if (!may_go_on(now)) {
            return false;
        }
        places_.push_back(now);
        return now.state != NOWHERE;
    }

private:
    struct Place {
        uint32_t  state;
        Character character;
    };

    // Characters that each stack of a state reads alike.
    struct Range {
        uint32_t low = 1, high = 0;
        bool     matches = false; // some stack reads them
        uint32_t next    = NOWHERE;
    };

    struct State {
        uint32_t begin = 0, end = 0; // in stacks_, sorted
        Range    last;               // that was asked for, beyond ASCII
        uint32_t after[128];
    };

    Grammar *             grammar_ = nullptr;
    std::vector<State>    states_;
    std::vector<uint32_t> stacks_;
    std::vector<uint32_t> table_;  // hash table of states_
    std::vector<uint32_t> found_;  // stacks of which add() makes a state
    std::vector<Place>    places_; // after each byte of the token

    uint32_t add() {
        std::sort(found_.begin(), found_.end());
        uint64_t hash = 0;
        for (const uint32_t stack : found_) {
            hash = (hash ^ stack) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 29;
        }
        size_t slot = hash & (table_.size() - 1);
        for (; table_[slot] != UNKNOWN; slot = (slot + 1) & (table_.size() - 1)) {
            const State & other = states_[table_[slot]];
            if (std::equal(found_.begin(), found_.end(), stacks_.begin() + other.begin, stacks_.begin() + other.end)) {
                return table_[slot];
            }
        }
        if (states_.size() == MOST_STATES || stacks_.size() + found_.size() > MOST_STACKS) {
            throw GrammarTooCostly("the grammar has too many states");
        }
        State state;
        state.begin = uint32_t(stacks_.size());
        stacks_.insert(stacks_.end(), found_.begin(), found_.end());
        state.end = uint32_t(stacks_.size());
        std::fill(std::begin(state.after), std::end(state.after), UNKNOWN);
        states_.push_back(state);
        return table_[slot] = uint32_t(states_.size() - 1);
    }

    // Reads c, and with it the characters around it that lead to the same state.
    Range expand(uint32_t state, uint32_t c) {
        const uint32_t begin = states_[state].begin, end = states_[state].end;
        const auto     before = ptrdiff_t(grammar_->stacks_.size());
        Range          range{ 0, UINT32_MAX, false, NOWHERE };
        grammar_->spend(1 + end - begin);
        ++grammar_->expansion_;
        for (uint32_t i = begin; i < end; ++i) {
            const Node            top    = grammar_->nodes_[stacks_[i]];
            const GrammarSymbol & symbol = grammar_->rules_->symbols[top.symbol];
            if (stacks_[i] != 0 && symbol.kind == Kind::CHARS && grammar_->matches(symbol, c, range.low, range.high)) {
                range.matches = true;
                grammar_->expand(grammar_->stack(top.symbol + 1, top.below));
            }
        }
        found_.assign(grammar_->stacks_.begin() + before, grammar_->stacks_.end());
        grammar_->stacks_.resize(size_t(before));
        range.next  = found_.empty() ? NOWHERE : add();
        State & now = states_[state];
        for (uint32_t i = range.low; i < 128 && i <= range.high; ++i) {
            now.after[i] = range.next;
        }
        if (range.high >= 128) {
            now.last = range;
        }
        return range;
    }

    Range around(uint32_t state, uint32_t c) {
        const Range & last = states_[state].last;
        return last.low <= c && c <= last.high ? last : expand(state, c);
    }

    bool may_go_on(const Place & place) {
        const auto [low, high] = place.character.range();
        const Range range      = around(place.state, low);
        if (range.matches || high <= range.high) {
            return range.matches;
        }
        const State & state = states_[place.state];
        grammar_->spend(state.end - state.begin);
        return std::any_of(stacks_.begin() + state.begin, stacks_.begin() + state.end,
                           [&](uint32_t stack) { return grammar_->may_match(stack, place.character); });
    }
};

//
// by stacks
//

// In little memory, whatever the grammar.
class Grammar::ByStacks {
public:
    explicit ByStacks(Grammar & grammar) : grammar_(grammar), levels_(1, grammar.now_) {}

    void go_back(size_t n) {
        levels_.resize(n + 1);
        grammar_.stacks_.resize(levels_.back().end);
        grammar_.forget_nodes(levels_.back().n_nodes);
    }

    bool read(uint8_t byte) {
        Level next;
        if (!grammar_.read(levels_.back(), byte, next)) {
            return false;
        }
        levels_.push_back(next);
        return true;
    }

private:
    Grammar &          grammar_;
    std::vector<Level> levels_; // after each byte of the token
};

//
// all tokens
//

// Reads the tokens that a run leaves, what they have in common once.
template <class Reader, class Run>
static void read_tokens(const TokenTexts & texts, const Run & run, Reader & reader, std::vector<uint8_t> & allowed) {
    const auto & order   = texts.order();
    const auto & shared  = texts.shared();
    size_t       common  = 0;        // bytes in common with the token that was read last
    size_t       refused = SIZE_MAX; // more than these in common: it is refused, too
    for (size_t i = 0; i < order.size(); ++i) {
        common = std::min<size_t>(common, shared[i]);
        if (run.allows(i)) {
            allowed[size_t(order[i])] = true;
            continue;
        }
        if (common > refused) {
            continue;
        }
        reader.go_back(common);
        const std::string_view text = texts.sorted_text(i);
        size_t                 at   = common;
        while (at < text.size() && reader.read(uint8_t(text[at]))) {
            ++at;
        }
        refused                   = at < text.size() ? at : SIZE_MAX;
        allowed[size_t(order[i])] = at == text.size();
        common                    = SIZE_MAX;
    }
}

// To where the text has led.
void Grammar::go_back() {
    todo_.clear();
    stacks_.resize(now_.end);
    forget_nodes(now_.n_nodes);
}

void Grammar::allow(const TokenTexts & texts, std::vector<uint8_t> & allowed) {
    thread_local ByStates kept;
    ByStates &            by_states = kept;
    const uint64_t        left = left_, rest = left - std::min(left, STATES_WORK);
    left_ -= rest;
    try {
        const Run found = run(texts);
        by_states.begin(*this);
        read_tokens(texts, found, by_states, allowed);
        left_ += rest;
        go_back();
    } catch (const GrammarTooCostly &) {
        left_ = left;
        go_back();
        std::fill(allowed.begin(), allowed.end(), 0);
        ByStacks by_stacks(*this);
        read_tokens(texts, Run{}, by_stacks, allowed);
        go_back();
    }
}

void Grammar::mask(const TokenTexts & texts, float * logits) {
    begin_call();
    thread_local std::vector<uint8_t> kept;
    std::vector<uint8_t> &            allowed = kept;
    allowed.assign(size_t(texts.n_tokens()), 0);
    allow(texts, allowed);
    const auto & order = texts.order();
    for (const uint32_t stack : stacks_) {
        const GrammarSymbol & symbol = rules_->symbols[nodes_[stack].symbol];
        if (stack == 0 || symbol.kind != Kind::TOKEN) {
            continue;
        }
        spend(symbol.negated ? order.size() : 1);
        if (symbol.negated) {
            for (const llama_token token : order) {
                allowed[size_t(token)] |= uint32_t(token) != symbol.value;
            }
        } else if (symbol.value < allowed.size() && !texts.text(llama_token(symbol.value)).empty()) {
            allowed[symbol.value] = 1;
        }
    }
    const bool over = std::find(stacks_.begin(), stacks_.end(), 0u) != stacks_.end();
    for (const llama_token token : texts.end_tokens()) {
        allowed[size_t(token)] = over;
    }
    for (size_t token = 0; token < allowed.size(); ++token) {
        logits[token] = allowed[token] ? logits[token] : -INFINITY;
    }
}

} // namespace tgr
