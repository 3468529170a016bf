// Drafts: guesses at the tokens that a text continues with, from what followed the same words before.
//
// In: texts as tokens, and the tokens that they went on with. Out: guessed tokens, and how many of them are worth a row
// of the next batch. A guess is decoded like any token and sampled as without it: it is accepted where the sampled
// token is the guessed one, so it never changes a text. Guesses are compared with the text also where they are not
// decoded, and none is decoded before enough of them were right. Nothing here knows a model, the cache or the clock:
// times are estimates, as multiples of a step of one token.
#pragma once

#include "llama.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

using Tokens = std::vector<llama_token>;

struct Draft {
    Tokens tokens;        // guesses at the next tokens
    size_t n_matched = 0; // newest tokens of the text that they followed elsewhere
};

// Returns at most `most` tokens that follow the place most like the end of a text, which is `own` and then `next`: the
// newest such place in the text itself, or one in the other texts where more is alike. Looks at `n_read` tokens of all
// these texts together, the newest ones.
Draft look_up(const Tokens & own, llama_token next, const std::vector<const Tokens *> & others, size_t most,
              size_t n_read);

// Mean number of right tokens of a draft, by its length and by how many tokens before it were alike. The newest draft
// has a weight of one third.
class Hits {
public:
    // Lengths with which a draft and the token before it fill a batch of 8, 16 or 32: a CPU takes as long for fewer.
    static constexpr std::array<size_t, 3> LENGTHS = { 7, 15, 31 };

    // Expected number of right tokens among the first LENGTHS[length]; 0 where nothing is known.
    double expected(size_t n_matched, size_t length) const;

    // Notes that `right` tokens followed one after the other since `n_matched` ones were alike; call it after each.
    // `ended` = the next one was another.
    void note(size_t n_matched, size_t right, bool ended);

private:
    static constexpr std::array<size_t, 5> LEAST_MATCHED = { 1, 2, 4, 8, 16 };
    struct Mean {
        double right;
        bool   known;
    };
    std::array<std::array<Mean, LENGTHS.size()>, LEAST_MATCHED.size()> means_{};
};

// The draft of a text, followed token by token.
class Followed {
public:
    // Whether too few tokens are left for a long draft.
    bool short_of() const { return n_left() < Hits::LENGTHS.back(); }

    // Takes the draft that was found now; the tokens that were alike go on counting where the old one was right so far.
    void look(Draft draft);

    size_t n_left() const { return draft_.tokens.size() - at_; }
    size_t n_alike() const { return n_matched_ + n_right_; } // tokens before those that are left

    llama_token guess(size_t i) const { return draft_.tokens[at_ + i]; }

    void went_on(llama_token token, Hits & hits);

private:
    Draft  draft_;
    size_t at_        = 0;
    size_t n_matched_ = 0; // tokens that were alike before the first right one
    size_t n_right_   = 0;
};

// Products of the weights with the tokens of a step: ggml's or ours (csrc/quantized) on a CPU, or a GPU's.
enum class Kernels { ggml, own, gpu };

// The time of a step by the tokens in its batch, as a multiple of that of one token.
class StepTimes {
public:
    // `n_threads` counts on a CPU: wide steps share their products among the threads, a step of one waits for memory.
    StepTimes(Kernels kernels, int32_t n_threads);

    double of(size_t width) const;

private:
    Kernels kernels_;
    double  at_once_; // products that take no longer than one
};

// A text, for the choice of rows.
struct Guess {
    size_t                                   n_left = 0; // tokens of its draft that can be decoded
    std::array<double, Hits::LENGTHS.size()> right{};    // expected among the first ones, for each of the lengths
};

// Number of tokens of each draft that the next batch should hold beside one token of each text: as many as make the
// most tokens in the time of a step, in a batch of `widest` tokens at most that takes `slowest` times its time without
// drafts at most.
std::vector<size_t> choose_rows(const std::vector<Guess> & guesses, const StepTimes & times, size_t widest,
                                double slowest);

} // namespace tgr
