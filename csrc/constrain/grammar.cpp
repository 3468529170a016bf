#include "constrain/grammar.h"

#include <algorithm>

namespace tgr {

using Kind = GrammarSymbol::Kind;

static thread_local const GrammarWatch * watch = nullptr;

GrammarWatch::GrammarWatch(const std::atomic<bool> * one, const std::atomic<bool> * other) :
    flags_{ one, other },
    outer_(watch) {
    watch = this;
}

GrammarWatch::~GrammarWatch() {
    watch = outer_;
}

void GrammarWatch::check() {
    for (int i = 0; watch && i < 2; ++i) {
        if (watch->flags_[i] && watch->flags_[i]->load(std::memory_order_relaxed)) {
            throw GrammarStopped();
        }
    }
}

//
// work
//

void Grammar::begin_call() {
    if (!shared_) {
        left_ = work_;
    }
    GrammarWatch::check();
}

void Grammar::spend(uint64_t work) {
    if (work > left_) {
        throw GrammarTooCostly("the grammar takes too much work; make it shorter, or less ambiguous");
    }
    if ((left_ ^ (left_ - work)) >> 14) {
        GrammarWatch::check();
    }
    left_ -= work;
}

//
// stacks
//

size_t Grammar::slot_of(const Node & node) const {
    uint64_t hash = (uint64_t(node.symbol) << 32 | node.below) * 0x9e3779b97f4a7c15ull;
    hash ^= (hash >> 29) ^ node.count * 0xbf58476d1ce4e5b9ull;
    size_t slot = (hash ^ hash >> 32) & (table_.size() - 1);
    while (table_[slot] != 0) {
        const Node & other = nodes_[table_[slot]];
        if (other.symbol == node.symbol && other.below == node.below && other.count == node.count) {
            break;
        }
        slot = (slot + 1) & (table_.size() - 1);
    }
    return slot;
}

void Grammar::resize_table(size_t n) {
    table_.assign(n, 0);
    for (size_t i = 1; i < nodes_.size(); ++i) {
        table_[slot_of(nodes_[i])] = uint32_t(i);
    }
}

uint32_t Grammar::node(uint32_t symbol, uint32_t count, uint32_t below) {
    const Node wanted = { symbol, count, below };
    size_t     slot   = slot_of(wanted);
    if (table_[slot] != 0) {
        return table_[slot];
    }
    if (nodes_.size() >= GRAMMAR_NODES) {
        throw GrammarTooCostly("the grammar takes too much work: it reads the text in more than ", GRAMMAR_NODES,
                               " ways; make it shorter, or less ambiguous");
    }
    const uint32_t id = uint32_t(nodes_.size());
    nodes_.push_back(wanted);
    seen_.push_back(0);
    table_[slot] = id;
    if (nodes_.size() * 2 > table_.size()) {
        resize_table(table_.size() * 2);
    }
    return id;
}

// In the reverse order of their making: no search has passed over the slot of the newest.
void Grammar::forget_nodes(size_t n) {
    while (nodes_.size() > n) {
        table_[slot_of(nodes_.back())] = 0;
        nodes_.pop_back();
        seen_.pop_back();
    }
}

uint32_t Grammar::stack(uint32_t symbol, uint32_t below) {
    return rules_->symbols[symbol].kind == Kind::END ? below : node(symbol, 0, below);
}

// Adds to stacks_ what a stack becomes when its rules are replaced by their alternatives, down to characters and
// tokens. Left recursion is refused beforehand, so this ends. What this expansion has met before is passed over.
void Grammar::expand(uint32_t first) {
    todo_.push_back(first);
    while (!todo_.empty()) {
        const uint32_t id = todo_.back();
        todo_.pop_back();
        if (seen_[id] == expansion_) {
            continue;
        }
        seen_[id]                    = expansion_;
        const Node            top    = nodes_[id];
        const GrammarSymbol & symbol = rules_->symbols[top.symbol];
        if (id == 0 || symbol.kind == Kind::CHARS || symbol.kind == Kind::TOKEN) {
            stacks_.push_back(id);
            continue;
        }
        const auto & alternatives = rules_->rules[symbol.value];
        spend(2 + alternatives.size());
        uint32_t next = stack(top.symbol + 1, top.below); // after an alternative
        if (symbol.kind == Kind::REPEAT) {
            if (top.count >= symbol.least) {
                todo_.push_back(next);
            }
            if (top.count >= symbol.most) {
                continue;
            }
            if (top.count + 1 != symbol.most) {
                const bool unbounded = symbol.most == GrammarSymbol::NO_LIMIT;
                next = node(top.symbol, unbounded ? std::min(top.count + 1, symbol.least) : top.count + 1, top.below);
            }
        }
        for (const uint32_t alternative : alternatives) {
            todo_.push_back(stack(alternative, next));
        }
    }
}

// Forgets the stacks that nothing leads to any more. A stack is made after the one below it.
void Grammar::tidy() {
    if (nodes_.size() < tidy_at_) {
        return;
    }
    std::vector<uint32_t> moved(nodes_.size(), 0);
    for (const uint32_t stack : stacks_) {
        moved[stack] = 1;
    }
    for (size_t i = nodes_.size(); i-- > 1;) {
        if (moved[i]) {
            moved[nodes_[i].below] = 1;
        }
    }
    uint32_t n = 1;
    for (size_t i = 1; i < nodes_.size(); ++i) {
        if (moved[i]) {
            moved[i]  = n;
            nodes_[n] = { nodes_[i].symbol, nodes_[i].count, nodes_[i].below ? moved[nodes_[i].below] : 0 };
            ++n;
        }
    }
    for (uint32_t & stack : stacks_) {
        stack = stack ? moved[stack] : 0;
    }
    nodes_.resize(n);
    seen_.assign(n, 0);
    resize_table(table_.size());
    tidy_at_ = std::max<size_t>(1024, 2 * nodes_.size());
}

//
// characters
//

bool Grammar::matches(const GrammarSymbol & symbol, uint32_t c) const {
    uint32_t low = 0, high = UINT32_MAX;
    return matches(symbol, c, low, high);
}

// Narrows [low, high] to the characters around c that match as it does.
bool Grammar::matches(const GrammarSymbol & symbol, uint32_t c, uint32_t & low, uint32_t & high) const {
    const auto begin = rules_->ranges.begin() + symbol.value, end = begin + symbol.least;
    const auto after =
        std::upper_bound(begin, end, c, [](uint32_t value, const auto & range) { return value < range.first; });
    if (after != begin && c <= std::prev(after)->second) {
        low  = std::max(low, std::prev(after)->first);
        high = std::min(high, std::prev(after)->second);
        return !symbol.negated;
    }
    low  = after != begin ? std::max(low, std::prev(after)->second + 1) : low;
    high = after != end ? std::min(high, after->first - 1) : high;
    return symbol.negated;
}

bool Grammar::Character::read(uint8_t byte) {
    if (n_more > 0) {
        if (byte >> 6 != 2) {
            return false;
        }
        value = value << 6 | (byte & 0x3F);
        n_more -= 1;
        // a longer way to write a character than needed is none
        return !((n_more == 1 && value < 0x20) || (n_more == 2 && value < 0x10));
    }
    n_more = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    value  = n_more > 0 ? byte & (0x3F >> n_more) : byte;
    return byte < 0x80 || (byte >= 0xC2 && byte <= 0xF4);
}

GrammarRules::Range Grammar::Character::range() const {
    const uint32_t n   = uint32_t(n_more) * 6;
    uint32_t       low = value << n, high = low | ((1u << n) - 1);
    if (low == 0) { // a character that fits in fewer bytes is written in them
        low = n_more == 2 ? 1u << 11 : n_more == 3 ? 1u << 16 : low;
    }
    return { low, high };
}

// Whether a stack reads some character that begins so.
bool Grammar::may_match(uint32_t stack, Character character) const {
    const GrammarSymbol & symbol = rules_->symbols[nodes_[stack].symbol];
    if (stack == 0 || symbol.kind != Kind::CHARS) {
        return false;
    }
    const auto [low, high] = character.range();
    const auto begin = rules_->ranges.begin() + symbol.value, end = begin + symbol.least;
    const auto range = std::lower_bound(begin, end, low, [](const auto & one, uint32_t c) { return one.second < c; });
    if (symbol.negated) {
        return range == end || range->first > low || range->second < high;
    }
    return range != end && range->first <= high;
}

bool Grammar::may_go_on(const Level & level) const {
    return std::any_of(stacks_.begin() + ptrdiff_t(level.begin), stacks_.begin() + ptrdiff_t(level.end),
                       [&](uint32_t stack) { return may_match(stack, level.character); });
}

// One byte. False, with stacks_ as they were, when no stack allows it.
bool Grammar::read(const Level & from, uint8_t byte, Level & to) {
    spend(1 + from.end - from.begin);
    to = from;
    if (!to.character.read(byte)) {
        return false;
    }
    if (to.character.n_more > 0) {
        return may_go_on(to);
    }
    to.begin = stacks_.size();
    ++expansion_;
    for (size_t i = from.begin; i < from.end; ++i) {
        const uint32_t        stack  = stacks_[i];
        const Node            top    = nodes_[stack];
        const GrammarSymbol & symbol = rules_->symbols[top.symbol];
        if (stack != 0 && symbol.kind == Kind::CHARS && matches(symbol, to.character.value)) {
            expand(this->stack(top.symbol + 1, top.below));
        }
    }
    to.end     = stacks_.size();
    to.n_nodes = nodes_.size();
    return to.end > to.begin;
}

//
// tokens
//

Grammar::Grammar(std::shared_ptr<const GrammarRules> rules, uint64_t work) :
    rules_(std::move(rules)),
    work_(work),
    nodes_(1),
    table_(64),
    seen_(1) {
    begin_call();
    ++expansion_;
    for (const uint32_t alternative : rules_->rules[rules_->root]) {
        expand(stack(alternative, 0));
    }
    now_ = { 0, stacks_.size(), nodes_.size(), {} };
    tidy();
}

// The stacks that a text leaves of now_, and in `level` the character that has begun.
std::vector<uint32_t> Grammar::after(std::string_view text, Level & level) {
    level = now_;
    for (const char byte : text) {
        Level next;
        if (!read(level, uint8_t(byte), next)) {
            level = { stacks_.size(), stacks_.size(), nodes_.size(), {} };
            break;
        }
        level = next;
    }
    std::vector<uint32_t> left;
    for (size_t i = level.begin; i < level.end; ++i) {
        if (level.character.n_more == 0 || may_match(stacks_[i], level.character)) {
            left.push_back(stacks_[i]);
        }
    }
    stacks_.resize(now_.end);
    return left;
}

void Grammar::move_to(std::vector<uint32_t> stacks, const Level & level) {
    stacks_ = std::move(stacks);
    tidy();
    now_ = { 0, stacks_.size(), nodes_.size(), level.character };
}

bool Grammar::accept(const TokenTexts & texts, llama_token token) {
    begin_call();
    if (texts.ends(token)) {
        return std::find(stacks_.begin(), stacks_.end(), 0u) != stacks_.end();
    }
    const std::string_view text = texts.text(token);
    if (text.empty()) {
        return false;
    }
    Level level;
    auto  left = after(text, level);
    ++expansion_;
    for (const uint32_t stack : left) {
        seen_[stack] = expansion_;
    }
    for (size_t i = 0; i < now_.end; ++i) {
        const Node            top    = nodes_[stacks_[i]];
        const GrammarSymbol & symbol = rules_->symbols[top.symbol];
        if (stacks_[i] != 0 && symbol.kind == Kind::TOKEN && (symbol.value == uint32_t(token)) != symbol.negated) {
            expand(this->stack(top.symbol + 1, top.below));
        }
    }
    left.insert(left.end(), stacks_.begin() + ptrdiff_t(now_.end), stacks_.end());
    move_to(std::move(left), level);
    return !stacks_.empty();
}

bool Grammar::accept(std::string_view text) {
    begin_call();
    while (!text.empty() && !stacks_.empty()) {
        const auto part = text.substr(0, 64); // what it leaves behind is tidied after each
        Level      level;
        auto       left = after(part, level);
        move_to(std::move(left), level);
        text.remove_prefix(part.size());
    }
    return !stacks_.empty();
}

} // namespace tgr
