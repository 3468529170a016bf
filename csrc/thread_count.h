// How many threads a step takes while other programs want the cores.
//
// In: the tokens and the time of every step, and how often the system took a core away from this process meanwhile.
// Out: the threads of the next step. The threads of a step wait for each other after every operation, so where one of
// them has no core, all stand still: then fewer are faster. Which number is the fastest is measured, on steps of equal
// size in turns. Where nobody takes a core away, every step has all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

class ThreadCount {
public:
    // `adapts`: false = always `most`, as a person asked for.
    ThreadCount(int32_t most, bool adapts);

    // The threads of a step of so many tokens.
    int32_t next(size_t n_tokens);

    // It took that long, and the process lost a core so many times meanwhile.
    void took(double seconds, uint64_t n_lost);

    // The threads of a step while nothing is tried out.
    int32_t now() const { return now_; }

private:
    void begin();
    void end_turn();
    void decide();

    int32_t              most_, now_;
    bool                 adapts_;
    size_t               n_tokens_ = 0;         // of the step under way
    double               seconds_  = 0;         // since the last trial
    uint64_t             n_lost_   = 0;         // likewise
    double               pause_;                // seconds until the next trial at least
    std::vector<int32_t> tried_;                // numbers that are tried out in turns; empty = none
    std::vector<double>  times_;                // of each, all its steps together
    size_t               n_steps_      = 0;     // of the trial
    size_t               trial_tokens_ = 0;     // of each of its steps
    bool                 is_trial_     = false; // the step under way
};

// How often the system took a core away from a thread of this process that had work; 0 where the system does not say.
uint64_t cores_lost();

} // namespace tgr
