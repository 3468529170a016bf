// The worker thread: commands, admission, and one step after another: build a batch, decode it, sample, hand out.

#include "engine_state.h"

#include "grammar_hooks.h"
#include "log.h"

#include <chrono>
#include <numeric>
#include <optional>

namespace tgr {

static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What somebody waits for answers him, with an error too. What nobody waits for frees something; if that fails for lack
// of memory, the end of its session frees it.
static void obey(const std::function<void()> & command) {
    try {
        command();
    } catch (...) {
    }
}

void Engine::work() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
        std::deque<std::function<void()>> commands;
        commands.swap(commands_);
        lock.unlock();
        for (auto & command : commands) {
            obey(command);
        }
        bool run = false;
        try {
            settle_cancelled();
            admit();
            run = ready();
            if (run) {
                {
                    std::lock_guard show(mutex_);
                    shown_    = count();
                    stepping_ = true;
                }
                step();
            }
        } catch (...) { // no memory, or a throw from llama.cpp: the running jobs end with it, the engine goes on
            const auto error = std::current_exception();
            while (!jobs_.empty()) {
                finish(jobs_.front(), error);
            }
        }
        lock.lock();
        stepping_ = false;
        if (!run) {
            wake_.wait(lock, [&] { return closed_ || !commands_.empty(); });
        }
    }
    auto commands = std::move(commands_);
    lock.unlock();
    // those who wait for a command get its answer; jobs and requests end
    for (auto & command : commands) {
        obey(command);
    }
    const auto closed = std::make_exception_ptr(CancelledError("the engine was closed"));
    while (!jobs_.empty()) {
        finish(jobs_.front(), closed);
    }
    for (auto & request : waiting_) {
        request->granted.set_exception(closed);
    }
    waiting_.clear();
}

bool Engine::ready() const {
    return !std::all_of(jobs_.begin(), jobs_.end(), [&](const auto & job) { return held_back(*job); });
}

// Whether a job's crew waits for one of its members.
bool Engine::held_back(const Job & job) const {
    const auto & crew = sessions_.at(job.session_)->crew;
    return crew && crew->idle_member();
}

// Grants waiting sessions in the order of asking, where those of a crew stand at the crew's making; the first that does
// not fit stops the rest, so that none starves. Members of a crew that is not complete have not asked yet.
void Engine::admit() {
    for (size_t i = 0; i < waiting_.size();) {
        Request & request = *waiting_[i];
        if (request.crew && !request.crew->assembled()) {
            ++i;
            continue;
        }
        try {
            if (!grant(request)) {
                return;
            }
        } catch (...) { // no memory, now or ever
            request.granted.set_exception(std::current_exception());
            if (request.crew) {
                request.crew->members[request.rank] = Crew::Member::gone;
            }
        }
        waiting_.erase(waiting_.begin() + i);
    }
}

// False when there is no room now.
bool Engine::grant(Request & request) {
    if (sessions_.empty() && (request.n_cells > n_ctx_ || !context_) && !grow(request.n_cells)) {
        throw CapacityError("needs a cache of " + std::to_string(request.n_cells) +
                            " cells, but there is not enough memory for it; shorten the query, chunk_len or "
                            "rollout_len");
    }
    uint64_t cells = request.n_cells, seqs = request.n_seqs;
    for (const auto & [id, session] : sessions_) {
        cells += session->room.size();
        seqs += session->n_seqs;
    }
    if (cells > n_ctx_ || seqs > params_.n_seq_max) {
        return false;
    }
    auto state    = std::make_unique<SessionState>();
    state->id     = request.ticket;
    state->serial = request.serial;
    state->crew   = request.crew;
    state->rank   = request.rank;
    state->room   = find_room(request.n_cells);
    state->n_seqs = request.n_seqs;
    sessions_.emplace(request.ticket, std::move(state));
    if (request.crew) {
        request.crew->members[request.rank] = Crew::Member::open;
    }
    request.granted.set_value(request.ticket);
    return true;
}

// Cells that no session holds: in one piece at a multiple of the stride if there is such a piece, so that the windows
// of sessions of nearly the same size lie at equal distances; else in any piece; else the lowest ones.
std::vector<uint32_t> Engine::find_room(uint32_t n_cells) const {
    std::vector<bool> taken(n_ctx_, false);
    for (const auto & [id, session] : sessions_) {
        for (const uint32_t cell : session->room) {
            taken[cell] = true;
        }
    }
    const uint64_t          stride = window_stride(n_cells);
    std::vector<uint32_t>   lowest;
    std::optional<uint32_t> piece;
    uint32_t                n_free = 0; // in one piece, up to here
    for (uint32_t cell = 0; cell < n_ctx_; ++cell) {
        n_free = taken[cell] ? 0 : n_free + 1;
        if (!taken[cell] && lowest.size() < n_cells) {
            lowest.push_back(cell);
        }
        if (n_free < n_cells) {
            continue;
        }
        const uint32_t begin = cell + 1 - n_cells;
        if (begin % stride == 0) {
            piece = begin;
            break;
        }
        piece = piece ? piece : begin;
    }
    if (!piece) {
        return lowest;
    }
    std::vector<uint32_t> room(n_cells);
    std::iota(room.begin(), room.end(), *piece);
    return room;
}

// Ends cancelled jobs; what they have generated so far stays in their outputs.
void Engine::settle_cancelled() {
    for (size_t i = 0; i < jobs_.size();) {
        if (!jobs_[i]->cancelled_) {
            ++i;
            continue;
        }
        for (const auto & task : jobs_[i]->running_) {
            if (!task->done) {
                task->output->finish = "cancelled";
            }
        }
        finish(jobs_[i], nullptr);
    }
}

void Engine::finish(const std::shared_ptr<Job> & finished, std::exception_ptr error) {
    const std::shared_ptr<Job> job = finished; // outlives its place in jobs_
    const auto                 it  = sessions_.find(job->session_);
    if (it != sessions_.end()) {
        SessionState & session = *it->second;
        for (const Task & task : job->tasks_) {
            const auto seq = session.sequences.find(task.sequence);
            if (seq != session.sequences.end()) {
                seq->second.busy = false;
            }
        }
        --session.n_jobs;
        session.pledged -= job->pledged_;
        if (session.crew) {
            --session.crew->n_jobs[session.rank];
        }
    }
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
    {
        std::lock_guard lock(mutex_);
        job->in_batch_ = false;
    }
    std::lock_guard lock(job->mutex_);
    job->error_ = std::move(error);
    job->done_  = true;
    job->changed_.notify_all();
    job->ended_.notify_all();
}

void Engine::step() {
    collect();
    if (!decode()) {
        return;
    }
    process_rows();
    const auto jobs = jobs_;
    for (const auto & job : jobs) {
        const auto & tasks = job->running_;
        if (std::all_of(tasks.begin(), tasks.end(), [](const auto & task) { return task->done; })) {
            finish(job, nullptr);
        } else if (job->in_batch_) {
            job->changed_.notify_all();
        }
    }
}

// Fills the batch: the next token of every sequence that generates, then as much waiting feed as fits.
void Engine::collect() {
    batch_tokens_.clear();
    batch_pos_.clear();
    batch_seq_.clear();
    batch_output_.clear();
    rows_.clear();
    const size_t n_outputs_max = llama_n_seq_max(context_.get());
    const size_t n_batch       = llama_n_batch(context_.get()); // llama.cpp may have lowered it to n_ctx

    const auto each = [&](auto && visit) {
        for (const auto & job : jobs_) {
            if (held_back(*job)) {
                continue;
            }
            for (const auto & task : job->running_) {
                if (!task->done) {
                    visit(*job, *task);
                }
            }
        }
    };
    for (const auto & job : jobs_) {
        for (const auto & task : job->running_) {
            task->n_in_batch = 0;
        }
    }
    const auto add = [&](Job::Running & task, llama_token token, uint32_t position, bool output) {
        if (task.n_in_batch++ == 0) {
            task.first_in_batch = batch_tokens_.size();
            graph_set_seq_row(context_.get(), task.task->sequence, task.task->direction);
        }
        batch_tokens_.push_back(token);
        batch_pos_.push_back(llama_pos(position));
        batch_seq_.push_back(task.task->sequence);
        batch_output_.push_back(output);
    };

    each([&](Job & job, Job::Running & task) {
        if (task.next == LLAMA_TOKEN_NULL || batch_tokens_.size() >= n_batch || rows_.size() >= n_outputs_max) {
            return;
        }
        const Sequence & seq = sessions_.at(job.session_)->sequences.at(task.task->sequence);
        rows_.push_back({ &job, &task, int32_t(batch_tokens_.size()), -1, true });
        add(task, task.next, uint32_t(seq.cells.size()), true);
    });
    each([&](Job & job, Job::Running & task) {
        const Task &     spec   = *task.task;
        const size_t     n_feed = spec.feed.size();
        const Sequence & seq    = sessions_.at(job.session_)->sequences.at(spec.sequence);
        // residual norms of the last layer exist for output tokens only: up to 32 of them, evenly spaced
        const size_t stride = (n_feed + 31) / 32;
        for (size_t i = task.n_fed; i < n_feed && batch_tokens_.size() < n_batch; ++i) {
            const bool last   = i + 1 == n_feed;
            const bool sample = last && spec.n_generate > 0;
            const bool kept   = sample || spec.feed_states == Keep::all || (last && spec.feed_states == Keep::last) ||
                                (!last && spec.feed_logprobs);
            const bool output = kept || (spec.norms && i % stride == 0);
            if (output && rows_.size() >= n_outputs_max) {
                break;
            }
            if (output) {
                rows_.push_back({ &job, &task, int32_t(batch_tokens_.size()), int32_t(i), sample });
            }
            add(task, spec.feed[i], uint32_t(seq.cells.size() + i - task.n_fed), output);
        }
    });
}

// Takes a cell for every token of the batch and tells the graph.
void Engine::place() {
    std::vector<graph_group>    groups;
    std::map<uint64_t, int32_t> group_of;
    batch_cells_.resize(batch_tokens_.size());
    batch_group_.resize(batch_tokens_.size());
    for (const auto & job : jobs_) {
        SessionState & session = *sessions_.at(job->session_);
        for (const auto & task : job->running_) {
            task->new_cells.clear();
            task->new_cells.reserve(task->n_in_batch);
            for (size_t i = task->first_in_batch; i < task->first_in_batch + task->n_in_batch; ++i) {
                task->new_cells.push_back(session.take_cell());
                batch_cells_[i] = session.room[task->new_cells.back()];
                batch_group_[i] = group_of.emplace(session.id, int32_t(group_of.size())).first->second;
            }
        }
    }
    groups.resize(group_of.size());
    for (const auto & [id, group] : group_of) {
        groups[group] = sessions_.at(id)->group();
    }
    graph_place(context_.get(), batch_cells_, batch_group_, groups);
}

// Undoes place() after a decode that failed, and what llama.cpp has done of it.
void Engine::give_back_cells() {
    for (const auto & job : jobs_) {
        SessionState & session = *sessions_.at(job->session_);
        for (const auto & task : job->running_) {
            if (task->new_cells.empty()) {
                continue;
            }
            const int32_t id = task->task->sequence;
            llama_memory_seq_rm(llama_get_memory(context_.get()), id, llama_pos(session.sequences.at(id).cells.size()),
                                -1);
            for (const uint32_t cell : task->new_cells) {
                session.drop_cell(cell);
            }
            task->new_cells.clear();
        }
    }
}

// Moves the cells of shifted sequences. llama.cpp would do so in its next decode, where a cancelled job could end it
// halfway. False when it failed: what the cache holds is worth nothing then.
bool Engine::apply_shift() {
    take_log_error();
    llama_set_abort_callback(context_.get(), nullptr, nullptr);
    const bool done = graph_apply_shift(context_.get());
    llama_set_abort_callback(context_.get(), interrupt_requested, &interrupt_);
    shift_pending_ = false;
    if (!done) {
        const auto error = std::make_exception_ptr(
            Error("the cache could not be shifted (" + take_log_error() + "); all sessions are closed, open new ones"));
        while (!jobs_.empty()) {
            finish(jobs_.front(), error);
        }
        while (!sessions_.empty()) {
            end_session(sessions_.begin()->first);
        }
    }
    return done;
}

// Says which jobs a cancel interrupts from now on: those in the batch, unless the last decode was given up. This one
// gets through then, so that clients who come and go stop nobody.
void Engine::arm() {
    std::lock_guard lock(mutex_);
    bool            cancelled = false;
    for (const auto & job : jobs_) {
        const auto & tasks = job->running_;
        job->in_batch_     = std::any_of(tasks.begin(), tasks.end(), [](const auto & t) { return t->n_in_batch > 0; });
        cancelled |= job->in_batch_ && job->cancelled_;
    }
    interruptible_ = !given_up_;
    interrupt_     = closed_ || (cancelled && interruptible_);
}

// Decodes the batch and books its cells. False when nothing came of it: the batch was given up for a cancelled job, or
// it failed and so did its jobs.
bool Engine::decode() {
    const size_t n = batch_tokens_.size();
    batch_n_seq_.assign(n, 1);
    batch_seq_ptr_.resize(n);
    for (size_t i = 0; i < n; ++i) {
        batch_seq_ptr_[i] = &batch_seq_[i];
    }
    bool states = false, norms = false;
    for (const auto & job : jobs_) {
        for (const auto & task : job->running_) {
            if (task->n_in_batch > 0) {
                states |= task->task->states || task->task->feed_states != Keep::none;
                norms |= task->task->norms && task->next == LLAMA_TOKEN_NULL;
            }
        }
    }
    graph_capture(context_.get(), states, norms);

    llama_batch batch = {};
    batch.n_tokens    = int32_t(n);
    batch.token       = batch_tokens_.data();
    batch.pos         = batch_pos_.data();
    batch.n_seq_id    = batch_n_seq_.data();
    batch.seq_id      = batch_seq_ptr_.data();
    batch.logits      = batch_output_.data();

    const double start = seconds_now();
    if (shift_pending_ && !apply_shift()) {
        return false;
    }
    arm();
    int32_t status = 0;
    try {
        place();
        status = llama_decode(context_.get(), batch);
        llama_synchronize(context_.get());
    } catch (...) {
        give_back_cells();
        throw;
    }
    stats_.decode_seconds += seconds_now() - start;

    const auto jobs = jobs_;
    given_up_       = status == 2;
    if (status != 0) {
        give_back_cells();
        for (const auto & job : jobs) {
            if (job->in_batch_ && !given_up_) { // what was given up and not cancelled is simply decoded again
                finish(job,
                       std::make_exception_ptr(Error("llama_decode failed with status " + std::to_string(status))));
            }
        }
        return false;
    }
    ++stats_.n_decodes;
    stats_.n_positions += n;
    for (const auto & job : jobs) {
        SessionState & session = *sessions_.at(job->session_);
        for (const auto & task : job->running_) {
            Sequence & seq = session.sequences.at(task->task->sequence);
            seq.cells.insert(seq.cells.end(), task->new_cells.begin(), task->new_cells.end());
            task->new_cells.clear();
            job->pledged_ -= task->n_in_batch;
            session.pledged -= task->n_in_batch;
            task->output->n_decoded += int32_t(task->n_in_batch);
            if (task->next == LLAMA_TOKEN_NULL && task->task->norms) {
                for (size_t i = 0; i < task->n_in_batch; ++i) {
                    for (int32_t layer = 0; layer < info_.n_layer; ++layer) {
                        const float norm = graph_norm(context_.get(), layer, int32_t(task->first_in_batch + i));
                        if (norm >= 0.0f) {
                            task->output->norm_sums[layer] += norm;
                            task->output->norm_counts[layer] += 1.0;
                        }
                    }
                }
            }
            if (task->next == LLAMA_TOKEN_NULL) {
                task->n_fed += task->n_in_batch;
            }
        }
    }
    stats_.cells_peak = std::max(stats_.cells_peak, cells_used());
    return true;
}

// Reads what the tasks asked for from the output rows and samples the next tokens, several rows at a time.
void Engine::process_rows() {
    const double               start  = seconds_now();
    const int32_t              n_rows = int32_t(rows_.size());
    const auto                 jobs   = jobs_; // a job that fails here must outlive its rows
    std::vector<const float *> logits(n_rows);
    for (int32_t i = 0; i < n_rows; ++i) {
        logits[i] = llama_get_logits_ith(context_.get(), rows_[i].batch_index);
    }
#pragma omp parallel for schedule(dynamic) num_threads(params_.n_threads) if (n_rows > 1 && info_.n_vocab > 8192)
    for (int32_t i = 0; i < n_rows; ++i) {
        Row &        row  = rows_[i];
        const Task & task = *row.task->task;
        if (!row.sample && !task.feed_logprobs) {
            continue;
        }
        const GrammarWatch watch{ &closed_, &row.job->cancelled_ };
        try {
            row.stats = distribution(logits[i], info_.n_vocab);
            if (row.sample) {
                row.draw = row.task->sampler->sample(logits[i], row.stats);
                if (task.n_top > 0) {
                    row.top = top_tokens(logits[i], info_.n_vocab, task.n_top, row.stats);
                }
            }
        } catch (const GrammarStopped &) { // its job ends before the next step
            row.sample = false;
        } catch (const std::exception & error) {
            row.error = std::make_exception_ptr(Error(error.what()));
        }
    }
    for (int32_t i = 0; i < n_rows; ++i) {
        Row &         row    = rows_[i];
        const Task &  task   = *row.task->task;
        Output &      output = *row.task->output;
        const float * state  = graph_state(context_.get(), row.batch_index);
        const auto    it =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const auto & job) { return job.get() == row.job; });
        if (it == jobs_.end()) {
            continue;
        }
        if (row.error) {
            finish(*it, row.error);
            continue;
        }
        if (row.feed_index >= 0) {
            const bool last = size_t(row.feed_index) + 1 == task.feed.size();
            if (task.feed_states == Keep::all || (last && task.feed_states == Keep::last)) {
                output.feed_states.insert(output.feed_states.end(), state, state + info_.n_embd);
            }
            if (task.feed_logprobs && !last) {
                output.feed_logprobs.push_back(float(logits[i][task.feed[row.feed_index + 1]] - row.stats.log_sum_exp));
            }
        }
        if (row.sample) {
            output.logprobs.push_back(float(logits[i][row.draw.token] - row.stats.log_sum_exp));
            output.sampled_logprobs.push_back(row.draw.logprob);
            output.entropies.push_back(row.stats.entropy);
            if (task.states) {
                output.states.insert(output.states.end(), state, state + info_.n_embd);
            }
            push_token(*row.job, *row.task, row);
        }
    }
    // tasks that only feed are done with their last token
    for (const auto & job : jobs_) {
        for (const auto & task : job->running_) {
            if (task->task->n_generate == 0 && task->n_fed == task->task->feed.size()) {
                task->done = true;
            }
        }
    }
    stats_.sample_seconds += seconds_now() - start;
}

// Whether one of the stop texts ends within the newest bytes of a text.
static bool ends_within(const std::string & text, size_t n_newest, const std::vector<std::string> & stops) {
    for (const auto & stop : stops) {
        for (size_t end = std::max(text.size() - n_newest + 1, stop.size()); end <= text.size(); ++end) {
            if (text.compare(end - stop.size(), stop.size(), stop) == 0) {
                return true;
            }
        }
    }
    return false;
}

// Books a sampled token and decides whether the task goes on.
void Engine::push_token(Job & job, Job::Running & task, const Row & row) {
    const Task &      spec   = *task.task;
    Output &          output = *task.output;
    const llama_token token  = row.draw.token;
    output.tokens.push_back(token);
    for (const auto & [id, logprob] : row.top) {
        output.top_ids.push_back(id);
        output.top_logprobs.push_back(logprob);
    }
    task.next = token;

    const bool ends = !spec.ignore_eog && llama_vocab_is_eog(vocab_, token);
    bool       stop = ends;
    if (!spec.stop.empty() && !ends) {
        const std::string piece = detokenize({ token }, false);
        task.tail += piece;
        stop = ends_within(task.tail, piece.size(), spec.stop);
        if (task.tail.size() > 2 * task.tail_most + 1024) { // seldom: it moves all that stays
            task.tail.erase(0, task.tail.size() - task.tail_most);
        }
    }
    if (stop || output.tokens.size() >= size_t(spec.n_generate)) {
        output.finish = stop ? "stop" : "length";
        task.done     = true;
    }
    std::lock_guard lock(job.mutex_);
    job.fresh_[task.index].push_back(token);
}

} // namespace tgr
