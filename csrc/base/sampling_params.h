// Parameters of drawing the next token of a text, as plain data.
#pragma once

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

// The DRY sampler (dry.h).
struct DryParams {
    float                    multiplier     = 0.0f; // 0 = off
    float                    base           = 1.0f; // growth with each token, at least 1
    int32_t                  allowed_length = 0;    // length of a repetition that costs nothing
    int32_t                  last_n         = 0;    // newest tokens that it looks at; 0 = off, -1 = all
    std::vector<std::string> breakers;              // texts at which a repetition ends

    bool is_on() const { return multiplier != 0.0f && last_n != 0; }
};

// The trigger of a lazy grammar (trigger.h).
struct TriggerParams {
    std::vector<std::string> words;      // the grammar begins with such a text
    std::vector<std::string> patterns;   // ECMAScript; the first group, else the whole match, begins the grammar
    std::string              think_tag;  // begins thinking, in which no trigger counts; empty = there is none
    std::vector<std::string> think_ends; // texts that end it; one that is a trigger counts
};

// These defaults switch everything off. The defaults of options are in Python.
struct SamplingParams {
    float   temperature       = 1.0f; // values under 1e-6 = the likeliest token
    int32_t top_k             = 0;    // 0 = off
    float   top_p             = 1.0f; // 1 = off
    float   min_p             = 0.0f; // 0 = off
    float   top_n_sigma       = 0.0f; // 0 = off
    float   typical_p         = 1.0f; // 1 = off
    float   dynatemp_range    = 0.0f; // 0 = off
    float   dynatemp_exponent = 1.0f;
    float   repeat_penalty    = 1.0f; // 1 = off
    float   frequency_penalty = 0.0f;
    float   presence_penalty  = 0.0f;
    int32_t repeat_last_n     = 64;   // newest tokens that these three look at; -1 = all; Python hands them over
    float   xtc_probability   = 0.0f; // 0 = off
    float   xtc_threshold     = 1.0f; // values above 0.5 = off

    DryParams                                  dry;
    std::string                                grammar;        // GBNF, empty = none
    std::string                                grammar_prefix; // text before the reply, which it reads first
    std::optional<TriggerParams>               trigger; // trigger at which it begins; the prefix is not read then
    std::vector<std::pair<llama_token, float>> logit_bias;
};

} // namespace tgr
