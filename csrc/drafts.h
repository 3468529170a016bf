// Drafts: guesses at the tokens that a text continues with, from what followed the same words before.
//
// In: texts as tokens, whether the guesses were right, the seconds that steps took. Out: guessed tokens, and how many
// of them are worth a row of the next batch. A guess is decoded like any token and sampled as without it: it is
// accepted where the sampled token is the guessed one, so it never changes a text. Nothing here knows the model or the
// cache.
#pragma once

#include "llama.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

using Tokens = std::vector<llama_token>;

struct Draft {
    Tokens tokens;        // that may follow
    size_t n_matched = 0; // newest tokens of the text that they followed elsewhere
};

// What follows the place that is most like the end of a text, which is `own` and then `next`: the newest such place in
// the text itself, or one in the other texts where more is alike. At most `most` tokens. Looks at `n_read` tokens of
// all these texts together, the newest ones.
Draft look_up(const Tokens & own, llama_token next, const std::vector<const Tokens *> & others, size_t most,
              size_t n_read);

// How often guesses were right, by the number of tokens that they followed elsewhere: a mean of the newest ones, which
// begins with a guess of its own.
class Acceptance {
public:
    Acceptance();
    double chance(size_t n_matched) const;
    void   note(size_t n_matched, bool right);

private:
    static constexpr size_t LONGEST = 16; // longer places are alike
    struct Count {
        double right, n;
    };
    std::array<Count, LONGEST> counts_;
};

// The seconds of a step by its width, the tokens in its batch. Widths that nearly cost the same count as one. What was
// not measured lately follows from `curve` and what was.
class StepTimes {
public:
    static constexpr size_t WIDEST = 64;

    double of(size_t width) const; // 0 where nothing was measured
    void   note(size_t width, double seconds);

    // Of a step, as a multiple of a step of one token: a guess for a CPU.
    static double curve(size_t width);

private:
    struct Measured {
        double   seconds = 0;
        uint64_t at      = 0; // step, 0 = never
    };
    bool   known(size_t i) const;
    void   learn(size_t i, double seconds);
    double ratio(size_t i) const; // of a known one to the curve

    std::array<Measured, 12> measured_{};
    uint64_t                 n_steps_      = 0;
    size_t                   last_         = 0; // step, which is learned with the next one
    double                   last_seconds_ = 0;
};

// A text's draft and how likely its tokens are.
struct Guess {
    const Draft *      draft;
    const Acceptance * acceptance;
};

// How many tokens of each draft the next batch should hold beside one token for each text: as many as make the most
// tokens in a second, in a batch of `widest` tokens at most that takes `slowest` times its time without drafts at most.
// Without `times` by the curve.
std::vector<size_t> choose_rows(const std::vector<Guess> & guesses, const StepTimes * times, size_t widest,
                                double slowest);

} // namespace tgr
