// What an answer of edits may be, and how many tokens of a vocabulary its parts take at least.
//
// An answer is one block or more. A block begins with an opening, one of those given, none twice: a line that names a
// file or a function, and the lines after it. Where lines are quoted there, whole lines of the file follow, next to
// each other and not quoted before, then the separator. Then comes new text, which is free, up to a line that begins
// with the closing text, and ends there. One or two line ends stand between two blocks, and at most two after the last.
//
// The texts are those of a client's files: their size is bounded, all else follows from it.
#pragma once

#include "token_texts.h"
#include "token_trie.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tgr {

// Of one constraint; its rules take some ten bytes for each byte, and tens of milliseconds for a megabyte.
inline constexpr size_t EDIT_BYTES    = 1 << 20; // in all files, and in all openings
inline constexpr size_t EDIT_LINES    = 1 << 16; // in all files
inline constexpr size_t EDIT_OPENINGS = 1 << 14;
inline constexpr size_t EDIT_MARKER   = 128; // bytes of the separator, and of the closing text

// Tokens that a part takes at least; what no tokens spell takes NEVER.
using EditCost = uint16_t;

inline constexpr EditCost NEVER = 0xFFFF;

inline EditCost sum(EditCost a, EditCost b) {
    return EditCost(std::min<uint32_t>(uint32_t(a) + b, NEVER));
}

// New text: UTF-8 without some characters, to the closing text at the beginning of a line. A state is what of the
// closing text the line begins with, or that the line is none of it, or which bytes the character lacks.
class FreeText {
public:
    using State = uint8_t;

    static constexpr State DEAD = 0xFF, CLOSED = 0xFE;

    FreeText(std::string closing, const std::string & banned);

    State               read(State state, uint8_t byte) const;
    State               middle() const { return State(closing_.size()); } // of a line
    size_t              n_states() const { return closing_.size() + 8; }
    const std::string & closing() const { return closing_; }

private:
    std::string closing_;
    bool        banned_[256] = {};
};

// A token that holds the closing text, from one state on.
struct ClosingToken {
    llama_token token;
    uint32_t    rest; // bytes from here on come after the closing text
};

// Where the tokens of a vocabulary lead from one state of the new text.
struct FreeTokens {
    std::vector<FreeText::State> after;     // of each token; DEAD also for those that close
    std::vector<llama_token>     forbidden; // those with DEAD
    std::vector<ClosingToken>    closing;
};

struct EditOpening {
    std::string text;
    uint32_t    file, first, end; // the lines that it stands for, where it does not quote
    bool        quotes;
};

struct EditRules; // for one vocabulary

// Any thread.
class EditParams {
public:
    // `again` is an opening, too, of the file of the block before; empty = there is none. `separator` ends with a line
    // end; no file may have it as a line. Throws ArgumentError.
    EditParams(std::vector<std::string> files, std::vector<EditOpening> openings, std::string again,
               std::string separator, std::string closing, const std::string & banned);

    // The rules for this vocabulary, which are made once.
    std::shared_ptr<const EditRules> rules(const TokenTexts & texts) const;

    // Where a line begins in its file; one more than there are lines. Every line ends with a line end.
    const std::vector<std::string> &           files() const { return files_; }
    const std::vector<std::vector<uint32_t>> & lines() const { return lines_; }
    uint32_t n_lines(uint32_t file) const { return uint32_t(lines_[file].size() - 1); }

    // The openings, sorted; that of another block of the same file last, if there is one.
    const std::vector<EditOpening> & openings() const { return openings_; }
    size_t                           n_openings() const { return openings_.size() - has_again_; }
    const std::string &              separator() const { return separator_; }
    const FreeText &                 text() const { return text_; }

private:
    std::vector<std::string>                 files_;
    std::vector<std::vector<uint32_t>>       lines_;
    std::vector<EditOpening>                 openings_;
    std::string                              separator_;
    bool                                     has_again_;
    FreeText                                 text_;
    mutable std::mutex                       mutex_;
    mutable uint64_t                         serial_ = 0; // of the texts that rules_ are for
    mutable std::shared_ptr<const EditRules> rules_;

    void check_openings() const;
};

struct EditRules {
    EditRules(const EditParams & params, const TokenTexts & texts);

    std::vector<FreeTokens>            free;          // from each state of the new text
    std::vector<EditCost>              free_cost;     // from there to the end of the answer
    EditCost                           most_free = 0; // of those that are not NEVER
    std::vector<EditCost>              separator;     // from each of its bytes to the end of the answer
    std::vector<std::vector<EditCost>> openings; // from each byte: to its end where it quotes, else to the answer's
    std::vector<std::vector<EditCost>> files;    // from each byte, through its line, to the end of the answer

private:
    void read_free(const FreeText & text, const TokenTexts & texts);
    void count_free(const TokenTexts & texts);
};

} // namespace tgr
