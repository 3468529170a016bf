// Samples a token from one row of logits, with its log-probability and the entropy. Knows no sequences or batches.
#pragma once

#include "base/sampling_params.h"
#include "constrain/grammar.h"
#include "constrain/token_texts.h"
#include "constrain/trigger.h"
#include "sample/dry.h"

#include "llama.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

// The model's own distribution, at temperature 1 and before any filter.
struct Distribution {
    double      log_sum_exp; // log p(token) = logit - log_sum_exp
    float       entropy;     // nats
    llama_token likeliest;   // the lowest id among equals
};

Distribution distribution(const float * logits, int32_t n_vocab);

// The n likeliest tokens with their log-probabilities, likeliest first, the lowest id first among equals.
std::vector<std::pair<llama_token, float>> top_tokens(const float * logits, int32_t n_vocab, int32_t n,
                                                      const Distribution & model);

struct Draw {
    llama_token token;
    float logprob; // log p in the distribution that it was drawn from: after bias, penalties, filters, temperature
};

// One sequence's sampler. Bias, penalties, DRY and a grammar change the logits first; then top-n-sigma, top-k,
// typical-p, top-p, min-p and XTC filter at temperature 1, and from the rest one is drawn at the temperature, which may
// depend on their entropy. The same as a chain of llama.cpp's samplers, but without sorting or copying the vocabulary.
class Sampler {
public:
    // Throws ArgumentError for parameters out of bounds and for a grammar that does not parse.
    // `share` is how many samplers share the work that a grammar may cost in one call.
    // `like`, which may be null, lends what it made of the same grammar. `texts` must live as long as the sampler is
    // used.
    Sampler(const TokenTexts & texts, const SamplingParams & params, uint64_t seed, size_t share = 1,
            const Sampler * like = nullptr);

    // `model` is the distribution of these logits.
    Draw sample(const float * logits, const Distribution & model);

    // Begins again with the next of these seeds after every n tokens.
    void reseed_every(int32_t n, std::vector<uint64_t> seeds);

    // Counts a token before the generated text for the penalties.
    void accept_prompt(llama_token token);

    // Advances the grammar by tokens before the first generated one. Throws ArgumentError for a token that it refuses.
    void accept_grammar(const std::vector<llama_token> & tokens);

private:
    SamplingParams                      params_;
    const TokenTexts &                  texts_;
    int32_t                             n_vocab_;
    std::mt19937                        random_;
    int32_t                             part_ = 0; // tokens for one seed; 0 = no limit
    int32_t                             left_ = 0; // tokens left for the present seed
    std::deque<uint64_t>                seeds_;    // seeds to come
    std::unique_ptr<Grammar>            grammar_;  // null: there is none, or it has not begun
    std::optional<TriggerSearch>        waits_;    // search for the grammar's beginning
    std::shared_ptr<const GrammarRules> rules_;
    uint64_t                            work_          = 0; // most work of the grammar in one call
    bool                                has_penalties_ = false;
    std::deque<llama_token>             recent_; // tokens that penalties count
    std::unique_ptr<Dry>                dry_;    // null = off

    // The random numbers of one draw.
    struct Chance {
        double u;        // place of the token in the distribution, 0 to 1
        bool   excludes; // whether XTC takes the likeliest away
    };

    const float * edited(const float * logits);
    Draw          draw(const float * logits, const Distribution & now, Chance chance) const;
    Draw          draw_until_accepted(const float * logits, Chance chance, Draw drawn);
    bool          accept(llama_token token);
};

} // namespace tgr
