#include "job/drafts.h"

#include <algorithm>
#include <utility>

namespace tgr {

//
// looking up
//

static constexpr size_t LONGEST_MATCH = 32; // more need not be compared

// The newest place before `end` that holds the token; SIZE_MAX if there is none from `begin` on.
static size_t find_before(const Tokens & text, llama_token token, size_t begin, size_t end) {
    while (end > begin) {
        const size_t        n     = std::min<size_t>(end - begin, 32);
        const llama_token * block = text.data() + end - n;
        int32_t             any   = 0; // in vector code
        for (size_t i = 0; i < n; ++i) {
            any |= block[i] == token;
        }
        for (size_t i = n; any && i-- > 0;) {
            if (block[i] == token) {
                return end - n + i;
            }
        }
        end -= n;
    }
    return SIZE_MAX;
}

namespace {

// A token of a text that is like the end of another one.
struct Place {
    const Tokens * text      = nullptr;
    size_t         at        = 0; // the token that is like the newest one
    size_t         n_matched = 0;
};

} // namespace

// Tokens that are alike before the one at `at` and before the end of `own`, and that one.
static size_t n_alike(const Tokens & own, const Tokens & text, size_t at) {
    size_t n = 1;
    while (n < LONGEST_MATCH && n <= at && n <= own.size() && text[at - n] == own[own.size() - n]) {
        ++n;
    }
    return n;
}

Draft look_up(const Tokens & own, llama_token next, const std::vector<const Tokens *> & others, size_t most,
              size_t n_read) {
    Place      best;
    const auto search = [&](const Tokens & text, size_t end) {
        const size_t n = std::min(n_read, end), begin = end - n;
        n_read -= n;
        for (size_t at = find_before(text, next, begin, end); at != SIZE_MAX && best.n_matched < LONGEST_MATCH;
             at        = find_before(text, next, begin, at)) {
            if (const size_t alike = n_alike(own, text, at); alike > best.n_matched) {
                best = { &text, at, alike };
            }
        }
    };
    search(own, own.size());
    for (const Tokens * other : others) {
        search(*other, std::max<size_t>(other->size(), 1) - 1); // something follows
    }
    Draft draft;
    draft.n_matched = best.n_matched;
    for (size_t at = best.at + 1; best.text && draft.tokens.size() < most; ++at) {
        if (at < best.text->size()) {
            draft.tokens.push_back((*best.text)[at]);
        } else if (best.text != &own) {
            break;
        } else { // a text that repeats itself goes on with what it is about to repeat
            draft.tokens.push_back(at == own.size() ? next : draft.tokens[at - own.size() - 1]);
        }
    }
    return draft;
}

//
// whether guesses are right
//

void Hits::note(size_t n_matched, size_t right, bool ended) {
    static constexpr double WEIGHT = 1.0 / 3; // of the newest

    for (size_t i = 0; i < LEAST_MATCHED.size(); ++i) {
        const bool   last = i + 1 == LEAST_MATCHED.size();
        const size_t from = std::max(n_matched, LEAST_MATCHED[i]);
        if (from > n_matched + right || (!last && from >= LEAST_MATCHED[i + 1])) {
            continue;
        }
        for (size_t k = 0; k < LENGTHS.size(); ++k) {
            size_t n = n_matched + right - from; // tokens of a draft that begins there
            n        = last ? n % (LENGTHS[k] + 1) : n;
            if (n == LENGTHS[k] ? !ended : ended && n < LENGTHS[k]) {
                Mean & mean = means_[i][k];
                mean.right += WEIGHT * (double(n) - mean.right);
                mean.known = true;
            }
        }
    }
}

double Hits::expected(size_t n_matched, size_t length) const {
    for (size_t i = LEAST_MATCHED.size(); i-- > 0;) {
        if (n_matched >= LEAST_MATCHED[i] && means_[i][length].known) {
            return means_[i][length].right;
        }
    }
    return 0.0;
}

void Followed::look(Draft draft) {
    if (n_left() == 0 || draft.tokens.empty()) { // not the text that was followed
        n_matched_ = draft.n_matched;
        n_right_   = 0;
    }
    draft_ = std::move(draft);
    at_    = 0;
}

void Followed::went_on(llama_token token, Hits & hits) {
    if (n_left() == 0) {
        *this = {};
        return;
    }
    const bool right = guess(0) == token;
    n_right_ += right;
    at_ += right;
    hits.note(n_matched_, n_right_, !right);
    if (!right) {
        *this = {};
    }
}

//
// what guesses are worth
//

static constexpr std::array<size_t, 9> WIDTHS = { 1, 2, 4, 8, 16, 24, 32, 48, 64 };

using Times = std::array<double, WIDTHS.size()>; // of a step of each width

// On one thread, of the Qwen3-0.6B shape, with Q4_K weights; near what Q8_0 takes with ggml (docs/performance.md).
static constexpr Times BY_GGML = { 1.0, 1.9, 3.5, 5.0, 6.5, 9.5, 12.5, 18.0, 24.0 };
// The same, with Q8_0 weights.
static constexpr Times BY_OURS = { 1.0, 1.25, 1.55, 2.15, 3.4, 4.6, 5.9, 8.6, 11.3 };
// An estimate: ggml reads quantized weights once for up to eight tokens, and takes another kernel for more.
static constexpr Times ON_GPU = { 1.0, 1.1, 1.25, 1.6, 2.3, 2.6, 2.8, 3.2, 3.6 };

// With ggml one thread takes three times as long for the products of a token as for reading the weights.
StepTimes::StepTimes(Kernels kernels, int32_t n_threads) :
    kernels_(kernels),
    at_once_(kernels == Kernels::gpu ? 1.0 : std::clamp(n_threads / 3.0, 1.0, 4.0)) {}

double StepTimes::of(size_t width) const {
    const Times & times = kernels_ == Kernels::gpu ? ON_GPU : kernels_ == Kernels::own ? BY_OURS : BY_GGML;
    const auto    next  = std::lower_bound(WIDTHS.begin(), WIDTHS.end() - 1, width); // the last one for all beyond
    return std::max(1.0, times[size_t(next - WIDTHS.begin())] / at_once_);
}

static constexpr double LEAST_GAIN = 1.25;

std::vector<size_t> choose_rows(const std::vector<Guess> & guesses, const StepTimes & times, size_t widest,
                                double slowest) {
    struct Rows {
        size_t n;
        double right; // expected
        size_t text;
    };
    const size_t        n_texts = guesses.size();
    const double        plain   = times.of(n_texts);
    double              best    = LEAST_GAIN * double(n_texts) / plain;
    std::vector<size_t> chosen(n_texts);
    for (size_t k = 0; k < Hits::LENGTHS.size(); ++k) {
        std::vector<Rows> rows;
        for (size_t i = 0; i < n_texts; ++i) {
            if (const size_t n = std::min(guesses[i].n_left, Hits::LENGTHS[k]); n > 0) {
                rows.push_back({ n, std::min(guesses[i].right[k], double(n)), i });
            }
        }
        std::stable_sort(rows.begin(), rows.end(), [](const Rows & a, const Rows & b) { return a.right > b.right; });
        size_t              width    = n_texts;
        double              expected = double(n_texts);
        std::vector<size_t> taken(n_texts);
        for (const Rows & one : rows) {
            width += one.n;
            expected += one.right;
            taken[one.text]   = one.n;
            const double time = times.of(width);
            if (width > widest || time > slowest * plain) {
                break;
            }
            if (expected / time > best) {
                best   = expected / time;
                chosen = taken;
            }
        }
    }
    return chosen;
}

} // namespace tgr
