// Chooses the threads of a step while other programs want the cores.
//
// In: the tokens and the time of every step, and how often the system took a core away from this process meanwhile.
// Out: the threads of the next step. The threads of a step wait for each other after every operation, so where one of
// them has no core, all stand still: then fewer are faster. Which number is faster is measured: blocks of steps with
// the present number and with half or twice as many in turns, each step compared with steps of as many tokens. Where
// nobody takes a core away, a number that is as fast goes up again.
#pragma once

#include <array>
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

    // Notes that the step took that long, and that the process lost a core so many times meanwhile.
    void took(double seconds, uint64_t n_lost);

    // The threads of a step while nothing is tried out.
    int32_t now() const { return now_; }

private:
    static constexpr size_t LONGEST = 32; // tokens: in longer steps the threads wait for each other rarely

    struct Step {
        size_t n_tokens;
        double seconds;
        bool   other; // taken with the other number
    };

    void   begin();
    void   end_block();
    void   end(bool changes);
    double slowness() const; // time with the other number over that with the present one

    int32_t           most_, now_;
    bool              adapts_;
    size_t            n_tokens_ = 0;          // tokens of the step under way
    double            seconds_  = 0;          // time since the last trial
    uint64_t          n_lost_   = 0;          // cores lost since the last trial
    double            pause_;                 // seconds until the next trial at least
    double            wait_;                  // seconds until the next trial where trials are short
    bool              is_busy_       = false; // cores were lost before this trial
    int32_t           other_         = 0;     // the number that is tried; 0 = none
    bool              down_          = false; // the last one was half
    bool              changed_       = false; // the last trial changed the number
    size_t            n_steps_       = 0;     // steps of the trial
    double            trial_seconds_ = 0;
    std::vector<Step> steps_; // steps of the trial, without the first of each block
};

// Number of times that the system took a core away from a thread of this process that had work; 0 where it does not say
// (Linux does).
uint64_t cores_lost();

} // namespace tgr
