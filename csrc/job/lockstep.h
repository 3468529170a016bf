// Sessions that advance in lockstep, so that the same seeds always meet the same batches: none of their jobs is decoded
// while a participant that has a session is idle. Guarded by the engine's lock.
#pragma once

#include "job/drafts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgr {

struct LockstepGroup {
    // A participant is absent until it asks for its session, and gone after leaving or when its session closes.
    enum class Participant { absent, waiting, open, gone };

    std::vector<Participant> participants; // the number never changes
    std::vector<uint32_t>    n_jobs;       // number of each participant's jobs
    uint64_t                 serial = 0;
    Hits                     hits; // hit rates of the drafts of all its texts

    bool assembled() const {
        return std::find(participants.begin(), participants.end(), Participant::absent) == participants.end();
    }

    bool has_idle_participant() const {
        for (size_t i = 0; i < participants.size(); ++i) {
            if (participants[i] == Participant::open && n_jobs[i] == 0) {
                return true;
            }
        }
        return false;
    }
};

} // namespace tgr
