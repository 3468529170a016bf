// The drafts of a batch: how many rows each text gets for them, and which of them are accepted.

#include "schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tgr {

static constexpr size_t WIDEST     = 64;      // batch that holds drafts
static constexpr size_t MOST_TEXTS = 16;      // written at a time; with more of them a row costs as much as a token
static constexpr size_t MOST_READ  = 1 << 16; // tokens that a step looks at, for all texts together
static constexpr double SLOWEST    = 1.25; // a step that texts of others share, as a multiple of the one without drafts

// The session, or all of its group in the order of their indices, which do not depend on the order of arrival.
std::vector<uint64_t> Scheduler::together_with(uint64_t session) const {
    const auto & group = sessions_.at(session).group;
    if (!group) {
        return { session };
    }
    std::vector<uint64_t> ids;
    for (const auto & [id, other] : sessions_) {
        if (other.group == group) {
            ids.push_back(id);
        }
    }
    const auto index = [&](uint64_t id) { return sessions_.at(id).index; };
    std::sort(ids.begin(), ids.end(), [&](uint64_t a, uint64_t b) { return index(a) < index(b); });
    return ids;
}

// Looks at its own tokens and those of the other texts of its session or group.
Draft Scheduler::look_up(const RunningTask & task, size_t n_read) {
    const uint64_t              session = task.job->session;
    std::vector<const Tokens *> others;
    for (const uint64_t id : together_with(session)) {
        for (const auto & [number, sequence] : cache_.of(id).sequences) {
            if (id != session || number != task.task->sequence) {
                others.push_back(&sequence.tokens);
            }
        }
    }
    Draft      draft = tgr::look_up(sequence_of(task).tokens, task.next, others, 2 * Hits::LENGTHS.back(), n_read);
    const auto ends  = [&](llama_token token) { return llama_vocab_is_eog(model_.vocab(), token); };
    draft.tokens.erase(std::find_if(draft.tokens.begin(), draft.tokens.end(), ends), draft.tokens.end());
    return draft;
}

// Hit rates are kept per session or group, so that one client's batches do not depend on another's.
Hits & Scheduler::hits_of(const Job & job) {
    Session & session = sessions_.at(job.session);
    return session.group ? session.group->hits : session.hits;
}

// Plans drafts for a batch of these texts alone.
void Scheduler::plan_drafts(const Runnable & writers) {
    const size_t widest =
        std::min({ WIDEST, size_t(llama_n_batch(model_.context())), size_t(llama_n_ubatch(model_.context())),
                   size_t(llama_n_seq_max(model_.context())) });
    if (writers.empty() || !cache_.rolls_back() || writers.size() > MOST_TEXTS || widest <= writers.size()) {
        return;
    }
    std::set<uint64_t> groups;
    std::vector<Guess> guesses;
    for (RunningTask * task : writers) {
        groups.insert(together(*task->job));
        if (task->task->drafts && task->guesses.short_of()) {
            task->guesses.look(look_up(*task, MOST_READ / writers.size()));
        }
        const size_t most = task->cells.size() - task->n_placed - 1; // tokens after the next one that it may decode
        Guess        guess;
        guess.n_left = std::min(task->guesses.n_left(), most);
        for (size_t k = 0; k < guess.right.size(); ++k) {
            guess.right[k] = hits_of(*task->job).expected(task->guesses.n_alike(), k);
        }
        guesses.push_back(guess);
    }
    const auto rows = choose_rows(guesses, times_, widest, groups.size() > 1 ? SLOWEST : INFINITY);
    for (size_t i = 0; i < writers.size(); ++i) {
        writers[i]->n_drafted = rows[i];
    }
}

//
// their results
//

// Books the sampled token of a row: it tells whether the guess at it was right. The guess before it was.
void Scheduler::book_guess(const Row & row) {
    RunningTask & task = *row.task;
    if (row.draft) {
        book_position(task, size_t(row.batch_index));
        --task.n_drafted;
        ++n_accepted_;
    }
    task.guesses.went_on(row.draw.token, hits_of(*task.job));
}

void Scheduler::drop_drafts() {
    batch_.each_task([&](RunningTask & task) {
        if (task.n_drafted > 0) {
            cache_.undo_decode(task.job->session, task.task->sequence);
            task.output->n_refused += int32_t(task.n_drafted);
            task.n_drafted = 0;
        }
    });
}

void Scheduler::count_drafts(EngineStats & stats) const {
    stats.n_drafted  = n_drafted_;
    stats.n_accepted = n_accepted_;
    stats.n_positions -= n_drafted_ - n_accepted_;
}

} // namespace tgr
