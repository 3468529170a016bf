#include "job/records.h"

#include "check.h"
#include "draw.h"
#include "job/lockstep.h"

#include <algorithm>

namespace tgr {

static constexpr int32_t WIDTH = 3; // of the states

// Of tokens [first, last) of a text, whose arrays say where each of their numbers belongs.
static Output output(size_t first, size_t last) {
    Output out;
    Output::each_token_array([&](const char * name, auto array) {
        auto & to = out.*array;
        to.width  = std::string(name) == "states" ? WIDTH : 0;
        for (size_t i = first * size_t(std::max(to.width, 1)); i < last * size_t(std::max(to.width, 1)); ++i) {
            to.values->push_back(std::decay_t<decltype(to.values->front())>(i));
        }
    });
    out.n_decoded = int32_t(last - first);
    return out;
}

static void check_is(const Output & out, size_t first, size_t last) {
    const Output expected = output(first, last);
    Output::each_token_array([&](const char *, auto array) {
        CHECK_EQ(*(out.*array).values, *(expected.*array).values);
        CHECK_EQ((out.*array).width, (expected.*array).width);
    });
}

TEST(parts_of_an_output_are_joined) {
    Output begun = output(0, 4), more = output(4, 9);
    begun.feed_logprobs.values->assign(2, -1.0f);
    begun.n_reused   = 7;
    more.n_refused   = 2;
    more.finish      = Finish::stop;
    const Output all = begun.joined(more);
    check_is(all, 0, 9);
    CHECK_EQ(all.feed_logprobs.values->size(), 2u);
    CHECK_EQ(all.n_decoded, 9);
    CHECK_EQ(all.n_reused, 7);
    CHECK_EQ(all.n_refused, 2);
    CHECK(all.finish == Finish::stop);
    check_is(begun, 0, 4); // which a reader may have kept
    check_is(more, 4, 9);
}

TEST(an_output_is_cut_anywhere) {
    for (size_t n = 0; n < 12; ++n) {
        const size_t cut = std::min<size_t>(n, 9);
        Output       all = output(0, 9);
        check_is(all.beginning(n), 0, cut);
        CHECK(all.beginning(n).finish == Finish::length);
        check_is(all, 0, 9);
        check_is(all.split(n), 0, cut);
        check_is(all, cut, 9);
        Output begun = output(0, cut);
        begun.append(output(0, 9), n);
        check_is(begun, 0, 9);
        Output empty;
        empty.append(output(0, 9), n);
        check_is(empty, cut, 9);
    }
}

TEST(sessions_in_lockstep_wait_for_idle_ones) {
    using Participant = LockstepGroup::Participant;
    LockstepGroup group;
    group.participants = { Participant::open, Participant::absent, Participant::gone };
    group.n_jobs       = { 1, 0, 0 };
    CHECK(!group.assembled() && !group.has_idle_participant());
    group.participants[1] = Participant::waiting;
    CHECK(group.assembled() && !group.has_idle_participant());
    group.participants[1] = Participant::open;
    CHECK(group.has_idle_participant());
    group.n_jobs[1] = 2;
    CHECK(!group.has_idle_participant());
}

} // namespace tgr
