// What an answer of edits may continue with: only what becomes edits that apply, and that can be ended within the
// tokens that are left. edit_rules.h says what such an answer is.
//
// A quoted line is a position in a file. The text so far has a set of positions at which it stands in the file; the
// next tokens are found by walking the vocabulary's tree along the file from all of them together. The new text is
// free: where each token leads from each of its few states is known beforehand.
#pragma once

#include "edit_rules.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tgr {

// One answer. One thread at a time; what throws leaves it unusable.
class Edits {
public:
    // `limit` is the number of tokens of the answer at most, its end token included; 0 = no limit. `texts` must live as
    // long. Throws ArgumentError where the vocabulary can write no edit.
    Edits(const EditParams & params, const TokenTexts & texts, uint32_t limit);

    // Sets the logits of the tokens that may not come next to -inf. Where the limit is too small already, only those
    // may that lead to the end as soon as possible.
    void mask(float * logits);

    // Reads a token; false when it may not come next.
    bool accept(llama_token token);

    // Tokens to the end of the answer at least, its end token included.
    EditCost cost() { return cost_of(now_); }

private:
    enum class Part : uint8_t { OPENING, QUOTE, TEXT, CLOSED, OVER };

    // Where a text has led to. Its threads are the openings or first quoted lines that it may be the beginning of; all
    // have the same bytes so far.
    struct State {
        Part            part       = Part::OPENING;
        FreeText::State text       = 0;     // TEXT
        uint8_t         n_newlines = 0;     // CLOSED: line ends after it
        uint32_t        file       = 0;     // of the block, or of the last one
        size_t          begin = 0, end = 0; // of its threads in threads_
        uint32_t        depth       = 0;    // OPENING, QUOTE: bytes
        uint32_t        n_lines     = 0;    // QUOTE: whole lines
        int32_t         n_separator = -1;   // QUOTE: bytes of the separator; -1 = it may not begin
        uint32_t        first       = 0;    // QUOTE: the first thread when the separator could begin
        size_t          n_used      = 0;    // in used_
    };

    // Lines that a block of this answer replaces.
    struct Used {
        uint32_t file, first, end;
        uint64_t before; // the file's version without them
    };

    const EditParams &               params_;
    const TokenTexts &               texts_;
    const TokenTrie &                trie_;
    std::shared_ptr<const EditRules> rules_;
    uint32_t                         limit_;
    uint32_t                         n_read_ = 0;
    State                            now_;
    std::vector<uint32_t>            threads_;
    std::vector<Used>                used_;
    std::vector<llama_token>         allowed_;
    uint32_t                         budget_ = 0; // tokens after the next one

    struct File {
        std::map<uint32_t, uint32_t> used;                 // first line to end
        uint64_t                     version = 0;          // of `used`: equal numbers, equal contents
        uint64_t                     known   = UINT64_MAX; // the version that `least` is of
        EditCost                     least   = NEVER;      // from a line that is free to the end of the answer
    };
    std::vector<File> files_;
    uint64_t          n_versions_ = 0;

    bool     is_free(uint32_t file, uint32_t first, uint32_t end) const;
    bool     can_quote(uint32_t file, uint32_t line) const;
    EditCost quote_cost(uint32_t file);
    EditCost opening_cost(uint32_t opening, uint32_t file, uint32_t depth);
    EditCost cost_of(const State & state);
    void     use(State & state, uint32_t file, uint32_t first, uint32_t end);
    void     go_back(const State & state);
    void     begin_openings(State & state, bool again);
    void     begin_block(State & state, uint32_t opening);
    void     end_line(State & state);
    uint8_t  next_byte(const State & state, uint32_t thread) const;
    void     keep(State & to, uint8_t byte);
    bool     read_opening(State & to, uint8_t byte);
    bool     read_quote(State & to, uint8_t byte);
    bool     read(State & state, uint8_t byte);
    void     allow(const State & state, uint32_t node);
    void     allow_below(const State & state, uint32_t node);
    bool     may_close(const ClosingToken & token);
    void     mask_text(float * logits);

    std::vector<size_t> grouped(const State & state);
};

} // namespace tgr
