#include "machine/thread_count.h"

#include <algorithm>

#ifdef __linux__
#include <sys/resource.h>
#endif

namespace tgr {

namespace {

constexpr size_t BLOCK    = 4;    // steps; in the first one the runtime may make threads
constexpr size_t N_BLOCKS = 6;    // of a trial, half of them with the other number
constexpr double SLOW     = 1.4;  // times as slow: two blocks are enough
constexpr double FASTER   = 0.93; // of the time, to go over to the other number
constexpr double AS_FAST  = 1.02; // likewise, for a larger one while nobody takes cores away
constexpr double OFTEN    = 50;   // cores lost in a second
constexpr double FIRST    = 0.25; // seconds before a trial
constexpr double LAST     = 8.0;  // likewise, after some that changed nothing
constexpr double RARE     = 20;   // times as long as the last trial

} // namespace

ThreadCount::ThreadCount(int32_t most, bool adapts) :
    most_(most),
    now_(most),
    adapts_(adapts && most > 1),
    pause_(FIRST),
    wait_(FIRST) {}

int32_t ThreadCount::next(size_t n_tokens) {
    n_tokens_ = n_tokens;
    if (!adapts_ || n_tokens > LONGEST) {
        return most_;
    }
    return other_ > 0 && n_steps_ / BLOCK % 2 == 1 ? other_ : now_;
}

void ThreadCount::took(double seconds, uint64_t n_lost) {
    if (!adapts_ || n_tokens_ > LONGEST) {
        return;
    }
    if (other_ > 0) {
        trial_seconds_ += seconds;
        if (n_steps_ % BLOCK > 0) {
            steps_.push_back({ n_tokens_, seconds, n_steps_ / BLOCK % 2 == 1 });
        }
        if (++n_steps_ % (2 * BLOCK) == 0) {
            end_block();
        }
        return;
    }
    seconds_ += seconds;
    n_lost_ += n_lost;
    if (seconds_ >= pause_) {
        is_busy_ = double(n_lost_) >= OFTEN * seconds_;
        seconds_ = 0;
        n_lost_  = 0;
        if (is_busy_ || now_ < most_) {
            begin();
        }
    }
}

// On in a direction that was right, else half and twice the number in turns.
void ThreadCount::begin() {
    const bool can_rise = now_ < most_, can_fall = now_ > 1;
    down_          = can_fall && (!can_rise || (is_busy_ && down_ == changed_));
    other_         = down_ ? now_ / 2 : std::min(2 * now_, most_);
    n_steps_       = 0;
    trial_seconds_ = 0;
    steps_.clear();
}

// Both numbers had a block.
void ThreadCount::end_block() {
    const double slow = slowness();
    if (slow > SLOW) {
        end(false);
    } else if (n_steps_ == N_BLOCKS * BLOCK) {
        end(slow < (is_busy_ || down_ ? FASTER : AS_FAST));
    }
}

void ThreadCount::end(bool changes) {
    if (changes) {
        now_ = other_;
    }
    changed_ = changes;
    wait_    = changes ? FIRST : std::min(2 * wait_, LAST);
    pause_   = std::max(wait_, changes ? 0 : RARE * trial_seconds_);
    other_   = 0;
}

// Steps of as many tokens have one mean; a step counts as its share of that.
double ThreadCount::slowness() const {
    std::array<double, LONGEST + 1> mean = {};
    std::array<size_t, LONGEST + 1> n    = {};
    for (const Step & step : steps_) {
        mean[step.n_tokens] += step.seconds;
        ++n[step.n_tokens];
    }
    double share[2] = {};
    size_t count[2] = {};
    for (const Step & step : steps_) {
        const double all = mean[step.n_tokens];
        share[step.other] += all > 0 ? step.seconds * double(n[step.n_tokens]) / all : 1;
        ++count[step.other];
    }
    return share[1] / double(count[1]) / (share[0] / double(count[0]));
}

uint64_t cores_lost() {
#ifdef __linux__
    rusage usage = {};
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        return uint64_t(usage.ru_nivcsw);
    }
#endif
    return 0;
}

} // namespace tgr
