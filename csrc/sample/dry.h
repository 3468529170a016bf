// The DRY sampler: it subtracts a penalty from tokens that would continue a repetition. The formula is llama.cpp's.
#pragma once

#include "base/sampling_params.h"
#include "constrain/token_texts.h"

#include "llama.h"

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace tgr {

class Dry {
public:
    // `texts` must live as long.
    Dry(const TokenTexts & texts, const DryParams & params);

    // Reads the next token of the text.
    void accept(llama_token token);

    // Subtracts multiplier · base^(n - allowed_length) from the logit of every token that would continue a repetition
    // of n tokens. logits: [n_vocab]
    void penalize(float * logits) const;

private:
    DryParams                params_;
    const TokenTexts &       texts_;
    std::vector<llama_token> breaking_; // control tokens among the breakers
    size_t                   longest_ = 0;
    std::deque<llama_token>  recent_;    // oldest first
    size_t                   since_ = 0; // tokens after the last breaker
    std::string              end_;       // end of the text, in which a breaker may have begun

    bool is_breaking(llama_token token) const;
    bool holds_breaker(llama_token token) const;
};

} // namespace tgr
