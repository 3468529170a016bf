#include "model/fitting.h"

#include <algorithm>
#include <cmath>

namespace tgr {

Placement Placements::operator[](uint32_t index) const {
    const int32_t in_ram = std::min(int32_t(index), n_experts_);
    return { n_layers_ + 1 - (int32_t(index) - in_ram), in_ram };
}

// Bytes above what the device may take that lacks most; negative where each has more.
static double excess(const std::vector<uint64_t> & taken, const std::vector<uint64_t> & most) {
    double worst = -INFINITY;
    for (size_t i = 0; i < most.size(); ++i) {
        worst = std::max(worst, double(taken[i]) - double(most[i]));
    }
    return worst;
}

uint32_t first_that_fits(uint32_t n, const std::vector<uint64_t> & most,
                         const std::function<std::vector<uint64_t>(uint32_t)> & taken) {
    uint32_t low = 0, high = n - 1; // does not fit, fits
    double   over = n > 1 ? excess(taken(low), most) : 0.0;
    if (!(over > 0.0)) {
        return low;
    }
    double left = -excess(std::vector<uint64_t>(most.size(), 0), most);
    int    slow = 0; // guesses in a row that did not halve what was left
    while (high - low > 1) {
        const uint32_t before = high - low;
        // layers take about the same, so a line leads there; where it does not, as with layers of two kinds, halving
        // does
        const double   guess = slow < 2 ? std::ceil(before * over / (over + left)) : before / 2.0;
        const uint32_t at    = low + std::clamp(uint32_t(guess), 1u, before - 1);
        const double   found = excess(taken(at), most);
        if (found > 0.0) {
            low  = at;
            over = found;
        } else {
            high = at;
            left = -found;
        }
        slow = slow < 2 && high - low > before / 2 ? slow + 1 : 0;
    }
    return high;
}

} // namespace tgr
