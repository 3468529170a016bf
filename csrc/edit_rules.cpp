#include "edit_rules.h"

#include "errors.h"
#include "grammar.h"

namespace tgr {

//
// new text
//

FreeText::FreeText(std::string closing, const std::string & banned) : closing_(std::move(closing)) {
    const auto plain = [](char c) { return c > ' ' && c < 0x7F; };
    if (closing_.empty() || closing_.size() > EDIT_MARKER || !plain(closing_.front()) ||
        std::any_of(closing_.begin(), closing_.end(), [&](char c) { return !plain(c) && c != ' '; })) {
        throw ArgumentError("the closing text of an edit must be one line of 1 to ", EDIT_MARKER, " plain characters");
    }
    for (const char c : banned) {
        banned_[uint8_t(c)] = true;
    }
    banned_[0] = true; // which ends a text for llama.cpp
    if (banned_[uint8_t('\n')]) {
        throw ArgumentError("the new text of an edit must be allowed to have line ends");
    }
}

// After middle(): a character lacks one, two or three bytes; of a first byte that bounds the second: E0, ED, F0, F4.
FreeText::State FreeText::read(State state, uint8_t byte) const {
    const State middle = this->middle();
    if (state < middle) {
        if (byte == uint8_t(closing_[state])) {
            return state + 1 == middle ? CLOSED : State(state + 1);
        }
        state = middle;
    }
    if (state == middle) {
        if (byte < 0x80) {
            return banned_[byte] ? DEAD : byte == '\n' ? 0 : middle;
        }
        const int lacks = byte < 0xC2    ? 0
                          : byte < 0xE0  ? 1
                          : byte == 0xE0 ? 4
                          : byte == 0xED ? 5
                          : byte < 0xF0  ? 2
                          : byte == 0xF0 ? 6
                          : byte < 0xF4  ? 3
                          : byte == 0xF4 ? 7
                                         : 0;
        return lacks ? State(middle + lacks) : DEAD;
    }
    struct Next {
        uint8_t low, high, lacks;
    };
    static constexpr Next nexts[] = { { 0x80, 0xBF, 0 }, { 0x80, 0xBF, 1 }, { 0x80, 0xBF, 2 }, { 0xA0, 0xBF, 1 },
                                      { 0x80, 0x9F, 1 }, { 0x90, 0xBF, 2 }, { 0x80, 0x8F, 2 } };
    const Next            next    = nexts[state - middle - 1];
    return byte >= next.low && byte <= next.high ? State(middle + next.lacks) : DEAD;
}

//
// the constraint
//

static void check_size(const char * what, size_t n, size_t most, const char * unit) {
    if (n > most) {
        throw ArgumentError(what, " of an edit have ", n, " ", unit, ", but may have ", most,
                            "; open fewer or smaller files");
    }
}

EditParams::EditParams(std::vector<std::string> files, std::vector<EditOpening> openings, std::string again,
                       std::string separator, std::string closing, const std::string & banned) :
    files_(std::move(files)),
    openings_(std::move(openings)),
    separator_(std::move(separator)),
    has_again_(!again.empty()),
    text_(std::move(closing), banned) {
    size_t n_bytes = 0, n_lines = 0;
    for (const auto & file : files_) {
        n_bytes += file.size();
        n_lines += size_t(std::count(file.begin(), file.end(), '\n'));
    }
    check_size("the files", n_bytes, EDIT_BYTES, "bytes");
    check_size("the files", n_lines, EDIT_LINES, "lines");
    if (separator_.empty() || separator_.back() != '\n' || separator_.size() > EDIT_MARKER) {
        throw ArgumentError("the separator of an edit must be a line of ", EDIT_MARKER, " bytes at most, with its end");
    }
    const bool quotes = std::any_of(openings_.begin(), openings_.end(), [](const auto & one) { return one.quotes; });
    for (auto & file : files_) {
        if (!file.empty() && file.back() != '\n') {
            file += '\n';
        }
        std::vector<uint32_t> lines{ 0 };
        for (size_t end; (end = file.find('\n', lines.back())) != std::string::npos;) {
            if (quotes && std::string_view(file).substr(lines.back(), end + 1 - lines.back()) == separator_) {
                throw ArgumentError("line ", lines.size(), " of a file is the separator of the edit; use a longer one");
            }
            lines.push_back(uint32_t(end + 1));
        }
        lines_.push_back(std::move(lines));
    }
    std::sort(openings_.begin(), openings_.end(), [](const auto & a, const auto & b) { return a.text < b.text; });
    check_openings();
    if (has_again_) {
        const auto begins = [](const std::string & a, const std::string & b) { return b.compare(0, a.size(), a) == 0; };
        for (const EditOpening & one : openings_) {
            if (begins(one.text, again) || begins(again, one.text)) {
                throw ArgumentError("an edit begins as another block of the same file does");
            }
        }
        openings_.push_back({ std::move(again), 0, 0, 0, true });
    }
}

void EditParams::check_openings() const {
    size_t n_bytes = 0;
    for (size_t i = 0; i < openings_.size(); ++i) {
        const EditOpening & one = openings_[i];
        n_bytes += one.text.size();
        if (one.text.empty() || one.text.front() == '\n') {
            throw ArgumentError("an opening of an edit must begin with a visible character");
        }
        if (i > 0 && one.text.compare(0, openings_[i - 1].text.size(), openings_[i - 1].text) == 0) {
            throw ArgumentError("an edit begins with the same text as another one, or with all of it");
        }
        if (one.file >= files_.size() || (!one.quotes && one.first >= one.end)) {
            throw ArgumentError("an opening of an edit names lines that no file has");
        }
    }
    if (openings_.empty()) {
        throw ArgumentError("an edit needs a file or function to change; open one");
    }
    check_size("the openings", openings_.size(), EDIT_OPENINGS, "texts");
    check_size("the openings", n_bytes, EDIT_BYTES, "bytes");
}

std::shared_ptr<const EditRules> EditParams::rules(const TokenTexts & texts) const {
    const std::lock_guard lock(mutex_);
    if (serial_ != texts.serial()) {
        rules_  = std::make_shared<const EditRules>(*this, texts);
        serial_ = texts.serial();
    }
    return rules_;
}

//
// the least tokens
//

// Tokens that `text` takes from each of its first n bytes on, where a text that ends at byte n + i goes on with
// after[i] tokens.
static std::vector<EditCost> count(const TokenTrie & trie, std::string_view text, size_t n,
                                   const std::vector<EditCost> & after) {
    std::vector<EditCost> cost(n, NEVER);
    for (size_t at = n; at-- > 0;) {
        trie.each_beginning(text.substr(at), [&](size_t length) {
            const size_t   end  = at + length;
            const EditCost rest = end < n ? cost[end] : end - n < after.size() ? after[end - n] : NEVER;
            cost[at]            = std::min(cost[at], sum(1, rest));
        });
        if (at % 4096 == 0) {
            GrammarWatch::check();
        }
    }
    return cost;
}

EditRules::EditRules(const EditParams & params, const TokenTexts & texts) {
    texts.prepare();
    if (texts.end_tokens().empty()) {
        throw ArgumentError("the model's vocabulary has no end token, so no answer of edits could end");
    }
    const TokenTrie & trie = texts.trie();
    const FreeText &  text = params.text();
    read_free(text, texts);
    count_free(texts);

    const std::string & closing = text.closing();
    // from the beginning of the new text: none, then the closing text, then the end
    std::vector<EditCost> after(free_cost.begin(), free_cost.begin() + ptrdiff_t(closing.size()));
    after.push_back(1);
    separator = count(trie, params.separator() + closing, params.separator().size(), after);

    std::vector<EditCost> after_quote = separator;
    after_quote.insert(after_quote.end(), after.begin(), after.end());
    const std::string tail = params.separator() + closing;
    for (size_t i = 0; i < params.files().size(); ++i) {
        const std::string &   file  = params.files()[i];
        const auto &          lines = params.lines()[i];
        std::vector<EditCost> costs;
        costs.reserve(file.size());
        for (size_t k = 0; k + 1 < lines.size(); ++k) {
            const size_t n    = lines[k + 1] - lines[k];
            const auto   line = count(trie, file.substr(lines[k], n) + tail, n, after_quote);
            costs.insert(costs.end(), line.begin(), line.end());
        }
        files.push_back(std::move(costs));
    }
    for (const EditOpening & one : params.openings()) {
        openings.push_back(one.quotes ? count(trie, one.text, one.text.size(), { 0 })
                                      : count(trie, one.text + closing, one.text.size(), after));
    }
}

// Sets where the tokens of a node and of those below it lead. `depth` bytes are before the node's, of which the first
// `closed` closed the text; 0 = it is open.
static void walk(const FreeText & text, const TokenTrie & trie, FreeText::State state, uint32_t node, uint32_t depth,
                 uint32_t closed, FreeTokens & to) {
    const TokenTrie::Node & now = trie[node];
    if (closed == 0) {
        state  = text.read(state, now.byte);
        closed = state == FreeText::CLOSED ? depth + 1 : 0;
    }
    if (state == FreeText::DEAD) {
        return;
    }
    for (uint32_t i = now.first_token; i < now.end_token; ++i) {
        if (closed > 0) {
            to.closing.push_back({ trie.tokens()[i], closed });
        } else {
            to.after[trie.tokens()[i]] = state;
        }
    }
    for (uint32_t child = now.first_child; child < now.first_child + now.n_children; ++child) {
        walk(text, trie, state, child, depth + 1, closed, to);
    }
}

void EditRules::read_free(const FreeText & text, const TokenTexts & texts) {
    const TokenTrie &       trie = texts.trie();
    const TokenTrie::Node & root = trie[0];
    free.resize(text.n_states());
    for (FreeText::State state = text.middle(); state < free.size(); ++state) {
        free[state].after.assign(size_t(texts.n_tokens()), FreeText::DEAD);
        for (uint32_t child = root.first_child; child < root.first_child + root.n_children; ++child) {
            walk(text, trie, state, child, 0, 0, free[state]);
        }
    }
    // within the closing text only one byte leads elsewhere than in the middle of a line
    for (FreeText::State state = 0; state < text.middle(); ++state) {
        const uint8_t byte = uint8_t(text.closing()[state]);
        FreeTokens &  to   = free[state];
        to.after           = free[text.middle()].after;
        for (const ClosingToken & one : free[text.middle()].closing) {
            if (uint8_t(texts.text(one.token)[0]) != byte) {
                to.closing.push_back(one);
            }
        }
        if (const uint32_t node = trie.child(0, byte); node != TokenTrie::NONE) {
            const auto is_other = [&](uint32_t i) {
                return i >= trie.tokens().size() || uint8_t(texts.text(trie.tokens()[i])[0]) != byte;
            };
            for (uint32_t i = trie[node].first_token; !is_other(i); ++i) {
                to.after[trie.tokens()[i]] = FreeText::DEAD;
            }
            walk(text, trie, state, node, 0, 0, to);
        }
    }
}

void EditRules::count_free(const TokenTexts & texts) {
    std::vector<std::vector<bool>> leads(free.size(), std::vector<bool>(256, false)); // to each state
    free_cost.assign(free.size(), NEVER);
    for (size_t i = 0; i < free.size(); ++i) {
        for (const FreeText::State state : free[i].after) {
            leads[i][state] = true;
        }
        for (const auto & [token, rest] : free[i].closing) {
            const std::string_view more = texts.text(token).substr(rest);
            if (more.empty() || more == "\n" || more == "\n\n") {
                free_cost[i] = 2; // the token and the end
            }
        }
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < free.size(); ++i) {
            for (size_t state = 0; state < free.size(); ++state) {
                if (const EditCost cost = sum(1, free_cost[state]); leads[i][state] && cost < free_cost[i]) {
                    free_cost[i] = cost;
                    changed      = true;
                }
            }
        }
    }
    for (const EditCost cost : free_cost) {
        most_free = std::max(most_free, cost == NEVER ? EditCost(0) : cost);
    }
    for (FreeTokens & tokens : free) {
        for (llama_token token = 0; token < texts.n_tokens(); ++token) {
            FreeText::State & state = tokens.after[token];
            if (state != FreeText::DEAD && free_cost[state] == NEVER) {
                state = FreeText::DEAD;
            }
            if (state == FreeText::DEAD) {
                tokens.forbidden.push_back(token);
            }
        }
        GrammarWatch::check();
    }
    if (free_cost[0] == NEVER) {
        throw ArgumentError("the model's vocabulary has no tokens for the line that ends an edit");
    }
}

} // namespace tgr
