// Finds where a lazy grammar begins: at its trigger, a text or a pattern outside of the thinking.
//
// In: the text of a reply, token by token. Out: the text from the grammar's beginning on. Only the newest text is kept,
// so a word and a tag may have TRIGGER_BYTES, and the match of a pattern PATTERN_BYTES.
#pragma once

#include "base/sampling_params.h"

#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tgr {

inline constexpr size_t TRIGGER_BYTES = 2048;
inline constexpr size_t PATTERN_BYTES = 256;

class TriggerSearch {
public:
    // `before` is the text before the reply; it has no trigger, but thinking may have begun in it. Throws
    // ArgumentError for a pattern that is none, and for a text that is empty or too long.
    TriggerSearch(const TriggerParams & params, const std::string & before);

    // Reads more of the reply. Returns the text from the grammar's beginning on when a trigger is complete.
    std::optional<std::string> read(std::string_view more);

    // Notes that the trigger at the beginning of the newest n bytes does not count.
    void pass_over(size_t n) { now_.from = now_.outside = now_.text.size() - (n > 0 ? n - 1 : 0); }

    // Text that has been read; going back to it forgets what came after.
    struct State {
        std::string text;        // newest part of the text
        size_t      from    = 0; // index in it: what is before has been searched
        size_t      outside = 0; // index in it: where the newest part that is not thinking begins
        size_t      gone    = 0; // bytes before it
        bool        thinks  = false;
    };
    const State & state() const { return now_; }
    void          go_back(State state) { now_ = std::move(state); }

private:
    struct Pattern {
        std::regex  regex;
        std::string literal; // text with which every match begins
        bool        begins;  // whether it matches at the reply's beginning only
    };

    std::vector<std::string> words_, think_ends_;
    std::vector<Pattern>     patterns_;
    std::string              think_tag_;
    State                    now_;

    size_t find(const std::vector<std::string> & texts, size_t & length) const;
    size_t find_patterns(size_t n_new) const;
    void   skip(size_t longest);
};

} // namespace tgr
