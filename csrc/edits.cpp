#include "edits.h"

#include "errors.h"
#include "grammar.h"

#include <algorithm>
#include <cmath>

namespace tgr {

Edits::Edits(const EditParams & params, const TokenTexts & texts, uint32_t limit) :
    params_(params),
    texts_(texts),
    trie_(texts.trie()),
    rules_(params.rules(texts)),
    limit_(limit),
    files_(params.files().size()) {
    begin_openings(now_, false);
    if (cost() == NEVER) {
        throw ArgumentError("the model's vocabulary can write none of the edits in ", NEVER - 1,
                            " tokens; open other files");
    }
}

//
// lines that are used
//

bool Edits::is_free(uint32_t file, uint32_t first, uint32_t end) const {
    const auto & used  = files_[file].used;
    const auto   after = used.lower_bound(end);
    return after == used.begin() || std::prev(after)->second <= first;
}

bool Edits::can_quote(uint32_t file, uint32_t line) const {
    return line < params_.n_lines(file) && rules_->files[file][params_.lines()[file][line]] != NEVER &&
           is_free(file, line, line + 1);
}

// Of the shortest quote, to the end of the answer. A file without lines is quoted by none, once.
EditCost Edits::quote_cost(uint32_t file) {
    File & one = files_[file];
    if (one.known != one.version) {
        const uint32_t n = params_.n_lines(file);
        one.least        = n == 0 && is_free(file, 0, 1) ? rules_->separator[0] : NEVER;
        for (uint32_t line = 0; line < n; ++line) {
            if (can_quote(file, line)) {
                one.least = std::min(one.least, rules_->files[file][params_.lines()[file][line]]);
            }
        }
        one.known = one.version;
    }
    return one.least;
}

void Edits::use(State & state, uint32_t file, uint32_t first, uint32_t end) {
    File & one = files_[file];
    used_.push_back({ file, first, end, one.version });
    one.used[first] = end;
    one.version     = ++n_versions_;
    state.n_used    = used_.size();
}

// Forgets what came after a state. Its threads stay.
void Edits::go_back(const State & state) {
    while (used_.size() > state.n_used) {
        File & one = files_[used_.back().file];
        one.used.erase(used_.back().first);
        one.version = used_.back().before;
        used_.pop_back();
    }
    threads_.resize(state.end);
}

//
// costs
//

EditCost Edits::opening_cost(uint32_t opening, uint32_t file, uint32_t depth) {
    const EditOpening & one  = params_.openings()[opening];
    const auto &        cost = rules_->openings[opening];
    const EditCost      rest = depth < cost.size() ? cost[depth] : EditCost(0);
    return one.quotes ? sum(rest, quote_cost(file)) : rest;
}

EditCost Edits::cost_of(const State & state) {
    EditCost least = NEVER;
    switch (state.part) {
    case Part::OPENING:
        for (size_t i = state.begin; i < state.end; ++i) {
            const uint32_t opening = threads_[i];
            const bool     again   = opening == params_.n_openings();
            const uint32_t file    = again ? state.file : params_.openings()[opening].file;
            least                  = std::min(least, opening_cost(opening, file, state.depth));
        }
        return least;
    case Part::QUOTE:
        for (size_t i = state.begin; i < state.end; ++i) {
            const uint32_t at = params_.lines()[state.file][threads_[i]] + state.depth;
            least             = std::min(least, rules_->files[state.file][at]);
        }
        return state.n_separator < 0 ? least : std::min(least, rules_->separator[size_t(state.n_separator)]);
    case Part::TEXT:
        return rules_->free_cost[state.text];
    case Part::CLOSED:
        return 1;
    default:
        return 0;
    }
}

//
// bytes
//

// The threads of the openings that are left; `again` also that of the same file.
void Edits::begin_openings(State & state, bool again) {
    state.part  = Part::OPENING;
    state.depth = 0;
    state.begin = threads_.size();
    for (uint32_t i = 0; i < params_.openings().size(); ++i) {
        const EditOpening & one     = params_.openings()[i];
        const bool          is_last = i == params_.n_openings();
        if (is_last && !again) {
            continue;
        }
        const uint32_t file = is_last ? state.file : one.file;
        if ((one.quotes || is_free(file, one.first, one.end)) && opening_cost(i, file, 0) != NEVER) {
            threads_.push_back(i);
        }
    }
    state.end = threads_.size();
}

// An opening is complete.
void Edits::begin_block(State & state, uint32_t opening) {
    const EditOpening & one = params_.openings()[opening];
    state.file              = opening == params_.n_openings() ? state.file : one.file;
    state.begin = state.end = threads_.size();
    state.depth = state.n_lines = 0;
    if (!one.quotes) {
        state.part = Part::TEXT;
        state.text = 0;
        use(state, one.file, one.first, one.end);
        return;
    }
    state.part = Part::QUOTE;
    for (uint32_t line = 0; line < params_.n_lines(state.file); ++line) {
        if (can_quote(state.file, line)) {
            threads_.push_back(line);
        }
    }
    state.end         = threads_.size();
    state.first       = 0;
    state.n_separator = params_.n_lines(state.file) == 0 ? 0 : -1;
}

// A line of the quote is complete: the separator may follow, or the next line of the file.
void Edits::end_line(State & state) {
    const auto begin = threads_.begin() + ptrdiff_t(state.begin), end = threads_.begin() + ptrdiff_t(state.end);
    state.first       = *std::min_element(begin, end);
    state.n_separator = 0;
    ++state.n_lines;
    const auto left =
        std::remove_if(begin, end, [&](uint32_t first) { return !can_quote(state.file, first + state.n_lines); });
    threads_.erase(left, threads_.end());
    state.end = threads_.size();
}

uint8_t Edits::next_byte(const State & state, uint32_t thread) const {
    return uint8_t(state.part == Part::OPENING
                       ? params_.openings()[thread].text[state.depth]
                       : params_.files()[state.file][params_.lines()[state.file][thread] + state.depth]);
}

// Keeps the threads of `to` that go on with a byte, behind all others.
void Edits::keep(State & to, uint8_t byte) {
    const size_t begin = threads_.size();
    for (size_t i = to.begin; i < to.end; ++i) {
        if (const uint32_t thread = threads_[i]; next_byte(to, thread) == byte) {
            threads_.push_back(thread);
        }
    }
    to.begin = begin;
    to.end   = threads_.size();
    ++to.depth;
}

bool Edits::read_opening(State & to, uint8_t byte) {
    keep(to, byte);
    if (to.begin == to.end) {
        return false;
    }
    const uint32_t one = threads_[to.begin];
    if (params_.openings()[one].text.size() == to.depth) { // it is the only one: none begins with another one
        begin_block(to, one);
    }
    return true;
}

bool Edits::read_quote(State & to, uint8_t byte) {
    const std::string & separator = params_.separator();
    const bool          separates = to.n_separator >= 0 && uint8_t(separator[size_t(to.n_separator)]) == byte;
    keep(to, byte);
    to.n_separator = separates ? to.n_separator + 1 : -1;
    if (to.n_separator == int32_t(separator.size())) {
        threads_.resize(to.begin);
        to.end  = to.begin;
        to.part = Part::TEXT;
        to.text = 0;
        use(to, to.file, to.first, to.first + std::max(to.n_lines, 1u));
        return true;
    }
    if (byte == '\n' && to.begin < to.end) {
        end_line(to);
    }
    return to.begin < to.end || to.n_separator >= 0;
}

// One byte. False when it may not come next; `state` is of no use then.
bool Edits::read(State & state, uint8_t byte) {
    switch (state.part) {
    case Part::OPENING:
        return read_opening(state, byte);
    case Part::QUOTE:
        return read_quote(state, byte);
    case Part::TEXT:
        state.text = params_.text().read(state.text, byte);
        if (state.text == FreeText::CLOSED) {
            state.part       = Part::CLOSED;
            state.n_newlines = 0;
        }
        return state.text != FreeText::DEAD;
    case Part::CLOSED:
        if (byte == '\n') {
            return ++state.n_newlines <= 2;
        }
        if (state.n_newlines == 0) {
            return false;
        }
        begin_openings(state, true);
        return read_opening(state, byte);
    default:
        return false;
    }
}

//
// tokens
//

bool Edits::accept(llama_token token) {
    ++n_read_;
    if (texts_.ends(token)) {
        const bool may_end = now_.part == Part::CLOSED || now_.part == Part::OVER;
        now_.part          = Part::OVER;
        return may_end;
    }
    if (!texts_.is_visible(token)) {
        return false;
    }
    for (const char byte : texts_.text(token)) {
        if (!read(now_, uint8_t(byte))) {
            return false;
        }
        threads_.erase(threads_.begin(), threads_.begin() + ptrdiff_t(now_.begin));
        now_.end -= now_.begin;
        now_.begin = 0;
    }
    return true;
}

// Allows the tokens of a node, to which `state` is where they lead, and those below it.
void Edits::allow(const State & state, uint32_t node) {
    const TokenTrie::Node & now = trie_[node];
    if (now.first_token < now.end_token && cost_of(state) <= budget_) {
        allowed_.insert(allowed_.end(), trie_.tokens().begin() + now.first_token,
                        trie_.tokens().begin() + now.end_token);
    }
    if (now.n_children > 0) {
        allow_below(state, node);
    }
}

void Edits::allow_below(const State & state, uint32_t node) {
    const TokenTrie::Node & now    = trie_[node];
    const bool              closed = state.part == Part::CLOSED;
    if (closed && state.n_newlines > 0) {
        State openings = state;
        begin_openings(openings, true);
        allow_below(openings, node);
        go_back(state);
    }
    const auto groups = grouped(state);
    State      from   = state;
    from.end          = threads_.size(); // to go back to the threads that there are now
    for (uint32_t child = now.first_child; child < now.first_child + now.n_children; ++child) {
        go_back(from);
        State         to   = state;
        const uint8_t byte = trie_[child].byte;
        if (!groups.empty()) {
            to.begin = groups[byte];
            to.end   = groups[size_t(byte) + 1];
        }
        if ((!closed || byte == '\n') && read(to, byte)) {
            allow(to, child);
        }
    }
    go_back(state);
}

// Where the threads with each next byte begin, of a state with many; empty where there are few. Copies of them, sorted
// by their next bytes, are put behind all others.
std::vector<size_t> Edits::grouped(const State & state) {
    static constexpr size_t FEW = 16;
    if ((state.part != Part::OPENING && state.part != Part::QUOTE) || state.end - state.begin <= FEW) {
        return {};
    }
    GrammarWatch::check();
    std::vector<size_t> at(257, 0);
    for (size_t i = state.begin; i < state.end; ++i) {
        ++at[size_t(next_byte(state, threads_[i])) + 1];
    }
    // all go on alike where many lines are blank: they stay where they are
    if (const auto all = std::find(at.begin(), at.end(), state.end - state.begin); all != at.end()) {
        std::fill(at.begin(), all, state.begin);
        std::fill(all, at.end(), state.end);
        return at;
    }
    at[0] = threads_.size();
    for (size_t byte = 0; byte < 256; ++byte) {
        at[byte + 1] += at[byte];
    }
    std::vector<size_t> next = at;
    threads_.resize(at[256]);
    for (size_t i = state.begin; i < state.end; ++i) {
        threads_[next[next_byte(state, threads_[i])]++] = threads_[i];
    }
    return at;
}

// Whether a token that closes the new text goes on as an answer may.
bool Edits::may_close(const ClosingToken & token) {
    State state      = now_;
    state.part       = Part::CLOSED;
    state.n_newlines = 0;
    bool may         = true;
    for (const char byte : texts_.text(token.token).substr(token.rest)) {
        may = may && read(state, uint8_t(byte));
    }
    may = may && cost_of(state) <= budget_;
    go_back(now_);
    return may;
}

void Edits::mask_text(float * logits) {
    static thread_local std::vector<std::pair<llama_token, float>> kept;
    const FreeTokens &                                             tokens = rules_->free[now_.text];
    kept.clear();
    for (const ClosingToken & one : tokens.closing) {
        if (may_close(one)) {
            kept.emplace_back(one.token, logits[one.token]);
        }
    }
    for (const llama_token token : tokens.forbidden) {
        logits[token] = -INFINITY;
    }
    for (llama_token token = 0; budget_ < rules_->most_free && token < texts_.n_tokens(); ++token) {
        const FreeText::State state = tokens.after[token];
        if (state != FreeText::DEAD && rules_->free_cost[state] > budget_) {
            logits[token] = -INFINITY;
        }
    }
    for (const auto & [token, logit] : kept) {
        logits[token] = logit;
    }
}

void Edits::mask(float * logits) {
    GrammarWatch::check();
    // a limit that is too small already is one that the shortest way to the end keeps
    const uint32_t left = limit_ == 0 ? NEVER : limit_ > n_read_ ? limit_ - n_read_ : 0;
    budget_             = std::min<uint32_t>(std::max<uint32_t>({ left, cost(), 1 }), NEVER) - 1;
    if (now_.part == Part::TEXT) {
        mask_text(logits);
        return;
    }
    static thread_local std::vector<float> kept;
    allowed_.clear();
    if (now_.part == Part::CLOSED || now_.part == Part::OVER) {
        allowed_ = texts_.end_tokens();
    }
    allow_below(now_, 0);
    kept.clear();
    for (const llama_token token : allowed_) {
        kept.push_back(logits[token]);
    }
    std::fill(logits, logits + texts_.n_tokens(), -INFINITY);
    for (size_t i = 0; i < allowed_.size(); ++i) {
        logits[allowed_[i]] = kept[i];
    }
}

} // namespace tgr
