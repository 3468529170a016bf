// What a grammar may cost. llama.cpp follows one by recursion and keeps every way in which it can be read: a few bytes
// of an ambiguous grammar are work without end. The lines that csrc/patches places in llama-grammar.cpp count the work
// here, and throw where llama.cpp would overflow the stack or never come back.
//
// Budget, watch and depth belong to a thread. llama.cpp's functions have no argument to pass them through, so each
// scope object sets a thread-local pointer that is private to grammar_hooks.cpp, and restores it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace tgr {

// In units of some 50 ns: a second or two.
inline constexpr uint64_t GRAMMAR_WORK = 1 << 24;

// The least for each of many texts that are written together and share it.
inline constexpr uint64_t GRAMMAR_WORK_LEAST = 1 << 20;

// Of GBNF.
inline constexpr size_t GRAMMAR_BYTES = 1 << 18;

struct GrammarTooCostly : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct GrammarStopped {}; // no std::exception, which llama.cpp catches and prints

// While it lives, the work of a grammar on this thread is taken from it.
class GrammarBudget {
public:
    explicit GrammarBudget(uint64_t work);
    ~GrammarBudget();
    GrammarBudget(const GrammarBudget &) = delete;

    // Throws GrammarTooCostly when less is left.
    void spend(uint64_t work);

private:
    uint64_t        left_;
    GrammarBudget * outer_;
};

// While it lives, either flag ends the work of a grammar on this thread with GrammarStopped. A flag may be null.
class GrammarWatch {
public:
    GrammarWatch(const std::atomic<bool> * one, const std::atomic<bool> * other);
    ~GrammarWatch();
    GrammarWatch(const GrammarWatch &) = delete;

    // Throws GrammarStopped when a flag is set.
    void check() const;

private:
    const std::atomic<bool> * flags_[2];
    const GrammarWatch *      outer_;
};

// --- called by llama.cpp ---

// Takes work from this thread's budget and looks at its watch.
void grammar_spend(uint64_t work);

// One level of a recursion. Throws std::runtime_error with this text for more than `most` levels.
class grammar_level {
public:
    grammar_level(int most, const char * error);
    ~grammar_level();
    grammar_level(const grammar_level &) = delete;
};

} // namespace tgr
