#include "constrain/trigger.h"

#include "base/errors.h"

#include <algorithm>
#include <cctype>

namespace tgr {

static constexpr size_t NONE = std::string::npos;

static void check(const std::string & text, const char * what) {
    if (text.empty() || text.size() > TRIGGER_BYTES) {
        throw ArgumentError(what, " of a grammar has ", text.size(), " bytes, but must have between 1 and ",
                            TRIGGER_BYTES);
    }
}

static size_t longest(const std::vector<std::string> & texts) {
    size_t most = 0;
    for (const auto & text : texts) {
        most = std::max(most, text.size());
    }
    return most;
}

// The text that every match of a pattern begins with; empty where there may be none.
static std::string plain_beginning(const std::string & pattern) {
    std::string plain;
    bool        open  = true; // the beginning goes on
    int         depth = 0;    // of groups
    for (size_t i = 0; i < pattern.size(); ++i) {
        const bool escaped = pattern[i] == '\\' && i + 1 < pattern.size();
        i += escaped;
        const char c = pattern[i];
        const bool plain_char =
            escaped ? !std::isalnum((unsigned char)c) : std::string("^$.|?*+()[]{}").find(c) == NONE;
        if (open && plain_char) {
            plain += c;
        } else if (open) {
            open = false;
            if (!escaped && (c == '?' || c == '*' || c == '{') && !plain.empty()) {
                plain.pop_back(); // there may be none of it
            }
        }
        if (!escaped) {
            depth += (c == '(') - (c == ')');
            if (c == '|' && depth == 0) {
                return "";
            }
            if (c == '[') {
                i = std::min(pattern.find(']', i + 1), pattern.size());
            }
        }
    }
    return plain;
}

TriggerSearch::TriggerSearch(const TriggerParams & params, const std::string & before) :
    words_(params.words),
    think_ends_(params.think_ends),
    think_tag_(params.think_tag) {
    for (const auto & word : words_) {
        check(word, "a trigger");
    }
    for (const auto & pattern : params.patterns) {
        check(pattern, "a trigger");
        try {
            const bool begins = pattern.front() == '^';
            patterns_.push_back({ std::regex(pattern), begins ? "" : plain_beginning(pattern), begins });
        } catch (const std::regex_error & error) {
            throw ArgumentError("a trigger of a grammar is no pattern: ", error.what());
        }
    }
    if (!think_tag_.empty()) {
        check(think_tag_, "a thinking tag");
    }
    for (const auto & tag : think_ends_) {
        check(tag, "a thinking tag");
    }
    if (think_tag_.empty() || think_ends_.empty()) {
        return;
    }
    const size_t opened = before.rfind(think_tag_);
    now_.thinks         = opened != NONE && std::none_of(think_ends_.begin(), think_ends_.end(), [&](const auto & tag) {
                      return before.find(tag, opened + think_tag_.size()) != NONE;
                          });
}

// Where the first of the texts begins, the longest of several there.
size_t TriggerSearch::find(const std::vector<std::string> & texts, size_t & length) const {
    size_t first = NONE;
    for (const auto & text : texts) {
        const size_t at = now_.text.find(text, now_.from);
        if (at < first || (at == first && at != NONE && text.size() > length)) {
            first  = at;
            length = text.size();
        }
    }
    return first;
}

// Where the grammar begins by a pattern whose match ends in the newest bytes.
size_t TriggerSearch::find_patterns(size_t n_new) const {
    size_t first = NONE;
    for (const auto & pattern : patterns_) {
        const size_t begin = now_.text.size() > n_new + PATTERN_BYTES ? now_.text.size() - n_new - PATTERN_BYTES : 0;
        const size_t from  = std::max(begin, now_.outside);
        if (pattern.begins && now_.gone + from > 0) {
            continue;
        }
        if (!pattern.literal.empty() && now_.text.find(pattern.literal, from) == NONE) {
            continue;
        }
        auto flags = std::regex_constants::match_default;
        if (now_.gone + from > 0) {
            flags |= std::regex_constants::match_not_bol;
        }
        std::smatch match;
        if (!std::regex_search(now_.text.begin() + ptrdiff_t(from), now_.text.end(), match, pattern.regex, flags)) {
            continue;
        }
        size_t group = 0;
        for (size_t i = match.size(); i-- > 1;) {
            group = match.length(i) > 0 ? i : group;
        }
        first = std::min(first, from + size_t(match.position(group)));
    }
    return first;
}

// All of the text is searched, but for the end in which a text of `longest` bytes may have begun.
void TriggerSearch::skip(size_t longest) {
    const size_t most = longest > 0 ? longest - 1 : 0;
    now_.from         = std::max(now_.from, now_.text.size() > most ? now_.text.size() - most : 0);
}

std::optional<std::string> TriggerSearch::read(std::string_view more) {
    now_.text += more;
    while (true) {
        size_t length = 0;
        if (now_.thinks) {
            const size_t end = find(think_ends_, length);
            if (end == NONE) {
                skip(longest(think_ends_));
                break;
            }
            // a tag that is not a trigger is passed over: it may be the one that begins thinking, too
            const bool is_word = std::find(words_.begin(), words_.end(), now_.text.substr(end, length)) != words_.end();
            now_.from = now_.outside = is_word ? end : end + length;
            now_.thinks              = false;
            continue;
        }
        const size_t word  = find(words_, length);
        const size_t start = std::min(word, find_patterns(more.size()));
        const size_t think = think_tag_.empty() || think_ends_.empty() ? NONE : now_.text.find(think_tag_, now_.from);
        if (think < start) {
            now_.thinks = true;
            now_.from   = think + think_tag_.size();
            continue;
        }
        if (start != NONE) {
            return now_.text.substr(start);
        }
        skip(std::max(longest(words_), think_tag_.size()));
        break;
    }
    if (now_.text.size() > 8 * TRIGGER_BYTES && now_.from > 2 * TRIGGER_BYTES) { // seldom: it moves all that remains
        const size_t n = now_.from - 2 * TRIGGER_BYTES;
        now_.text.erase(0, n);
        now_.from -= n;
        now_.outside -= std::min(now_.outside, n);
        now_.gone += n;
    }
    return std::nullopt;
}

} // namespace tgr
