#include "grammar_hooks.h"

namespace tgr {

static thread_local GrammarBudget *      budget = nullptr;
static thread_local const GrammarWatch * watch  = nullptr;
static thread_local int                  depth  = 0;

GrammarBudget::GrammarBudget(uint64_t work) : left_(work), outer_(budget) {
    budget = this;
}

GrammarBudget::~GrammarBudget() {
    budget = outer_;
}

void GrammarBudget::spend(uint64_t work) {
    if (work > left_) {
        throw GrammarTooCostly("the grammar takes too much work; make it shorter, or less ambiguous");
    }
    left_ -= work;
}

GrammarWatch::GrammarWatch(const std::atomic<bool> * one, const std::atomic<bool> * other) :
    flags_{ one, other },
    outer_(watch) {
    watch = this;
}

GrammarWatch::~GrammarWatch() {
    watch = outer_;
}

void GrammarWatch::check() const {
    for (const auto * flag : flags_) {
        if (flag && flag->load(std::memory_order_relaxed)) {
            throw GrammarStopped();
        }
    }
}

void grammar_spend(uint64_t work) {
    if (watch) {
        watch->check();
    }
    if (budget) {
        budget->spend(work);
    }
}

grammar_level::grammar_level(int most, const char * error) {
    if (depth >= most) {
        throw std::runtime_error(error);
    }
    ++depth;
}

grammar_level::~grammar_level() {
    --depth;
}

} // namespace tgr
