// Requests, sessions and jobs. The steps are in steps.cpp.

#include "schedule/scheduler.h"

#include <set>
#include <utility>

namespace tgr {

using Participant = LockstepGroup::Participant;

// A guess that the measured steps correct: 2 operations for each weight, 20 thousand million in a second on each
// thread.
static size_t first_prompt_tokens(const Model & model) {
    const EngineParams & params = model.params();
    const double         speed = 2e10 * params.n_threads / (2.0 * double(std::max<uint64_t>(model.info().n_params, 1)));
    size_t               n     = 8;
    while (n < params.n_batch && 2 * double(n) <= speed * params.step_seconds) {
        n *= 2;
    }
    return model.is_on_cpu() ? n : params.n_batch;
}

Scheduler::Scheduler(Model & model, CacheAllocator & cache, Interrupt & interrupt) :
    model_(model),
    cache_(cache),
    interrupt_(interrupt),
    times_(model.kernels(), model.params().n_threads),
    prompt_tokens_(double(first_prompt_tokens(model))) {}

//
// sessions
//

std::shared_ptr<LockstepGroup> Scheduler::group(uint32_t n) {
    auto group = std::make_shared<LockstepGroup>();
    group->participants.assign(n, Participant::absent);
    group->n_jobs.assign(n, 0);
    group->serial = next_id_++;
    return group;
}

std::future<uint64_t> Scheduler::request(uint32_t n_cells, uint32_t n_seqs, bool preemptible, Prompt prompt,
                                         std::shared_ptr<LockstepGroup> group, uint32_t index, uint64_t & ticket) {
    if (group && (index >= group->participants.size() || group->participants[index] != Participant::absent)) {
        throw Error("participant ", index, " is not awaited by its group; give each session an index of its own");
    }
    cache_.check(n_cells, n_seqs);
    auto       request             = std::make_unique<Request>();
    const bool is_read_again_alike = cache_.rolls_back() && !model_.params().reproducible;
    preemptible &= !group && is_read_again_alike;
    ticket   = next_id_++;
    *request = {
        { group ? group->serial : ticket, group, index }, ticket, n_cells, n_seqs, preemptible, std::move(prompt), {}
    };
    request->mark(Participant::waiting);
    auto admitted = request->admitted.get_future();
    waiting_.push_back(std::move(request));
    std::stable_sort(waiting_.begin(), waiting_.end(), [](const auto & a, const auto & b) {
        return std::make_pair(a->serial, a->index) < std::make_pair(b->serial, b->index);
    });
    return admitted;
}

void Scheduler::admit() {
    if (!resume_preempted()) {
        return;
    }
    for (size_t i = 0; i < waiting_.size();) {
        Request & request = *waiting_[i];
        if (request.group && !request.group->assembled()) {
            ++i;
            continue;
        }
        if (!fits_together(i) || !leaves_room(request)) {
            return;
        }
        try {
            sessions_.emplace(request.ticket, Session{ request, request.n_cells, request.preemptible });
            if (!reserve(request)) {
                sessions_.erase(request.ticket);
                return;
            }
            request.mark(Participant::open);
            request.admitted.set_value(request.ticket);
        } catch (...) { // no memory, now or ever
            sessions_.erase(request.ticket);
            request.admitted.set_exception(std::current_exception());
            request.mark(Participant::gone);
        }
        waiting_.erase(waiting_.begin() + i);
    }
}

// Whether the group of a waiting request finds room for all that wait. A group that begins with some of them has other
// batches, so where these must not depend on others, it does so only when there are none. The cache grows for all of it
// first: its size must not matter either.
bool Scheduler::fits_together(size_t first) {
    const auto & group    = waiting_[first]->group;
    const auto   is_of_it = [&](const auto & session) { return session.second.group == group; };
    if (cache_.reading().block > 0 && group && sessions_.empty()) {
        uint64_t n_cells = 0;
        for (const auto & one : waiting_) {
            n_cells += one->group == group ? one->n_cells : 0;
        }
        for (const uint64_t wanted : { n_cells + cache_.pool().n_kept(), n_cells }) {
            if (wanted <= model_.n_ctx() || (wanted <= model_.most_cells && cache_.grow(uint32_t(wanted)))) {
                break;
            }
        }
    }
    if (cache_.reading().block == 0 || !group || std::all_of(sessions_.begin(), sessions_.end(), is_of_it)) {
        return true;
    }
    std::vector<uint64_t> tried;
    bool                  fits = true;
    try {
        for (size_t i = first; fits && i < waiting_.size() && waiting_[i]->group == group; ++i) {
            const Request & one = *waiting_[i];
            fits                = reserve(one);
            if (fits) {
                tried.push_back(one.ticket);
            }
        }
    } catch (...) { // admit() says why
    }
    for (const uint64_t ticket : tried) {
        cache_.release(ticket);
    }
    return fits;
}

auto Scheduler::waiting(uint64_t ticket) -> decltype(waiting_)::iterator {
    return std::find_if(waiting_.begin(), waiting_.end(), [&](const auto & one) { return one->ticket == ticket; });
}

std::vector<uint64_t> Scheduler::in_the_way(uint64_t ticket) {
    admit(); // a request that nothing blocks is not waiting after this
    std::vector<uint64_t> open;
    const auto            it = waiting(ticket);
    if (it != waiting_.end() && (!(*it)->group || (*it)->group->assembled())) {
        for (const auto & [id, session] : sessions_) {
            open.push_back(id);
        }
    }
    return open;
}

bool Scheduler::give_up(uint64_t ticket) {
    const auto it = waiting(ticket);
    if (it == waiting_.end()) {
        return false;
    }
    (*it)->mark(Participant::gone);
    (*it)->admitted.set_exception(std::make_exception_ptr(CancelledError("the request was withdrawn")));
    waiting_.erase(it);
    return true;
}

void Scheduler::withdraw(uint64_t ticket) {
    if (!give_up(ticket)) {
        close_session(ticket);
    }
}

void Scheduler::close_session(uint64_t id) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) {
        return;
    }
    cancel_jobs(id, [](const Task &) { return true; });
    cache_.release(id);
    it->second.mark(Participant::gone);
    sessions_.erase(it);
}

bool Scheduler::is_busy(uint64_t session) const {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto & job) { return job->session == session; });
}

void Scheduler::drop_sequence(uint64_t session, int32_t sequence) {
    if (sessions_.count(session) && cache_.of(session).sequences.count(sequence)) {
        cancel_jobs(session, [&](const Task & task) { return task.sequence == sequence; });
        cache_.drop(session, sequence);
    }
}

void Scheduler::drop_injection(uint64_t session, int32_t injection) {
    if (sessions_.count(session) && cache_.of(session).injections.count(injection)) {
        cancel_jobs(session, [&](const Task & task) { return task.injection == injection || task.plain == injection; });
        cache_.drop_injection(session, injection);
    }
}

//
// jobs
//

void Scheduler::check_task(uint64_t session, const Task & task) {
    const Sequence & sequence = cache_.sequence(session, task.sequence);
    if (sequence.busy) {
        throw Error("the sequence is already in a running job");
    }
    if (sequence.lost) {
        throw Error("the sequence was lost with a decode that failed; read its text again in a new one");
    }
    if (task.reuse && (sequence.length() > 0 || task.feed_logprobs || task.injection != task.plain)) {
        throw ArgumentError("reuse needs an empty sequence, no log-probabilities of the feed, and no injection of the "
                            "task's own");
    }
    if (task.n_plain < 0 || size_t(task.n_plain) > task.feed.size()) {
        throw ArgumentError("plain is ", task.n_plain, ", but feed has ", task.feed.size(), " tokens");
    }
    if (task.feed.empty()) {
        throw ArgumentError("feed is empty; a task feeds at least one token");
    }
    if (task.n_generate < 0) {
        throw ArgumentError("n_generate is ", task.n_generate, ", but must be at least 0");
    }
    for (const int32_t injection : { task.injection, task.plain }) {
        if (injection != 0 && !cache_.of(session).injections.count(injection)) {
            throw Error("the injection was dropped or belongs to another session");
        }
    }
}

void Scheduler::submit(uint64_t session, const std::shared_ptr<Job> & job) {
    Reservation &     reservation = cache_.of(session);
    std::set<int32_t> seen;
    for (const Task & task : job->tasks) {
        check_task(session, task);
        if (!seen.insert(task.sequence).second) {
            throw ArgumentError("two tasks of one job name the same sequence; fork it first");
        }
    }
    const Session & place = sessions_.at(session);
    job->session          = session;

    std::vector<int32_t>               sequences;
    std::vector<uint32_t>              n_tokens;
    size_t                             needed = 0;
    std::vector<std::vector<uint32_t>> planned;
    jobs_.reserve(jobs_.size() + 1);
    try {
        for (const auto & task : job->running) {
            if (task->task->reuse) {
                start_reading(*task);
            }
            const size_t n_new = task->task->feed.size() - task->n_fed + std::max(0, task->task->n_generate - 1);
            sequences.push_back(task->task->sequence);
            n_tokens.push_back(uint32_t(std::min<size_t>(n_new, UINT32_MAX)));
            needed += n_new;
        }
        const auto reserved = [&] { return reservation.cells.size() - reservation.n_used - reservation.n_planned; };
        if (!place.preemptible && needed > reserved()) {
            cache_.recall(session);
        }
        const size_t held = place.preemptible ? cache_.sequence(session, sequences[0]).length()
                                              : reservation.n_used + reservation.n_planned;
        if (place.preemptible ? held + needed > place.n_cells : needed > reserved()) {
            throw CapacityError("needs ", needed + held, " cache cells, but the session reserved ", place.n_cells,
                                "; reserve more when opening it");
        }
        if (!place.preemptible) { // provide_cells() plans those of the others
            planned = cache_.plan(session, sequences, n_tokens);
        }
    } catch (...) {
        for (const auto & task : job->running) {
            if (task->n_fed > 0) {
                cache_.empty(session, task->task->sequence);
            }
        }
        throw;
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
        job->running[i]->cells                      = planned.empty() ? std::vector<uint32_t>() : std::move(planned[i]);
        cache_.sequence(session, sequences[i]).busy = true;
    }
    if (place.group) {
        ++place.group->n_jobs[place.index];
    }
    jobs_.push_back(job);
    std::stable_sort(jobs_.begin(), jobs_.end(), [&](const auto & a, const auto & b) {
        const Session &one = sessions_.at(a->session), &other = sessions_.at(b->session);
        return std::make_pair(one.serial, one.index) < std::make_pair(other.serial, other.index);
    });
}

bool Scheduler::ready() const {
    return !std::all_of(jobs_.begin(), jobs_.end(), [&](const auto & job) { return held_back(*job); });
}

// Whether a job's session has no cells now, or its group waits for one of its participants.
bool Scheduler::held_back(const Job & job) const {
    const Session & session = sessions_.at(job.session);
    return session.preempted || (session.group && session.group->has_idle_participant());
}

// Ends the session's jobs that have such a task.
void Scheduler::cancel_jobs(uint64_t session, const std::function<bool(const Task &)> & which) {
    bool found = false;
    for (auto & job : jobs_) {
        if (job->session == session && std::any_of(job->tasks.begin(), job->tasks.end(), which)) {
            job->cancelled = found = true;
        }
    }
    if (found) { // else a step may be under way, whose jobs must stay
        settle_cancelled();
    }
}

void Scheduler::settle_cancelled() {
    for (size_t i = 0; i < jobs_.size();) {
        if (!jobs_[i]->cancelled) {
            ++i;
            continue;
        }
        for (const auto & task : jobs_[i]->running) {
            if (!task->done()) {
                task->output->finish = Finish::cancelled;
            }
        }
        finish(jobs_[i], nullptr);
    }
}

void Scheduler::finish(const std::shared_ptr<Job> & finished, std::exception_ptr error) {
    const std::shared_ptr<Job> job = finished; // outlives its place in jobs_
    const auto                 it  = sessions_.find(job->session);
    if (it != sessions_.end()) {
        Reservation & reservation = cache_.of(job->session);
        for (const auto & task : job->running) {
            const auto sequence = reservation.sequences.find(task->task->sequence);
            if (sequence != reservation.sequences.end()) {
                sequence->second.busy = false;
            }
            cache_.unplan(job->session, task->cells.data() + task->n_placed, task->cells.size() - task->n_placed);
        }
        if (it->second.group) {
            --it->second.group->n_jobs[it->second.index];
        }
    }
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
    interrupt_.forget(*job);
    job->end(std::move(error));
}

void Scheduler::end_all(std::exception_ptr error) {
    while (!jobs_.empty()) {
        finish(jobs_.front(), error);
    }
}

void Scheduler::close_all(std::exception_ptr error) {
    end_all(error);
    while (!sessions_.empty()) {
        close_session(sessions_.begin()->first);
    }
}

void Scheduler::refuse_all(std::exception_ptr error) {
    for (auto & request : waiting_) {
        request->admitted.set_exception(error);
    }
    waiting_.clear();
}

} // namespace tgr
