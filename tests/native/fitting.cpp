#include "model/fitting.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tgr {

using Bytes = std::vector<uint64_t>;

static std::vector<std::vector<int32_t>> all_of(const Placements & placements) {
    std::vector<std::vector<int32_t>> all;
    for (uint32_t i = 0; i < placements.size(); ++i) {
        all.push_back({ placements[i].n_gpu_layers, placements[i].n_cpu_moe });
    }
    return all;
}

TEST(experts_go_into_ram_before_whole_layers) {
    using All = std::vector<std::vector<int32_t>>;
    CHECK_EQ(all_of(Placements(2, false)), All{ { 3, 0 }, { 2, 0 }, { 1, 0 }, { 0, 0 } });
    CHECK_EQ(all_of(Placements(2, true)), All{ { 3, 0 }, { 3, 1 }, { 3, 2 }, { 2, 2 }, { 1, 2 }, { 0, 2 } });
    CHECK_EQ(Placements().size(), 0u);
}

TEST(the_first_placement_that_fits_is_found_with_few_measurements) {
    test::Draw draw(0);
    for (int i = 0; i < 500; ++i) {
        const size_t       n = draw.from(1, 100), n_devices = draw.from(1, 4);
        const double       power = double(draw.from(1, 6));
        std::vector<Bytes> taken(n, Bytes(n_devices)); // falls
        for (size_t k = n; k-- > 0;) {
            for (size_t device = 0; device < n_devices; ++device) {
                taken[k][device] = uint64_t(std::pow(draw.from(1, 10), power)) + (k + 1 < n ? taken[k + 1][device] : 0);
            }
        }
        Bytes most;
        for (const uint64_t all : taken[0]) {
            most.push_back(uint64_t(double(all) * 1.2 * draw.unit()));
        }
        uint32_t first = 0;
        while (first + 1 < n && !std::equal(most.begin(), most.end(), taken[first].begin(), std::greater_equal<>())) {
            ++first;
        }
        std::vector<uint32_t> asked;
        CHECK_EQ(first_that_fits(uint32_t(n), most,
                                 [&](uint32_t k) {
                                     asked.push_back(k);
                                     return taken[k];
                                 }),
                 first);
        const std::set<uint32_t> different(asked.begin(), asked.end());
        CHECK(n == 1 || different.count(uint32_t(n - 1)) == 0);
        CHECK_EQ(asked.size(), different.size());
        CHECK(double(asked.size()) <= 2 + 3 * std::log2(double(n)));
    }
}

TEST(equal_layers_take_three_measurements) {
    for (uint64_t room = 1; room < 33; ++room) {
        int            n_asked = 0;
        const uint32_t found   = first_that_fits(34, { 100 * room + 50 }, [&](uint32_t i) {
            ++n_asked;
            return Bytes{ 100 * (33 - i) + 20 };
        });
        CHECK_EQ(found, 33 - room);
        CHECK(n_asked <= 3);
    }
}

} // namespace tgr
