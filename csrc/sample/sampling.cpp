#include "sample/sampling.h"

#include "base/errors.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

// The same loops, compiled for wider vectors and picked when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define TGR_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TGR_WIDE
#endif

namespace tgr {

// exp(x) for x <= 0, relative error 2e-6 down to -30 and 5e-6 below; written so that the loops around it become vector
// code, for which the compiler may join the two parts of ln 2.
static inline float exp_negative(float x) {
    x                  = x < -87.0f ? -87.0f : x;
    const float n      = std::floor(x * 1.44269504f + 0.5f);
    const float r      = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float       p      = 1.9875691500e-4f;
    p                  = p * r + 1.3981999507e-3f;
    p                  = p * r + 8.3334519073e-3f;
    p                  = p * r + 4.1665795894e-2f;
    p                  = p * r + 1.6666665459e-1f;
    p                  = p * r + 5.0000001201e-1f;
    p                  = p * r * r + r + 1.0f;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float         scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

TGR_WIDE static float max_of(const float * x, int32_t n) {
    float m = x[0];
    for (int32_t i = 1; i < n; ++i) {
        m = x[i] > m ? x[i] : m;
    }
    return m;
}

// Adds Σ exp(x - max) and Σ exp(x - max) (x - max) of a short block.
TGR_WIDE static void add_block(const float * x, int32_t n, float max, float & sum, float & weighted) {
    float s = 0.0f;
    float w = 0.0f;
    for (int32_t i = 0; i < n; ++i) {
        // the floor keeps a logit of -inf (a banned token) from making 0 * inf
        const float d = x[i] - max < -100.0f ? -100.0f : x[i] - max;
        const float e = exp_negative(d);
        s += e;
        w += e * d;
    }
    sum      = s;
    weighted = w;
}

// Σ exp((x - max) scale) of a short block.
TGR_WIDE static float sum_block(const float * x, int32_t n, float max, float scale) {
    float s = 0.0f;
    for (int32_t i = 0; i < n; ++i) {
        s += exp_negative((x[i] - max) * scale);
    }
    return s;
}

static constexpr int32_t BLOCK = 1024;

// The lowest id of the largest logit; n_vocab when that is not a number.
static llama_token likeliest_of(const float * logits, int32_t n_vocab) {
    int32_t from = 0;
    float   max  = -INFINITY;
    for (int32_t at = 0; at < n_vocab; at += BLOCK) {
        const float m = max_of(logits + at, std::min(BLOCK, n_vocab - at));
        if (m > max) {
            max  = m;
            from = at;
        }
    }
    return llama_token(std::find(logits + from, logits + n_vocab, max) - logits);
}

Distribution distribution(const float * logits, int32_t n_vocab) {
    const llama_token likeliest = likeliest_of(logits, n_vocab);
    const float       max       = likeliest < n_vocab ? logits[likeliest] : NAN;
    double            sum       = 0.0;
    double            weighted  = 0.0;
    for (int32_t at = 0; at < n_vocab; at += BLOCK) {
        float s, w;
        add_block(logits + at, std::min(BLOCK, n_vocab - at), max, s, w);
        sum += s;
        weighted += w;
    }
    const Distribution result = { max + std::log(sum), float(std::log(sum) - weighted / sum), likeliest };
    if (!std::isfinite(result.log_sum_exp)) {
        throw std::runtime_error("the model returned logits that are not finite; the model file may be damaged");
    }
    return result;
}

//
// the likeliest tokens
//

using Ids = std::vector<llama_token>;

// Appends the tokens whose logit lies in [low, high).
static void gather(const float * logits, int32_t n_vocab, float low, float high, Ids & ids) {
    for (llama_token id = 0; id < n_vocab; ++id) {
        if (logits[id] >= low && logits[id] < high) {
            ids.push_back(id);
        }
    }
}

// Calls done(ids, low) with all tokens at most 4, 8, 16, … below the likeliest, which is down to the logit `low`, until
// it is true or there are no more. Few tokens of a real model lie near the likeliest: no need to sort the vocabulary.
template <class F> static Ids gather_until(const float * logits, int32_t n_vocab, float max, F && done) {
    Ids   ids;
    float high = INFINITY;
    for (float depth = 4.0f; high > -FLT_MAX; depth *= 2.0f) {
        const float low = depth < 1e6f ? max - depth : -FLT_MAX; // a banned token has -inf
        gather(logits, n_vocab, low, high, ids);
        if (done(ids, low)) {
            break;
        }
        high = low;
    }
    return ids;
}

// Likelier tokens first, the lowest id first among equals.
struct Before {
    const float * logits;
    bool          operator()(llama_token a, llama_token b) const {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    }
};

// Keeps the n likeliest, in any order.
static void keep_likeliest(const float * logits, size_t n, Ids & ids) {
    if (n < ids.size()) {
        std::nth_element(ids.begin(), ids.begin() + n, ids.end(), Before{ logits });
        ids.resize(n);
    }
}

// How many of the first tokens in an order it takes until their weights sum up to `mass`. They come first in ids then,
// and the last of them last. Like nth_element: in linear time, without sorting what need not be.
template <class F, class O> static size_t count_to_mass(Ids & ids, double mass, F && weight, O && before) {
    const auto at   = [&](size_t i) { return ids.begin() + i; };
    size_t     low  = 0;
    size_t     high = ids.size();
    while (high - low > 64) {
        const size_t middle = low + (high - low) / 2;
        std::nth_element(at(low), at(middle), at(high), before);
        const double half =
            std::accumulate(at(low), at(middle), 0.0, [&](double sum, llama_token id) { return sum + weight(id); });
        if (half >= mass) {
            high = middle;
        } else {
            mass -= half;
            low = middle;
        }
    }
    std::sort(at(low), at(high), before);
    while (low + 1 < high && weight(ids[low]) < mass) {
        mass -= weight(ids[low++]);
    }
    return low + 1;
}

std::vector<std::pair<llama_token, float>> top_tokens(const float * logits, int32_t n_vocab, int32_t n,
                                                      const Distribution & model) {
    const size_t wanted = size_t(std::min(n, n_vocab));
    Ids          ids    = gather_until(logits, n_vocab, logits[model.likeliest],
                                       [&](const Ids & found, float) { return found.size() >= wanted; });
    keep_likeliest(logits, wanted, ids);
    std::sort(ids.begin(), ids.end(), Before{ logits });
    for (llama_token id = 0; ids.size() < wanted; ++id) { // the model itself gives some tokens no probability at all
        if (!(logits[id] >= -FLT_MAX)) {
            ids.push_back(id);
        }
    }
    std::vector<std::pair<llama_token, float>> top;
    for (const llama_token id : ids) {
        top.emplace_back(id, float(logits[id] - model.log_sum_exp));
    }
    return top;
}

//
// drawing
//

static constexpr float NO_TEMPERATURE = 1e-6f; // below it the likeliest is taken: dividing by less would overflow

// The token where the running sum of exp((logit - max) / temperature) passes the share `u` of the whole.
static Draw draw_any(const float * logits, int32_t n_vocab, llama_token likeliest, float temperature, double u) {
    static thread_local std::vector<float> sums; // of each block

    const float max   = logits[likeliest];
    const float scale = 1.0f / temperature;
    double      total = 0.0;
    sums.clear();
    for (int32_t at = 0; at < n_vocab; at += BLOCK) {
        sums.push_back(sum_block(logits + at, std::min(BLOCK, n_vocab - at), max, scale));
        total += sums.back();
    }
    double  before = 0.0;
    int32_t at     = 0;
    for (size_t b = 0; b + 1 < sums.size() && before + sums[b] <= u * total; ++b) {
        before += sums[b];
        at += BLOCK;
    }
    llama_token token = likeliest; // stays only where rounding leaves the last block empty
    for (llama_token id = at; id < std::min(at + BLOCK, n_vocab); ++id) {
        const float p = logits[id] < -FLT_MAX ? 0.0f : exp_negative((logits[id] - max) * scale);
        if (p > 0.0f) {
            token = id;
            before += p;
            if (before > u * total) {
                break;
            }
        }
    }
    return { token, float((double(logits[token]) - max) / temperature - std::log(total)) };
}

// Dynatemp: the temperature for tokens with this entropy, between those `range` below and above the given one; the
// given one for a single token.
static float temperature_for(const SamplingParams & params, double entropy, size_t n) {
    if (params.dynatemp_range <= 0.0f || n < 2) {
        return params.temperature;
    }
    const float  low   = std::max(0.0f, params.temperature - params.dynatemp_range);
    const float  high  = params.temperature + params.dynatemp_range;
    const double share = std::clamp(entropy / std::log(double(n)), 0.0, 1.0);
    return low + (high - low) * float(std::pow(share, double(params.dynatemp_exponent)));
}

// A draw from all tokens that have a probability.
static Draw draw_warm(const float * logits, int32_t n_vocab, llama_token likeliest, const SamplingParams & params,
                      double u) {
    float temperature = params.temperature;
    if (params.dynatemp_range > 0.0f) {
        const auto n = std::count_if(logits, logits + n_vocab, [](float logit) { return logit >= -FLT_MAX; });
        temperature  = temperature_for(params, distribution(logits, n_vocab).entropy, size_t(n));
    }
    return temperature < NO_TEMPERATURE ? Draw{ likeliest, 0.0f }
                                        : draw_any(logits, n_vocab, likeliest, temperature, u);
}

// XTC: of the tokens whose weight is at least `least` the least likely stays, if there are several. It comes last then.
static void exclude_top(const float * logits, Ids & ids, double least, float max) {
    const auto end =
        std::partition(ids.begin(), ids.end(), [&](llama_token id) { return exp_negative(logits[id] - max) < least; });
    if (ids.end() - end >= 2) {
        const llama_token stays = *std::max_element(end, ids.end(), Before{ logits });
        ids.erase(end, ids.end());
        ids.push_back(stays);
    }
}

// A draw after XTC from tokens that no other filter takes away.
static Draw draw_excluded(const float * logits, int32_t n_vocab, const Distribution & model,
                          const SamplingParams & params, double u) {
    static thread_local std::vector<float> values;

    const float  max   = logits[model.likeliest];
    const double least = params.xtc_threshold * std::exp(model.log_sum_exp - max);
    Ids          ids;
    gather(logits, n_vocab, least > 0.0 ? max + float(std::log(least)) - 0.01f : -FLT_MAX, INFINITY, ids);
    Ids left = ids;
    exclude_top(logits, left, least, max);
    values.assign(logits, logits + n_vocab);
    for (const llama_token id : ids) {
        values[id] = -INFINITY;
    }
    for (const llama_token id : left) {
        values[id] = logits[id];
    }
    return draw_warm(values.data(), n_vocab, likeliest_of(values.data(), n_vocab), params, u);
}

// The entropy of these tokens alone, the likeliest of which has the logit `top`.
static double entropy_of(const float * logits, const Ids & ids, float top) {
    double sum = 0.0, weighted = 0.0;
    for (const llama_token id : ids) {
        const double d = double(logits[id]) - top;
        sum += std::exp(d);
        weighted += std::exp(d) * d;
    }
    return std::log(sum) - weighted / sum;
}

// Typical-p: keeps the tokens whose log-probability is nearest to its mean, until they have the share p.
static void keep_typical(const float * logits, Ids & ids, float p, float top) {
    const auto weight = [&](llama_token id) { return std::exp(double(logits[id]) - top); };
    double     sum = 0.0, weighted = 0.0;
    for (const llama_token id : ids) {
        const double w = weight(id);
        sum += w;
        weighted += w * (double(logits[id]) - top);
    }
    const double mean   = weighted / sum; // of logits[id] - top
    const auto   before = [&](llama_token a, llama_token b) {
        const double far_a = std::fabs(double(logits[a]) - top - mean);
        const double far_b = std::fabs(double(logits[b]) - top - mean);
        return far_a < far_b || (far_a == far_b && Before{ logits }(a, b));
    };
    ids.resize(count_to_mass(ids, p * sum, weight, before));
}

// The same among the tokens that the filters leave, from the likeliest down.
static Draw draw_filtered(const float * logits, int32_t n_vocab, const Distribution & model,
                          const SamplingParams & params, double u, bool excludes) {
    const float  max        = logits[model.likeliest];
    const size_t top_k      = params.top_k > 0 ? size_t(params.top_k) : size_t(n_vocab);
    const bool   is_typical = params.typical_p < 1.0f;
    float        lowest     = params.min_p > 0.0f ? max + std::log(params.min_p) : -FLT_MAX;
    const auto   likelier   = Before{ logits };
    const auto   plain      = [&](llama_token id) { return exp_negative(logits[id] - max); };
    const auto   sum        = [&](const Ids & ids, size_t from, auto && weight) {
        return std::accumulate(ids.begin() + from, ids.end(), 0.0,
                               [&](double total, llama_token id) { return total + weight(id); });
    };
    // top_p is a share of what top_k and typical_p leave: of everything without them
    const double all  = std::exp(model.log_sum_exp - max);
    size_t       seen = 0;
    double       mass = 0.0;
    Ids          ids  = gather_until(logits, n_vocab, max, [&](const Ids & found, float low) {
        mass += sum(found, seen, plain);
        seen            = found.size();
        const bool by_p = params.top_k == 0;
        return seen >= top_k || (!is_typical && ((by_p && mass >= params.top_p * all) ||
                                                 (low <= lowest && (by_p || params.top_p >= 1.0f))));
    });
    keep_likeliest(logits, top_k, ids);
    if (is_typical) {
        keep_typical(logits, ids, params.typical_p, max);
        const llama_token first = *std::min_element(ids.begin(), ids.end(), likelier);
        lowest = params.min_p > 0.0f ? logits[first] + std::log(params.min_p) : -FLT_MAX; // of what is left
    }
    if (params.top_p < 1.0f) {
        const double of = params.top_k > 0 || is_typical ? sum(ids, 0, plain) : all;
        ids.resize(count_to_mass(ids, params.top_p * of, plain, likelier));
    }
    ids.erase(std::remove_if(ids.begin(), ids.end(), [&](llama_token id) { return logits[id] < lowest; }), ids.end());

    if (excludes) {
        exclude_top(logits, ids, params.xtc_threshold * sum(ids, 0, plain), max);
    }

    const llama_token likeliest   = *std::min_element(ids.begin(), ids.end(), likelier);
    const float       top         = logits[likeliest];
    const double      entropy     = params.dynatemp_range > 0.0f ? entropy_of(logits, ids, top) : 0.0;
    const float       temperature = temperature_for(params, entropy, ids.size());
    if (temperature < NO_TEMPERATURE) {
        return { likeliest, 0.0f };
    }
    const float       scale = 1.0f / temperature;
    const auto        warm  = [&](llama_token id) { return exp_negative((logits[id] - top) * scale); };
    const double      total = sum(ids, 0, warm);
    const llama_token token = ids[count_to_mass(ids, u * total, warm, likelier) - 1];
    return { token, float((double(logits[token]) - top) / temperature - std::log(total)) };
}

//
// Sampler
//

// The generator takes 32 bits of the seed's 64: fold them (splitmix64).
static uint32_t fold(uint64_t seed) {
    uint64_t x = seed + 0x9e3779b97f4a7c15ull;
    x          = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x          = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return uint32_t(x ^ (x >> 31));
}

static void check_range(const char * name, float value, float low, float high) {
    if (!(value >= low && value <= high)) {
        throw ArgumentError(name, " is ", value, ", but must be between ", low, " and ", high);
    }
}

static void check(const SamplingParams & params, int32_t n_vocab) {
    check_range("temperature", params.temperature, 0.0f, FLT_MAX);
    check_range("top_k", float(params.top_k), 0.0f, FLT_MAX);
    check_range("top_p", params.top_p, 0.0f, 1.0f);
    check_range("min_p", params.min_p, 0.0f, 1.0f);
    check_range("top_n_sigma", params.top_n_sigma, 0.0f, FLT_MAX);
    check_range("typical_p", params.typical_p, 0.0f, 1.0f);
    check_range("dynatemp_range", params.dynatemp_range, 0.0f, 1e30f);
    check_range("dynatemp_exponent", params.dynatemp_exponent, 0.0f, 1e30f);
    check_range("repeat_penalty", params.repeat_penalty, FLT_MIN, FLT_MAX);
    check_range("frequency_penalty", params.frequency_penalty, -1e6f, 1e6f);
    check_range("presence_penalty", params.presence_penalty, -1e6f, 1e6f);
    check_range("repeat_last_n", float(params.repeat_last_n), -1.0f, FLT_MAX);
    check_range("xtc_probability", params.xtc_probability, 0.0f, 1.0f);
    check_range("xtc_threshold", params.xtc_threshold, 0.0f, 1.0f);
    check_range("dry_multiplier", params.dry.multiplier, 0.0f, FLT_MAX);
    check_range("dry_base", params.dry.base, 1.0f, FLT_MAX);
    check_range("dry_allowed_length", float(params.dry.allowed_length), 0.0f, FLT_MAX);
    check_range("dry_penalty_last_n", float(params.dry.last_n), -1.0f, FLT_MAX);
    if (std::count(params.dry.breakers.begin(), params.dry.breakers.end(), "") > 0) {
        throw ArgumentError("dry_sequence_breakers holds an empty text; remove it");
    }
    for (const auto & [token, bias] : params.logit_bias) {
        if (token < 0 || token >= n_vocab) {
            throw ArgumentError("logit_bias names token ", token, ", but the vocabulary ends at ", n_vocab - 1);
        }
        if (!(bias <= FLT_MAX)) { // -inf bans a token
            throw ArgumentError("logit_bias of token ", token, " is not a finite number");
        }
    }
}

Sampler::Sampler(const TokenTexts & texts, const SamplingParams & params, uint64_t seed, size_t share,
                 const Sampler * like) :
    params_(params),
    texts_(texts),
    n_vocab_(texts.n_tokens()),
    random_(fold(seed)) {
    check(params, n_vocab_);
    has_penalties_ = params.repeat_last_n != 0 && (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                                                   params.presence_penalty != 0.0f);
    if (params.dry.is_on()) {
        dry_ = std::make_unique<Dry>(texts, params.dry);
    }
    if (!params.grammar.empty()) {
        texts.prepare();
        work_           = std::max(GRAMMAR_WORK / std::max<size_t>(share, 1), GRAMMAR_WORK_LEAST);
        const bool same = like && like->rules_ && like->params_.grammar == params.grammar;
        rules_ = same ? like->rules_
                      : std::make_shared<const GrammarRules>(
                            parse_gbnf(params.grammar, [&](const std::string & text) { return texts.find(text); }));
        if (params.trigger) {
            waits_.emplace(*params.trigger, params.grammar_prefix);
        } else {
            grammar_ = std::make_unique<Grammar>(rules_, work_);
            if (!grammar_->accept(params.grammar_prefix)) {
                throw ArgumentError("the grammar does not allow grammar_prefix; leave it out");
            }
        }
    }
}

void Sampler::reseed_every(int32_t n, std::vector<uint64_t> seeds) {
    part_ = left_ = n;
    seeds_.assign(seeds.begin(), seeds.end());
}

void Sampler::accept_prompt(llama_token token) {
    if (dry_) {
        dry_->accept(token);
    }
    if (has_penalties_) {
        recent_.push_back(token);
        if (params_.repeat_last_n >= 0 && recent_.size() > size_t(params_.repeat_last_n)) {
            recent_.pop_front();
        }
    }
}

void Sampler::accept_grammar(const std::vector<llama_token> & tokens) {
    bool shares = false; // the grammar may begin at any of the tokens
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (grammar_ && !shares) {
            grammar_->share_work(tokens.size() - i);
            shares = true;
        }
        if (!(accept(tokens[i]) || waits_)) {
            throw ArgumentError("grammar_history holds token ", tokens[i], ", which the grammar does not allow there");
        }
    }
    if (grammar_) {
        grammar_->share_work(0);
    }
}

// The grammar, or the search for its beginning, reads a token. False for a token that is refused; if it was the
// grammar's first one, the search goes on behind the trigger.
bool Sampler::accept(llama_token token) {
    if (grammar_) {
        return grammar_->accept(texts_, token);
    }
    if (!waits_) {
        return true;
    }
    const auto begun = waits_->read(texts_.text(token));
    if (!begun) {
        return true;
    }
    auto grammar = std::make_unique<Grammar>(rules_, work_);
    if (!grammar->accept(*begun)) {
        waits_->pass_over(begun->size());
        return false;
    }
    grammar_ = std::move(grammar);
    waits_.reset();
    return true;
}

// Top-n-sigma: bans the tokens whose logit is more than n standard deviations of all of them below the largest one.
static void mask_below_sigma(float * logits, int32_t n_vocab, float n) {
    float  max = -INFINITY;
    double sum = 0.0, squares = 0.0;
    size_t count = 0;
    for (int32_t id = 0; id < n_vocab; ++id) {
        if (logits[id] >= -FLT_MAX) {
            max = std::max(max, logits[id]);
            sum += logits[id];
            ++count;
        }
    }
    const double mean = sum / double(count);
    for (int32_t id = 0; id < n_vocab; ++id) {
        if (logits[id] >= -FLT_MAX) {
            squares += (logits[id] - mean) * (logits[id] - mean);
        }
    }
    const double least = max - n * std::sqrt(squares / double(count));
    for (int32_t id = 0; id < n_vocab; ++id) {
        if (!(logits[id] >= least)) {
            logits[id] = -INFINITY;
        }
    }
}

// The logits as bias, penalties, DRY, the grammar and top-n-sigma leave them. Valid until the next call on this thread.
const float * Sampler::edited(const float * logits) {
    static thread_local std::vector<float> values;
    values.assign(logits, logits + n_vocab_);
    for (const auto & [token, bias] : params_.logit_bias) {
        values[token] += bias;
    }
    std::map<llama_token, int32_t> counts;
    for (const llama_token token : recent_) {
        ++counts[token];
    }
    for (const auto & [token, count] : counts) {
        float & value = values[token];
        value         = value > 0.0f ? value / params_.repeat_penalty : value * params_.repeat_penalty;
        value -= float(count) * params_.frequency_penalty + params_.presence_penalty;
    }
    if (dry_) {
        dry_->penalize(values.data());
    }
    if (grammar_) {
        grammar_->mask(texts_, values.data());
    }
    if (params_.top_n_sigma > 0.0f) {
        mask_below_sigma(values.data(), n_vocab_, params_.top_n_sigma);
    }
    return values.data();
}

Draw Sampler::sample(const float * logits, const Distribution & model) {
    Distribution now = model;
    if (grammar_ || has_penalties_ || dry_ || params_.top_n_sigma > 0.0f || !params_.logit_bias.empty()) {
        logits = edited(logits);
        if (!(max_of(logits, n_vocab_) >= -FLT_MAX)) {
            throw ArgumentError("no token is left to sample: the grammar or logit_bias forbid every one");
        }
        now = distribution(logits, n_vocab_);
    }
    if (left_ == 0 && !seeds_.empty()) {
        random_.seed(fold(seeds_.front()));
        seeds_.pop_front();
        left_ = part_;
    }
    --left_;
    std::uniform_real_distribution<double> uniform;
    Chance                                 chance{ uniform(random_), false };
    if (params_.xtc_probability > 0.0f && params_.xtc_threshold <= 0.5f) { // above it two tokens cannot be
        chance.excludes = uniform(random_) <= params_.xtc_probability;
    }
    Draw drawn = draw(logits, now, chance);
    if (waits_) {
        drawn = draw_until_accepted(logits, chance, drawn);
    } else {
        accept(drawn.token);
    }
    accept_prompt(drawn.token);
    return drawn;
}

Draw Sampler::draw(const float * logits, const Distribution & now, Chance chance) const {
    const bool warm = params_.temperature >= NO_TEMPERATURE || params_.dynatemp_range > 0.0f;
    if (!warm && params_.typical_p >= 1.0f && !chance.excludes) {
        return { now.likeliest, 0.0f };
    }
    if (params_.top_k > 0 || params_.top_p < 1.0f || params_.min_p > 0.0f || params_.typical_p < 1.0f) {
        return draw_filtered(logits, n_vocab_, now, params_, chance.u, chance.excludes);
    }
    return chance.excludes ? draw_excluded(logits, n_vocab_, now, params_, chance.u)
                           : draw_warm(logits, n_vocab_, now.likeliest, params_, chance.u);
}

// A token may complete a trigger and go on as the grammar does not: it is not drawn then.
Draw Sampler::draw_until_accepted(const float * logits, Chance chance, Draw drawn) {
    static constexpr int                   TRIES = 64;
    static thread_local std::vector<float> values;
    for (int i = 0; i < TRIES; ++i) {
        auto before = waits_->state();
        if (accept(drawn.token)) {
            return drawn;
        }
        waits_->go_back(std::move(before));
        if (i == 0) {
            values.assign(logits, logits + n_vocab_);
        }
        values[drawn.token] = -INFINITY;
        drawn               = draw(values.data(), distribution(values.data(), n_vocab_), chance);
    }
    throw ArgumentError("no token is left to sample: the grammar refuses every one at its trigger");
}

} // namespace tgr
