#include "drafts.h"

#include <algorithm>
#include <cmath>

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
// what a guess is worth
//

Acceptance::Acceptance() {
    for (size_t i = 0; i < LONGEST; ++i) {
        const double n = 2.0; // as many guesses as it begins with
        counts_[i]     = { n * double(i + 1) / double(i + 3), n };
    }
}

double Acceptance::chance(size_t n_matched) const {
    const Count & count = counts_[std::clamp<size_t>(n_matched, 1, LONGEST) - 1];
    return count.right / count.n;
}

void Acceptance::note(size_t n_matched, bool right) {
    static constexpr double MEMORY = 64;
    Count &                 count  = counts_[std::clamp<size_t>(n_matched, 1, LONGEST) - 1];
    count.right += right;
    if (++count.n > MEMORY) {
        count.right /= 2;
        count.n /= 2;
    }
}

// Of the Qwen3-0.6B shape in Q4_K and Q8_0 on two cores, between those of both.
static constexpr size_t N_WIDTHS         = 12;
static constexpr size_t WIDTHS[N_WIDTHS] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, StepTimes::WIDEST };
static constexpr double CURVE[N_WIDTHS]  = { 1, 2.2, 3, 3.8, 4.6, 5, 6, 6.4, 9.5, 12.4, 18, 24 };

static size_t index_of(size_t width) {
    return size_t(std::lower_bound(WIDTHS, WIDTHS + N_WIDTHS - 1, width) - WIDTHS);
}

double StepTimes::curve(size_t width) {
    return CURVE[index_of(width)];
}

// What was measured long ago may be wrong now: the texts were shorter, or the machine was busy.
bool StepTimes::known(size_t i) const {
    static constexpr uint64_t MEMORY = 512; // steps
    return measured_[i].at > 0 && n_steps_ - measured_[i].at < MEMORY;
}

double StepTimes::ratio(size_t i) const {
    return measured_[i].seconds / CURVE[i];
}

double StepTimes::of(size_t width) const {
    const size_t i     = index_of(width);
    size_t       below = i, above = i;
    while (below > 0 && !known(below)) {
        --below;
    }
    while (above + 1 < N_WIDTHS && !known(above)) {
        ++above;
    }
    if (!known(below) || !known(above)) {
        const size_t only = known(below) ? below : above;
        size_t       n    = 0;
        for (size_t one = 0; one < N_WIDTHS; ++one) {
            n += known(one);
        }
        // where one width alone is known, wide steps may be cheap: a guess that makes it worth a try
        const double times = CURVE[i] / CURVE[only];
        return known(only) ? measured_[only].seconds * (n == 1 ? std::sqrt(times) : times) : 0.0;
    }
    const double part = above == below ? 0.0 : double(i - below) / double(above - below);
    return CURVE[i] * (ratio(below) + part * (ratio(above) - ratio(below)));
}

// Towards the median, since some steps are slow because the machine is busy with something else.
void StepTimes::learn(size_t i, double seconds) {
    Measured & measured = measured_[i];
    if (!known(i)) {
        measured.seconds = seconds;
    }
    static constexpr double STEP = 1.1;
    measured.seconds             = std::clamp(seconds, measured.seconds / STEP, measured.seconds * STEP);
    measured.at                  = n_steps_;
}

void StepTimes::note(size_t width, double seconds) {
    const size_t i = index_of(width);
    ++n_steps_;
    if (i < last_ && known(i)) { // the narrower graph is made again, which the wide step has to answer for
        const double more = std::max(0.0, seconds - measured_[i].seconds);
        last_seconds_ += more;
        seconds -= more;
    }
    if (last_seconds_ > 0) {
        learn(last_, last_seconds_);
    }
    last_         = i;
    last_seconds_ = width <= WIDEST ? seconds : 0.0;
    if (!known(i) && width <= WIDEST) {
        learn(i, seconds);
    }
}

std::vector<size_t> choose_rows(const std::vector<Guess> & guesses, const StepTimes * times, size_t widest,
                                double slowest) {
    static constexpr double LEAST_GAIN = 1.1;

    struct Token {
        double chance; // that it and all before it are right
        size_t text;
    };
    std::vector<Token> tokens;
    for (size_t i = 0; i < guesses.size(); ++i) {
        const Draft & draft  = *guesses[i].draft;
        double        chance = 1.0;
        for (size_t n = 0; n < draft.tokens.size(); ++n) {
            chance *= guesses[i].acceptance->chance(draft.n_matched + n);
            tokens.push_back({ chance, i });
        }
    }
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const Token & a, const Token & b) { return a.chance > b.chance; });

    const auto   seconds_of = [&](size_t width) { return times ? times->of(width) : StepTimes::curve(width); };
    const size_t n_texts    = guesses.size();
    const double plain      = seconds_of(n_texts);
    double       expected = double(n_texts), best = LEAST_GAIN * expected / plain;
    size_t       n_best = 0;
    for (size_t n = 1; n <= tokens.size() && n_texts + n <= widest && plain > 0; ++n) {
        expected += tokens[n - 1].chance;
        const double seconds = seconds_of(n_texts + n);
        if (expected / seconds > best && seconds <= slowest * plain) {
            best   = expected / seconds;
            n_best = n;
        }
    }
    std::vector<size_t> rows(n_texts);
    for (size_t n = 0; n < n_best; ++n) {
        ++rows[tokens[n].text];
    }
    return rows;
}

} // namespace tgr
