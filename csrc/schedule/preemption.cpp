// Preemptible sessions: they reserve cells as their text grows, not all that it may need. If no cell is left, the
// newest text gives its cells to an older one, waits until there is room, and is read again (vLLM calls this preemption
// by recomputation). The oldest text always goes on: a session is admitted only if the sessions of fixed size and the
// largest text fit into the cache together.

#include "schedule/scheduler.h"

#include <algorithm>

namespace tgr {

static constexpr size_t slice = 256; // cells that a text takes at a time
static constexpr size_t low   = 16;  // a text with fewer cells left takes a slice, if it is free

static uint32_t with_slice(size_t n, uint32_t most) {
    return uint32_t(std::min<size_t>(n + slice, most));
}

bool Scheduler::reserve(const Request & request) {
    const auto first = with_slice(request.prompt.tokens.size(), request.n_cells);
    return cache_.reserve(request.ticket, request.preemptible ? first : request.n_cells,
                          request.preemptible ? 1 : request.n_seqs, request.prompt);
}

// Whether the largest preemptible text would still fit beside all sessions of fixed size.
bool Scheduler::leaves_room(const Request & request) const {
    uint64_t   fixed = 0, largest = 0;
    const auto count = [&](bool preemptible, uint32_t n_cells) {
        fixed += preemptible ? 0 : n_cells;
        largest = std::max<uint64_t>(largest, preemptible ? n_cells : 0);
    };
    count(request.preemptible, request.n_cells);
    for (const auto & [id, session] : sessions_) {
        count(session.preemptible, session.n_cells);
    }
    const uint32_t most = model_.params().n_ctx ? model_.n_ctx() : model_.most_cells.load();
    return largest == 0 || sessions_.empty() || fixed + largest <= most;
}

void Scheduler::preempt(uint64_t id) {
    for (const auto & job : jobs_) {
        if (job->session == id) {
            for (const auto & task : job->running) {
                cache_.unplan(id, task->cells.data() + task->n_placed, task->cells.size() - task->n_placed);
                task->cells.clear();
                task->n_placed = 0;
            }
        }
    }
    cache_.preempt(id);
    sessions_.at(id).preempted = true;
    ++n_preemptions_;
}

// Takes the cells of another preemptible session for this one: of one without a job, else of the newest that is newer
// than this one. False when there is none.
bool Scheduler::preempt_for(uint64_t wanting) {
    uint64_t victim = 0;
    bool     idle   = false;
    for (const auto & [id, session] : sessions_) { // the oldest first
        if (id == wanting || !session.preemptible || session.preempted) {
            continue;
        }
        if (!is_busy(id) || (!idle && id > wanting)) {
            victim = id;
            idle   = !is_busy(id);
        }
    }
    if (victim != 0) {
        preempt(victim);
    }
    return victim != 0;
}

// Ends a job whose text needs more cells than the cache has, even without any other session.
void Scheduler::refuse(const std::shared_ptr<Job> & job, size_t n_cells) {
    finish(job, std::make_exception_ptr(CapacityError("needs a cache of ", n_cells,
                                                      " cells, but there is not enough memory for it; shorten the "
                                                      "query, or lower max_tokens")));
}

// Gives preempted sessions that have work their cells again, the oldest first. False when one has to wait.
bool Scheduler::resume_preempted() {
    const auto jobs = jobs_; // in the order of their sessions
    for (const auto & job : jobs) {
        Session & session = sessions_.at(job->session);
        if (!session.preempted) {
            continue;
        }
        while (!cache_.resume(job->session, slice)) {
            if (!preempt_for(job->session)) {
                const bool alone = std::all_of(sessions_.begin(), sessions_.end(),
                                               [](const auto & other) { return other.second.preempted; });
                if (!alone) {
                    return false;
                }
                refuse(job, session.n_cells);
                break;
            }
        }
        session.preempted = false;
    }
    return true;
}

// Plans up to n more cells for the task of a preemptible session.
void Scheduler::plan_more(RunningTask & task, size_t n) {
    const uint64_t      session     = task.job->session;
    const Reservation & reservation = cache_.of(session);
    const auto          n_idle = [&] { return reservation.cells.size() - reservation.n_used - reservation.n_planned; };
    if (n_idle() < n) {
        const uint32_t last = !task.cells.empty()            ? task.cells.back()
                              : sequence_of(task).size() > 0 ? sequence_of(task).cells.last()
                                                             : UINT32_MAX - 1;
        cache_.extend(session, uint32_t(n - n_idle()), last);
    }
    const auto planned = cache_.plan(session, { task.task->sequence }, { uint32_t(std::min(n, n_idle())) }).front();
    task.cells.insert(task.cells.end(), planned.begin(), planned.end());
}

void Scheduler::provide_cells(const std::shared_ptr<Job> & job) {
    RunningTask & task = *job->running.front(); // of its one sequence
    task.n_again       = sequence_of(task).n_again();
    // it needs so many to read, so many more to write the next token, and so many in all
    const size_t n_read    = task.n_again + task.task->feed.size() - task.n_fed;
    const size_t n_written = task.output->tokens.values->size();
    const size_t n_left    = size_t(std::max(0, task.task->n_generate)) -
                             std::min<size_t>(task.task->n_generate, std::max<size_t>(n_written, 1));
    const size_t least     = n_read + (task.feeds() ? 0 : 1);
    const auto   n_planned = [&] { return task.cells.size() - task.n_placed; };
    const size_t wish      = n_read + std::min(n_left, slice);
    if (n_planned() >= std::min(wish, least + low)) {
        return;
    }
    do {
        plan_more(task, wish - n_planned());
        if (n_planned() >= least) {
            return;
        }
    } while (preempt_for(job->session));
    if (sessions_.size() == 1) {
        refuse(job, sessions_.at(job->session).n_cells);
        return;
    }
    preempt(job->session);
}

void Scheduler::provide_cells() {
    const auto jobs = jobs_; // in the order of their sessions
    for (const auto & job : jobs) {
        const Session & session = sessions_.at(job->session);
        if (session.preemptible && !session.preempted) {
            provide_cells(job);
        }
    }
}

void Scheduler::count_preemptions(EngineStats & stats) const {
    stats.n_preemptions = n_preemptions_;
    stats.n_read_again  = n_read_again_;
}

} // namespace tgr
