// The tokens that may come next in a text that follows a grammar. The parses of the text so far are stacks of symbols.
// Equal stacks are stored once, and a repeated symbol has a count instead of copies.
//
// A client's grammar may be highly ambiguous. So its work, the number of its stacks and its time are bounded, and
// cancelling its job ends it.
#pragma once

#include "base/errors.h"
#include "constrain/gbnf.h"
#include "constrain/token_texts.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tgr {

// The most work of a call, in visited symbols, about 8 ns each: a second.
inline constexpr uint64_t GRAMMAR_WORK = 1 << 27;

// The least work for each text, where many texts that are written together share the work of a call.
inline constexpr uint64_t GRAMMAR_WORK_LEAST = 1 << 25;

// Most nodes of a text's readings: some 10 MB.
inline constexpr size_t GRAMMAR_NODES = 1 << 18;

struct GrammarTooCostly : ArgumentError {
    using ArgumentError::ArgumentError;
};

struct GrammarStopped {}; // signals a stop; no std::exception, since the grammar has no error

// Ends the work of grammars on this thread with GrammarStopped while it lives, once a flag is set. A flag may be null.
class GrammarWatch {
public:
    GrammarWatch(const std::atomic<bool> * one, const std::atomic<bool> * other);
    ~GrammarWatch();
    GrammarWatch(const GrammarWatch &) = delete;

    // Throws GrammarStopped when a flag of this thread's watch is set.
    static void check();

private:
    const std::atomic<bool> * flags_[2];
    const GrammarWatch *      outer_;
};

// The readings of one text. One thread at a time; what throws leaves it unusable.
class Grammar {
public:
    // `work` is what a call may cost. Throws GrammarTooCostly.
    Grammar(std::shared_ptr<const GrammarRules> rules, uint64_t work);

    // Sets the logits of the tokens that may not come next to -inf.
    void mask(const TokenTexts & texts, float * logits);

    // Reads a token; false when it may not come next.
    bool accept(const TokenTexts & texts, llama_token token);

    // Reads a text, whatever tokens it has; false when it may not come next.
    bool accept(std::string_view text);

    // The next n_tokens calls share the work of one, and a little for each; 0 = each has its own again.
    void share_work(size_t n_tokens) {
        shared_ = n_tokens > 0;
        left_   = work_ + GRAMMAR_WORK / 4096 * n_tokens;
    }

private:
    // A stack: its uppermost symbol and the stack below. Equal stacks have equal numbers; 0 is the empty one.
    struct Node {
        uint32_t symbol;
        uint32_t count; // times that a repeated symbol has been read
        uint32_t below;
    };

    // A character of which bytes are read.
    struct Character {
        uint32_t value  = 0; // number that the bytes so far make
        int      n_more = 0; // bytes that it lacks

        // False when none goes on, or begins, with that byte.
        bool read(uint8_t byte);

        // Code points that it may become.
        GrammarRules::Range range() const;
    };

    // State after the bytes of a token: the stacks that can go on, and the character that has begun.
    struct Level {
        size_t    begin, end; // range in stacks_
        size_t    n_nodes;
        Character character;
    };

    // Parts of the mask. (grammar_mask.cpp)
    struct Run;
    class ClassTokens;
    class ByStates;
    class ByStacks;

    std::shared_ptr<const GrammarRules> rules_;
    uint64_t                            work_, left_ = 0; // work of a call, and what is left of it
    bool                                shared_ = false;
    std::vector<Node>                   nodes_;
    std::vector<uint32_t>               table_; // hash table of nodes_
    std::vector<uint64_t>               seen_;  // last expansion that met each node
    uint64_t                            expansion_ = 0;
    std::vector<uint32_t>               todo_;
    std::vector<uint32_t>               stacks_; // stacks of the text, then those of the levels
    Level                               now_{};  // state after the text
    size_t                              tidy_at_ = 1024;

    void                  begin_call();
    void                  spend(uint64_t work);
    uint32_t              node(uint32_t symbol, uint32_t count, uint32_t below);
    void                  forget_nodes(size_t n);
    size_t                slot_of(const Node & node) const;
    void                  resize_table(size_t n);
    uint32_t              stack(uint32_t symbol, uint32_t below);
    void                  expand(uint32_t first);
    bool                  matches(const GrammarSymbol & symbol, uint32_t c) const;
    bool                  matches(const GrammarSymbol & symbol, uint32_t c, uint32_t & low, uint32_t & high) const;
    bool                  may_match(uint32_t stack, Character character) const;
    bool                  may_go_on(const Level & level) const;
    bool                  read(const Level & from, uint8_t byte, Level & to);
    void                  go_back();
    uint32_t              repeats(uint32_t stack);
    Run                   run(const TokenTexts & texts);
    void                  allow(const TokenTexts & texts, std::vector<uint8_t> & allowed);
    std::vector<uint32_t> after(std::string_view text, Level & level);
    void                  move_to(std::vector<uint32_t> stacks, const Level & level);
    void                  tidy();
};

} // namespace tgr
