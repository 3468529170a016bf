// What may come next in an answer of edits is what a plain reading allows, token for token, and every answer ends
// within its limit.
#include "edits.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

namespace tgr {

using test::Draw;
using Texts = std::vector<std::string>;

namespace {

bool begins(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

struct Constraint {
    Texts                    files;
    std::vector<EditOpening> openings;
    std::string              closing, separator = "\n", again = "", banned = "";

    EditParams params() const { return { files, openings, again, separator, closing, banned }; }
};

// A slow checker of the same language, which tries every way to read the beginning of an answer.
class PlainEdits {
public:
    enum Found { NO, BEGINNING, WHOLE };

    // No line with a byte that no token has can be quoted.
    PlainEdits(const Constraint & edits, std::string unspelled) : edits_(edits), unspelled_(std::move(unspelled)) {
        for (const auto & file : edits.files) {
            lines_.emplace_back();
            std::istringstream in(file);
            for (std::string line; std::getline(in, line);) {
                lines_.back().push_back(line + "\n");
            }
        }
    }

    Found read(const std::string & text) const { return block(text, {}, nullptr); }

private:
    using Used = std::set<std::pair<uint32_t, size_t>>; // lines that were replaced: a file and the number of its line

    const Constraint & edits_;
    std::string        unspelled_;
    std::vector<Texts> lines_;

    Found block(const std::string & text, const Used & used, const uint32_t * file) const {
        auto openings = edits_.openings;
        if (file && !edits_.again.empty()) {
            openings.push_back({ edits_.again, *file, 0, 1, true });
        }
        for (const auto & one : openings) {
            Used taken = used;
            for (uint32_t line = one.first; line < one.end; ++line) {
                taken.emplace(one.file, line);
            }
            bool is_left = false;
            for (size_t line = 0; line < std::max<size_t>(1, lines_[one.file].size()); ++line) {
                is_left |= can_quote(one.file, line, used);
            }
            if (one.quotes ? !is_left : taken.size() < used.size() + one.end - one.first) {
                continue;
            }
            if (begins(one.text, text)) {
                return BEGINNING;
            }
            if (begins(text, one.text)) {
                const std::string rest = text.substr(one.text.size());
                return one.quotes ? quote(rest, used, one.file) : new_text(rest, taken, one.file);
            }
        }
        return NO;
    }

    // An empty file counts as one line.
    bool can_quote(uint32_t file, size_t line, const Used & used) const {
        const std::string text = line < lines_[file].size() ? lines_[file][line] : "";
        return used.count({ file, line }) == 0 && text.find_first_of(unspelled_) == text.npos;
    }

    Found quote(const std::string & text, const Used & used, uint32_t file) const {
        const size_t n = lines_[file].size();
        for (size_t first = 0; first < std::max<size_t>(n, 1); ++first) {
            std::string whole;
            Used        taken = used;
            for (size_t line = first; line < std::max<size_t>(n, 1) && can_quote(file, line, used); ++line) {
                whole += n > 0 ? lines_[file][line] : "";
                taken.emplace(file, line);
                if (begins(whole + edits_.separator, text)) {
                    return BEGINNING;
                }
                if (begins(text, whole + edits_.separator)) { // the first such lines that are left
                    return new_text(text.substr(whole.size() + edits_.separator.size()), taken, file);
                }
            }
        }
        return NO;
    }

    Found new_text(const std::string & text, const Used & used, uint32_t file) const {
        size_t at = 0;
        while (!begins(text.substr(at), edits_.closing)) {
            const size_t end = text.find('\n', at);
            if (end == text.npos) {
                return is_text(text, false) ? BEGINNING : NO;
            }
            at = end + 1;
        }
        if (!is_text(text.substr(0, at), true)) {
            return NO;
        }
        const std::string rest = text.substr(at + edits_.closing.size());
        if (rest.empty() || rest == "\n" || rest == "\n\n") {
            return WHOLE;
        }
        return begins(rest, "\n\n") ? block(rest.substr(2), used, &file)
               : begins(rest, "\n") ? block(rest.substr(1), used, &file)
                                    : NO;
    }

    static bool is_character(const std::string & bytes) {
        static constexpr uint32_t LEAST[] = { 0, 0, 0x80, 0x800, 0x10000 };
        uint32_t                  value   = uint8_t(bytes[0]) & (bytes.size() == 1 ? 0x7Fu : 0x7Fu >> bytes.size());
        for (size_t i = 1; i < bytes.size(); ++i) {
            if ((bytes[i] & 0xC0) != 0x80) {
                return false;
            }
            value = value << 6 | (uint8_t(bytes[i]) & 0x3Fu);
        }
        return value >= LEAST[bytes.size()] && value < 0x110000 && (value < 0xD800 || value > 0xDFFF);
    }

    // Whether it is UTF-8 without what is banned; not `whole`: its last character may lack bytes.
    bool is_text(const std::string & text, bool whole) const {
        if (text.find_first_of(edits_.banned + '\0') != text.npos) {
            return false;
        }
        for (size_t at = 0, n = 0; at < text.size(); at += n) {
            const uint8_t first = uint8_t(text[at]);
            n = first < 0x80 ? 1 : first < 0xC0 ? 9 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF8 ? 4 : 9;
            const std::string one  = text.substr(at, n);
            const size_t      lack = n - one.size();
            if (n == 9 || (whole && lack > 0) || // one of the two ends of what it may become is a character
                !(is_character(one + std::string(lack, '\x80')) || is_character(one + std::string(lack, '\xBF')))) {
                return false;
            }
        }
        return true;
    }
};

const Texts LINES{ "", "a", "ab", "  a", "=", "==", "===x", "é", "a", "b`", "<", ">x", "~" };

std::string some_file(Draw & draw) {
    std::string file;
    for (const auto & line : draw.some_of(LINES, draw.below(6))) {
        file += line + "\n";
    }
    file.resize(file.size() - (file.size() > 1 && draw.below(2) > 0)); // the last line may have no end
    return file;
}

// A constraint over one or two small files.
Constraint some_edits(Draw & draw) {
    Constraint edits;
    for (size_t n = draw.from(1, 3); n > 0; --n) {
        edits.files.push_back(some_file(draw));
    }
    const size_t kind = draw.below(4);
    edits.closing     = kind < 2 ? ">>>" : "```";
    for (uint32_t i = 0; i < edits.files.size(); ++i) {
        const std::string name(1, "ab"[i]);
        if (kind < 2) {
            edits.openings.push_back({ name + "\n<<\n", i, 0, 1, true });
        } else if (kind == 2) {
            edits.openings.push_back({ name + "\n```\n", i, 0, 1, false });
        }
    }
    if (kind < 2) {
        edits.separator = "====\n";
        edits.again     = "<<\n";
        return edits;
    }
    edits.banned = "~";
    if (kind == 3) { // the second is in the first, the third apart
        edits.openings = { { "a:x\n```\n", 0, 0, 4, false },
                           { "a:xb\n```\n", 0, 1, 3, false },
                           { "a:b\n```\n", 0, 4, 6, false } };
    }
    return edits;
}

// A vocabulary: bytes, parts of what an answer may have, and the end, an empty text; without some bytes.
Texts some_tokens(Draw & draw, const Constraint & edits, const std::string & unspelled) {
    Texts parts = edits.files;
    for (const auto & one : edits.openings) {
        parts.push_back(one.text);
    }
    parts.insert(parts.end(), { edits.separator, edits.closing + "\n\n" + edits.openings[0].text, "a\n" + edits.closing,
                                "\n" + edits.closing + "\n" });
    draw.shuffle(parts);
    const std::string all = test::joined(parts) + edits.separator + edits.closing;
    Texts             tokens{ "~", "~\n", "\xed\xa0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80" };
    for (const char byte : std::string("abx: =<>`\n#é\xc3\xe2\x82\xac\xff")) {
        tokens.emplace_back(1, byte);
    }
    for (int i = 0; i < 60; ++i) {
        tokens.push_back(all.substr(draw.below(all.size()), draw.from(1, 9)));
    }
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(),
                                [&](const auto & one) { return one.find_first_of(unspelled) != one.npos; }),
                 tokens.end());
    tokens.emplace_back();
    return tokens;
}

// A random constraint with a vocabulary.
struct Case {
    Draw        draw;
    Constraint  edits;
    std::string unspelled;
    PlainEdits  plain;
    Texts       tokens;
    TokenTexts  texts;
    EditParams  params;

    explicit Case(uint64_t seed) :
        draw(seed),
        edits(some_edits(draw)),
        unspelled(draw.below(2) > 0 ? "~" : ""),
        plain(edits, unspelled),
        tokens(some_tokens(draw, edits, unspelled)),
        texts(tokens),
        params(edits.files, edits.openings, edits.again, edits.separator, edits.closing, edits.banned) {
        texts.prepare();
    }

    std::vector<llama_token> allowed(Edits & answer) const {
        std::vector<float>       logits(tokens.size());
        std::vector<llama_token> left;
        answer.mask(logits.data());
        for (size_t token = 0; token < tokens.size(); ++token) {
            if (!std::isinf(logits[token])) {
                left.push_back(llama_token(token));
            }
        }
        return left;
    }

    // One of those that are allowed: rather those that lead to other parts.
    llama_token next(const std::vector<llama_token> & allowed) {
        std::vector<llama_token> special;
        for (const llama_token token : allowed) {
            const std::string & text = tokens[size_t(token)];
            if (text.empty() || text.find_first_of("\n`=>") != text.npos) {
                special.push_back(token);
            }
        }
        return draw.one_of(!special.empty() && draw.unit() < 0.6 ? special : allowed);
    }
};

} // namespace

TEST(what_may_come_next_in_edits_is_what_a_plain_reading_allows) {
    size_t n_ended = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
        Case        one(seed);
        Edits       answer(one.params, one.texts, 0);
        std::string written;
        for (int i = 0; i < 24; ++i) {
            std::vector<llama_token> expected;
            for (size_t token = 0; token < one.tokens.size(); ++token) {
                const auto found = one.plain.read(written + one.tokens[token]);
                if (one.tokens[token].empty() ? found == PlainEdits::WHOLE : found != PlainEdits::NO) {
                    expected.push_back(llama_token(token));
                }
            }
            const auto allowed = one.allowed(answer);
            test::check(allowed == expected, "seed " + std::to_string(seed) + " after " + written, __FILE__, __LINE__);
            const llama_token token = one.next(allowed);
            CHECK(answer.accept(token));
            if (one.texts.ends(token)) {
                ++n_ended;
                break;
            }
            written += one.tokens[size_t(token)];
        }
    }
    CHECK(n_ended > 10);
}

TEST(an_answer_of_edits_ends_within_its_limit) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
        Case           one(seed);
        Edits          free(one.params, one.texts, 0);
        const uint32_t limit = free.cost() + uint32_t(one.draw.below(12));
        Edits          answer(one.params, one.texts, limit);
        std::string    written;
        uint32_t       n = 0;
        for (bool ended = false; !ended; ++n) {
            const auto allowed = one.allowed(answer), freely = one.allowed(free);
            CHECK(!allowed.empty() && std::includes(freely.begin(), freely.end(), allowed.begin(), allowed.end()));
            CHECK(answer.cost() <= limit - n);
            const llama_token token = one.next(allowed);
            CHECK(answer.accept(token) && free.accept(token));
            ended = one.texts.ends(token);
            written += one.tokens[size_t(token)];
        }
        CHECK(n <= limit);
        CHECK(one.plain.read(written) == PlainEdits::WHOLE);
    }
}

} // namespace tgr
