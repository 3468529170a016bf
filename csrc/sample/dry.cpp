#include "sample/dry.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tgr {

// Finite: a token that a grammar needs must stay possible.
static constexpr float LARGEST_PENALTY = 1e30f;

Dry::Dry(const TokenTexts & texts, const DryParams & params) : params_(params), texts_(texts) {
    texts.prepare();
    for (const auto & text : params_.breakers) {
        longest_ = std::max(longest_, text.size());
        if (const llama_token token = texts.find(text); token >= 0 && !texts.is_visible(token)) {
            breaking_.push_back(token);
        }
    }
}

bool Dry::is_breaking(llama_token token) const {
    return std::find(breaking_.begin(), breaking_.end(), token) != breaking_.end();
}

bool Dry::holds_breaker(llama_token token) const {
    const std::string_view text = texts_.text(token);
    return is_breaking(token) || std::any_of(params_.breakers.begin(), params_.breakers.end(),
                                             [&](const auto & breaker) { return text.find(breaker) != text.npos; });
}

void Dry::accept(llama_token token) {
    recent_.push_back(token);
    if (params_.last_n >= 0 && recent_.size() > size_t(params_.last_n)) {
        recent_.pop_front();
    }
    const std::string_view text = texts_.text(token);
    ++since_;
    if (is_breaking(token)) {
        since_ = 0;
    }
    end_ += text;
    for (const auto & breaker : params_.breakers) { // one that ends within this token
        const size_t last = text.size() + breaker.size() - 1;
        if (!text.empty() && end_.find(breaker, end_.size() - std::min(last, end_.size())) != end_.npos) {
            since_ = 0;
        }
    }
    if (end_.size() >= longest_) {
        end_.erase(0, end_.size() - (longest_ > 0 ? longest_ - 1 : 0));
    }
}

void Dry::penalize(float * logits) const {
    const size_t                   n = recent_.size();
    const std::vector<llama_token> newest(recent_.rbegin(), recent_.rend());
    std::map<llama_token, size_t>  repeated; // the longest repetition that each token goes on with

    // lengths[k]: how many tokens the text ends with as it did k tokens ago (the Z algorithm, in linear time)
    std::vector<size_t> lengths(n, 0);
    for (size_t k = 1, left = 0, right = 0; k < n; ++k) { // [left, right) is like [0, right - left)
        size_t length = k < right ? std::min(right - k, lengths[k - left]) : 0;
        while (k + length < n && newest[length] == newest[k + length]) {
            ++length;
        }
        lengths[k] = length;
        if (k + length > right) {
            left  = k;
            right = k + length;
        }
        const size_t repeats = std::min(length, since_);
        if (repeats >= size_t(params_.allowed_length)) {
            size_t & most = repeated[newest[k - 1]];
            most          = std::max(most, repeats);
        }
    }
    for (const auto & [token, length] : repeated) {
        if (!holds_breaker(token)) {
            const double factor  = std::pow(double(params_.base), double(length) - params_.allowed_length);
            const double penalty = std::min(params_.multiplier * factor, double(LARGEST_PENALTY));
            logits[token] -= float(penalty);
        }
    }
}

} // namespace tgr
