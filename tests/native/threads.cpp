// How many threads a step takes while other programs want the cores.
#include "check.h"
#include "draw.h"
#include "machine/thread_count.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace tgr {

using Sizes = std::vector<size_t>; // tokens of steps

static const Sizes MIXED{ 1, 1, 1, 5, 1, 1, 9, 1, 2, 1, 3 }; // of several clients

// The threads of n steps that take `seconds(threads)` and a tenth more for each token.
static std::vector<int32_t> run(ThreadCount & count, const std::function<double(int)> & seconds, int n,
                                const Sizes & sizes = { 8 }, bool busy = true, double noise = 0) {
    test::Draw           draw(0);
    std::vector<int32_t> used;
    for (int i = 0; i < n; ++i) {
        const size_t tokens = sizes[size_t(i) % sizes.size()];
        used.push_back(count.next(tokens));
        const double factor = (1 + double(tokens) / 10) * (1 + noise * draw.normal());
        const double time   = seconds(used.back()) * std::max(factor, 0.1);
        count.took(time, busy ? uint64_t(std::lround(1 + 200 * time)) : 0); // cores lost meanwhile
    }
    return used;
}

static size_t n_with(const std::vector<int32_t> & used, int32_t n_threads) {
    return size_t(std::count(used.begin(), used.end(), n_threads));
}

TEST(all_threads_while_nobody_takes_a_core) {
    ThreadCount count(8, true);
    CHECK_EQ(n_with(run(count, [](int n) { return 0.05 * n; }, 500, { 8 }, false), 8), 500u);
}

TEST(fewer_threads_where_they_are_faster) {
    for (const Sizes & sizes : { Sizes{ 8 }, Sizes{ 1, 2 }, MIXED }) {
        for (const double seconds : { 0.001, 0.01, 0.1 }) {
            ThreadCount count(8, true);
            const auto  used = run(count, [&](int n) { return seconds * (1 + std::abs(n - 2)); }, 3000, sizes);
            CHECK_EQ(count.now(), 2);
            CHECK(n_with(used, 2) > 2400);
        }
    }
}

TEST(all_threads_where_fewer_are_no_faster) {
    for (const Sizes & sizes : { Sizes{ 8 }, Sizes{ 1, 2 }, MIXED }) {
        for (const double seconds : { 0.01, 0.1, 1.0 }) {
            ThreadCount count(8, true);
            const auto  used = run(count, [&](int n) { return seconds * 8 / n; }, 3000, sizes);
            CHECK_EQ(count.now(), 8);
            CHECK(n_with(used, 8) > 2850); // trials are rare
        }
    }
}

TEST(noise_alone_changes_few_threads) {
    ThreadCount count(16, true);
    const auto  used = run(count, [](int n) { return 0.002 * 16 / n; }, 20'000, { 8 }, true, 0.3);
    CHECK(n_with(used, 16) > 19'000);
}

TEST(all_threads_again_once_the_machine_is_free) {
    for (const double half : { 1.0, 1.5 }) {
        ThreadCount count(2, true);
        run(count, [](int n) { return 0.01 * n; }, 300);
        CHECK_EQ(count.now(), 1);
        run(count, [&](int n) { return 0.01 * (n == 1 ? half : 1); }, 3000, { 8 }, false);
        CHECK_EQ(count.now(), 2);
    }
}

TEST(a_long_step_has_all_threads_and_says_nothing) {
    ThreadCount count(4, true);
    CHECK_EQ(n_with(run(count, [](int n) { return 0.1 * n; }, 200, { 512 }), 4), 200u);
    CHECK_EQ(count.now(), 4);
}

TEST(steps_of_other_sizes_are_not_compared) {
    ThreadCount count(4, true); // a block has steps of 1 token, or of 20, which take three times as long
    run(count, [](int) { return 0.01; }, 4000, { 1, 1, 1, 1, 20, 20, 20, 20 });
    CHECK_EQ(count.now(), 4);
}

TEST(a_number_of_threads_that_a_person_chose_holds) {
    ThreadCount count(4, false);
    CHECK_EQ(n_with(run(count, [](int n) { return 0.1 * n; }, 300), 4), 300u);
}

} // namespace tgr
