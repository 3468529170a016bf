#include "thread_count.h"

#include <algorithm>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

namespace tgr {

namespace {

constexpr size_t LONGEST    = 32;   // tokens: in longer steps the threads wait for each other rarely
constexpr size_t N_TURNS    = 8;    // steps with each number that is as fast as the present one
constexpr double SLOW       = 1.5;  // times as slow as the present one: two steps are enough
constexpr double OFTEN      = 50;   // cores lost in a second
constexpr double FIRST      = 0.25; // seconds
constexpr double LAST       = 8.0;  // seconds between trials that change nothing
constexpr double NOTICEABLE = 0.93; // of the time with the present number

} // namespace

ThreadCount::ThreadCount(int32_t most, bool adapts) :
    most_(most),
    now_(most),
    adapts_(adapts && most > 1),
    pause_(FIRST) {}

int32_t ThreadCount::next(size_t n_tokens) {
    n_tokens_ = n_tokens;
    is_trial_ = adapts_ && !tried_.empty() && n_tokens == trial_tokens_;
    if (!adapts_ || n_tokens > LONGEST) {
        return most_;
    }
    return is_trial_ ? tried_[n_steps_ % tried_.size()] : now_;
}

void ThreadCount::took(double seconds, uint64_t n_lost) {
    if (!adapts_ || n_tokens_ > LONGEST) {
        return;
    }
    seconds_ += seconds;
    n_lost_ += n_lost;
    if (is_trial_) {
        times_[n_steps_ % tried_.size()] += seconds;
        if (++n_steps_ % tried_.size() == 0) {
            end_turn();
        }
    } else if (seconds_ >= pause_) { // a trial that met no step of its size ends too
        const bool is_busy = now_ < most_ || double(n_lost_) >= OFTEN * seconds_;
        seconds_ = n_lost_ = 0;
        tried_.clear();
        if (is_busy) {
            begin();
        }
    }
}

void ThreadCount::begin() {
    trial_tokens_ = n_tokens_;
    n_steps_      = 0;
    for (const int32_t n : { now_, now_ / 2, std::min(2 * now_, most_) }) {
        if (n > 0 && std::find(tried_.begin(), tried_.end(), n) == tried_.end()) {
            tried_.push_back(n);
        }
    }
    times_.assign(tried_.size(), 0);
}

// Each number was tried once more.
void ThreadCount::end_turn() {
    const size_t n_turns = n_steps_ / tried_.size();
    if (n_turns > 1) {
        for (size_t i = tried_.size() - 1; i > 0; --i) {
            if (times_[i] > SLOW * times_[0]) {
                tried_.erase(tried_.begin() + ptrdiff_t(i));
                times_.erase(times_.begin() + ptrdiff_t(i));
            }
        }
        n_steps_ = n_turns * tried_.size();
    }
    if (n_turns == N_TURNS || tried_.size() == 1) {
        decide();
    }
}

void ThreadCount::decide() {
    const size_t best = size_t(std::min_element(times_.begin(), times_.end()) - times_.begin());
    if (times_[best] < NOTICEABLE * times_[0]) {
        now_   = tried_[best];
        pause_ = FIRST;
    } else {
        pause_ = std::min(2 * pause_, LAST);
    }
    seconds_ = n_lost_ = 0;
    tried_.clear();
}

uint64_t cores_lost() {
#if defined(__unix__) || defined(__APPLE__)
    rusage usage = {};
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        return uint64_t(usage.ru_nivcsw);
    }
#endif
    return 0;
}

} // namespace tgr
