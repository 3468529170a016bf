// What a grammar may cost. llama.cpp follows one by recursion and keeps every way in which it can be read: a few bytes
// of an ambiguous grammar are work without end. The lines that csrc/patches places in llama-grammar.cpp count it here,
// and throw where llama.cpp would overflow the stack or never come back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace tgr {

// In units of some 50 ns: a second or two.
inline constexpr uint64_t GRAMMAR_WORK = 1 << 24;

// The least that each of many texts has, which are written together and share it.
inline constexpr uint64_t GRAMMAR_WORK_LEAST = 1 << 20;

// Of GBNF.
inline constexpr size_t GRAMMAR_BYTES = 1 << 18;

// What is left of it for the call under way.
inline thread_local uint64_t grammar_work_left = GRAMMAR_WORK;

struct GrammarTooCostly : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct GrammarStopped {}; // no std::exception, which llama.cpp catches and prints

// While it lives, either flag ends what a grammar does on this thread, with GrammarStopped.
struct GrammarWatch {
    static inline thread_local const std::atomic<bool> * flags[2] = {};

    GrammarWatch(const std::atomic<bool> * one, const std::atomic<bool> * other) {
        flags[0] = one;
        flags[1] = other;
    }
    ~GrammarWatch() { flags[0] = flags[1] = nullptr; }
    GrammarWatch(const GrammarWatch &) = delete;
};

inline void grammar_spend(uint64_t work) {
    for (const auto * flag : GrammarWatch::flags) {
        if (flag && flag->load(std::memory_order_relaxed)) {
            throw GrammarStopped();
        }
    }
    if (work > grammar_work_left) {
        throw GrammarTooCostly("the grammar takes too much work; make it shorter, or less ambiguous");
    }
    grammar_work_left -= work;
}

// One level of a recursion.
struct grammar_level {
    static inline thread_local int depth = 0;

    grammar_level(int most, const char * error) {
        if (depth >= most) {
            throw std::runtime_error(error);
        }
        ++depth;
    }
    ~grammar_level() { --depth; }
    grammar_level(const grammar_level &) = delete;
};

} // namespace tgr
