// Sessions, sequences, directions and jobs as other threads see them. The worker's loop is in engine_loop.cpp, the
// loading of a model in engine_load.cpp.

#include "engine_state.h"

#include "grammar_hooks.h"

#include <chrono>

namespace tgr {

//
// Job
//

Job::Job(std::vector<Task> tasks) : tasks_(std::move(tasks)), outputs_(tasks_.size()), fresh_(tasks_.size()) {}

Job::~Job() = default;

static std::chrono::duration<double> span(double seconds) {
    return std::chrono::duration<double>(seconds);
}

bool Job::wait(double seconds) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, span(seconds), [&] { return done_; });
}

std::vector<std::vector<llama_token>> Job::take(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, span(seconds), [&] {
        return done_ || std::any_of(fresh_.begin(), fresh_.end(), [](const auto & t) { return !t.empty(); });
    });
    std::vector<std::vector<llama_token>> fresh(fresh_.size());
    fresh.swap(fresh_);
    return fresh;
}

std::vector<Output> & Job::outputs() {
    std::unique_lock lock(mutex_);
    if (!done_) {
        throw Error("the job is still running; wait for it first");
    }
    if (error_) {
        std::rethrow_exception(error_);
    }
    return outputs_;
}

//
// commands
//

static std::atomic<int> n_forks{ 0 }; // on the way from the first process to this one

void forked() {
    ++n_forks;
}

bool Engine::here() const {
    return home_ == n_forks;
}

void Engine::check_here() const {
    if (!here()) {
        throw Error("the engine stayed in the process that this one was forked from; load it again here");
    }
}

Engine::Engine(const EngineParams & params) : home_(n_forks), params_(params) {
    describe_model();
    if (params_.n_seq_max == 0) {
        params_.n_seq_max = info_.n_vocab <= 16384 ? 256 : 96; // output rows of a large vocabulary are large
    }
    make_context(params_.n_ctx ? params_.n_ctx : 256);
    check_injection();
    worker_ = std::thread([this] { work(); });
}

Engine::~Engine() {
    close();
}

void Engine::close() {
    if (!here()) {
        return;
    }
    std::call_once(close_once_, [this] {
        {
            std::lock_guard lock(mutex_);
            closed_ = true;
        }
        interrupt_ = true;
        wake_.notify_all();
        worker_.join();
        context_.reset();
        std::unique_lock lock(model_mutex_);
        const auto       model = std::move(model_);
        lock.unlock();
    });
}

bool Engine::post(std::function<void()> command) {
    if (!here()) { // whoever held the mutex is not here either
        return false;
    }
    {
        std::lock_guard lock(mutex_);
        if (closed_) {
            return false;
        }
        commands_.push_back(std::move(command));
    }
    wake_.notify_all();
    return true;
}

EngineStats Engine::stats() {
    check_here();
    const auto answer = std::make_shared<std::promise<EngineStats>>();
    auto       result = answer->get_future();
    if (!post([this, answer] { answer->set_value(count()); })) {
        throw CancelledError("the engine is closed");
    }
    while (result.wait_for(std::chrono::seconds(1)) != std::future_status::ready) {
        std::lock_guard lock(mutex_);
        if (stepping_) {
            return shown_;
        }
    }
    return result.get();
}

EngineStats Engine::count() const {
    EngineStats stats = stats_;
    stats.n_ctx       = n_ctx_;
    stats.n_seq_max   = params_.n_seq_max;
    stats.cells_used  = cells_used();
    stats.n_sessions  = uint32_t(sessions_.size());
    stats.n_waiting   = uint32_t(waiting_.size());
    stats.n_jobs      = uint32_t(jobs_.size());
    for (const auto & [id, session] : sessions_) {
        stats.cells_reserved += uint32_t(session->room.size());
        stats.n_sequences += uint32_t(session->sequences.size());
    }
    return stats;
}

std::shared_ptr<llama_model> Engine::model() const {
    std::shared_lock lock(model_mutex_);
    if (!model_) {
        throw CancelledError("the engine is closed");
    }
    return model_;
}

uint32_t Engine::cells_used() const {
    uint32_t used = 0;
    for (const auto & [id, session] : sessions_) {
        used += session->used;
    }
    return used;
}

//
// sessions
//

void Engine::reserve(uint32_t n_cells, uint32_t n_sessions) {
    const uint64_t total = n_sessions == 1 ? n_cells : window_stride(n_cells) * n_sessions;
    call([&] {
        if (total > n_ctx_ && total <= INT32_MAX && params_.n_ctx == 0 && sessions_.empty()) {
            grow(uint32_t(total));
        }
    });
}

bool Crew::assembled() const {
    return std::find(members.begin(), members.end(), Member::absent) == members.end();
}

bool Crew::idle_member() const {
    for (size_t i = 0; i < members.size(); ++i) {
        if (members[i] == Member::open && n_jobs[i] == 0) {
            return true;
        }
    }
    return false;
}

std::shared_ptr<Crew> Engine::crew(uint32_t n) {
    return call([&] {
        auto crew = std::make_shared<Crew>();
        crew->members.assign(n, Crew::Member::absent);
        crew->n_jobs.assign(n, 0);
        crew->serial = next_id_++;
        return crew;
    });
}

void Engine::leave(const std::shared_ptr<Crew> & crew, uint32_t rank) {
    if (rank >= crew->members.size()) { // the size never changes
        throw std::invalid_argument("the crew has no member " + std::to_string(rank));
    }
    post([crew, rank] { crew->members[rank] = Crew::Member::gone; });
}

std::future<uint64_t> Engine::open(uint32_t n_cells, uint32_t n_seqs, std::shared_ptr<Crew> crew, uint32_t rank,
                                   uint64_t & ticket) {
    return call([&] {
        if (crew && (rank >= crew->members.size() || crew->members[rank] != Crew::Member::absent)) {
            throw Error("crew member " + std::to_string(rank) + " is not awaited; give each session its own rank");
        }
        if (n_seqs > params_.n_seq_max) {
            throw CapacityError("needs " + std::to_string(n_seqs) + " sequences at a time, but the engine holds " +
                                std::to_string(params_.n_seq_max) + "; raise n_seq_max or lower n_candidates or n_mc");
        }
        const uint64_t most = uint64_t(params_.n_seq_max) * std::max(info_.n_ctx_train, 1);
        if (n_cells > most) {
            throw CapacityError("needs " + std::to_string(n_cells) + " cache cells, but " +
                                std::to_string(params_.n_seq_max) + " sequences of the " +
                                std::to_string(info_.n_ctx_train) + " tokens that the model was trained for take " +
                                std::to_string(most) + " at most");
        }
        if (params_.n_ctx != 0 && n_cells > n_ctx_) {
            throw CapacityError("needs " + std::to_string(n_cells) + " cache cells, but n_ctx is " +
                                std::to_string(n_ctx_) +
                                "; raise n_ctx, or shorten the query, chunk_len or rollout_len");
        }
        auto request = std::make_unique<Request>();
        ticket       = next_id_++;
        *request     = { ticket, crew ? crew->serial : ticket, n_cells, n_seqs, crew, rank, {} };
        if (crew) {
            crew->members[rank] = Crew::Member::waiting;
        }
        auto granted = request->granted.get_future();
        waiting_.push_back(std::move(request));
        std::stable_sort(waiting_.begin(), waiting_.end(), [](const auto & a, const auto & b) {
            return std::make_pair(a->serial, a->rank) < std::make_pair(b->serial, b->rank);
        });
        return granted;
    });
}

std::vector<uint64_t> Engine::in_the_way(uint64_t ticket) {
    return call([&] {
        admit(); // what is in no one's way is not waiting
        std::vector<uint64_t> open;
        const auto            it =
            std::find_if(waiting_.begin(), waiting_.end(), [&](const auto & r) { return r->ticket == ticket; });
        if (it != waiting_.end() && (!(*it)->crew || (*it)->crew->assembled())) {
            for (const auto & [id, session] : sessions_) {
                open.push_back(id);
            }
        }
        return open;
    });
}

void Engine::give_up(uint64_t ticket) {
    post([this, ticket] {
        const auto same = [&](const auto & request) { return request->ticket == ticket; };
        const auto it   = std::find_if(waiting_.begin(), waiting_.end(), same);
        if (it == waiting_.end()) {
            end_session(ticket);
            return;
        }
        if ((*it)->crew) {
            (*it)->crew->members[(*it)->rank] = Crew::Member::gone;
        }
        waiting_.erase(it);
    });
}

Engine::SessionState & Engine::session_of(uint64_t session) {
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) {
        throw Error("the session is closed");
    }
    return *it->second;
}

Engine::Sequence & Engine::sequence_of(SessionState & session, int32_t sequence) {
    const auto it = session.sequences.find(sequence);
    if (it == session.sequences.end()) {
        throw Error("the sequence was dropped or belongs to another session");
    }
    return it->second;
}

void Engine::close_session(uint64_t session) {
    post([this, session] { end_session(session); });
}

void Engine::end_session(uint64_t session) {
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) {
        return;
    }
    SessionState & state = *it->second;
    cancel_jobs(session, [](const Task &) { return true; });
    while (!state.sequences.empty()) {
        release(state, state.sequences.begin()->first);
    }
    for (const int32_t row : state.directions) {
        row_taken_[row] = false;
    }
    if (state.crew) {
        state.crew->members[state.rank] = Crew::Member::gone;
    }
    sessions_.erase(it);
}

// Ends the session's jobs that hold such a task.
void Engine::cancel_jobs(uint64_t session, const std::function<bool(const Task &)> & which) {
    for (auto & job : jobs_) {
        if (job->session_ == session && std::any_of(job->tasks_.begin(), job->tasks_.end(), which)) {
            job->cancelled_ = true;
        }
    }
    settle_cancelled();
}

uint32_t Engine::session_peak(uint64_t session, bool reset) {
    return call([&] {
        SessionState & state = session_of(session);
        const uint32_t peak  = state.peak;
        if (reset) {
            state.peak = state.used;
        }
        return peak;
    });
}

//
// sequences and directions
//

int32_t Engine::take_sequence(SessionState & session) {
    if (session.sequences.size() >= session.n_seqs) {
        throw CapacityError("the session was granted " + std::to_string(session.n_seqs) +
                            " sequences and uses them all; drop one or ask for more");
    }
    const auto    it = std::find(seq_taken_.begin(), seq_taken_.end(), false);
    const int32_t id = int32_t(it - seq_taken_.begin());
    seq_taken_[id]   = true;
    session.sequences[id];
    return id;
}

int32_t Engine::sequence(uint64_t session) {
    return call([&] { return take_sequence(session_of(session)); });
}

int32_t Engine::fork(uint64_t session, int32_t sequence) {
    return call([&] {
        SessionState & state = session_of(session);
        Sequence &     from  = sequence_of(state, sequence);
        if (from.busy) {
            throw Error("the sequence is in a running job; wait for it before forking");
        }
        const int32_t child = take_sequence(state);
        llama_memory_seq_cp(llama_get_memory(context_.get()), sequence, child, -1, -1);
        state.sequences[child].cells = from.cells;
        for (const uint32_t cell : from.cells) {
            ++state.refs[cell];
        }
        return child;
    });
}

void Engine::truncate(uint64_t session, int32_t sequence, uint32_t n_tokens) {
    call([&] {
        SessionState & state = session_of(session);
        Sequence &     seq   = sequence_of(state, sequence);
        if (seq.busy) {
            throw Error("the sequence is in a running job; wait for it before truncating");
        }
        if (n_tokens >= seq.cells.size()) {
            return;
        }
        if (!llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, llama_pos(n_tokens), -1)) {
            throw Error("this model's cache cannot be rolled back");
        }
        for (size_t i = n_tokens; i < seq.cells.size(); ++i) {
            state.drop_cell(seq.cells[i]);
        }
        seq.cells.resize(n_tokens);
    });
}

void Engine::shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end) {
    call([&] {
        SessionState & state = session_of(session);
        Sequence &     seq   = sequence_of(state, sequence);
        if (seq.busy) {
            throw Error("the sequence is in a running job; wait for it before shifting");
        }
        const auto & cells = seq.cells;
        if (start > end || end > cells.size()) {
            throw std::invalid_argument("the tokens from " + std::to_string(start) + " to " + std::to_string(end) +
                                        " do not lie in a sequence of " + std::to_string(cells.size()));
        }
        if (start == end) {
            return;
        }
        const auto shared = [&](uint32_t cell) { return state.refs[cell] > 1; };
        if (std::any_of(cells.begin() + end, cells.end(), shared)) {
            throw Error("the tokens that would move are shared with a fork, whose positions stay; drop the fork, or "
                        "shift before forking");
        }
        if (end < cells.size()) {
            // quantised keys would be rounded again, those of everyone
            const char * reason = ggml_is_quantized(params_.type_k) ? "its keys are quantised, set type_k to f16"
                                                                    : graph_no_shift(context_.get());
            if (reason) {
                throw Error(std::string("the tokens of this cache cannot be moved: ") + reason +
                            "; truncate the sequence and decode what follows again");
            }
            shift_pending_ = true;
        }
        llama_memory_t memory = llama_get_memory(context_.get());
        llama_memory_seq_rm(memory, sequence, llama_pos(start), llama_pos(end));
        llama_memory_seq_add(memory, sequence, llama_pos(end), -1, llama_pos(start) - llama_pos(end));
        for (size_t i = start; i < end; ++i) {
            state.drop_cell(cells[i]);
        }
        seq.cells.erase(cells.begin() + start, cells.begin() + end);
    });
}

void Engine::release(SessionState & session, int32_t sequence) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, -1, -1);
    graph_set_seq_row(context_.get(), sequence, 0);
    for (const uint32_t cell : session.sequences[sequence].cells) {
        session.drop_cell(cell);
    }
    session.sequences.erase(sequence);
    seq_taken_[sequence] = false;
}

void Engine::drop(uint64_t session, int32_t sequence) {
    post([this, session, sequence] {
        const auto it = sessions_.find(session);
        if (it == sessions_.end() || !it->second->sequences.count(sequence)) {
            return;
        }
        cancel_jobs(session, [&](const Task & task) { return task.sequence == sequence; });
        release(*it->second, sequence);
    });
}

uint32_t Engine::length(uint64_t session, int32_t sequence) {
    return call([&] { return uint32_t(sequence_of(session_of(session), sequence).cells.size()); });
}

int32_t Engine::direction(uint64_t session, std::vector<float> pushes) {
    if (pushes.size() != size_t(info_.n_layer) * info_.n_embd) {
        throw std::invalid_argument("a direction needs n_layer × n_embd values");
    }
    return call([&] {
        SessionState & state = session_of(session);
        if (state.directions.size() >= state.n_seqs) {
            throw CapacityError("the session was granted " + std::to_string(state.n_seqs) +
                                " directions and uses them all; drop one or ask for more");
        }
        const auto    it  = std::find(row_taken_.begin() + 1, row_taken_.end(), false);
        const int32_t row = int32_t(it - row_taken_.begin());
        row_taken_[row]   = true;
        state.directions.insert(row);
        graph_set_row(context_.get(), row, pushes.data());
        return row;
    });
}

void Engine::drop_direction(uint64_t session, int32_t direction) {
    post([this, session, direction] {
        const auto it = sessions_.find(session);
        if (it != sessions_.end() && it->second->directions.erase(direction)) {
            cancel_jobs(session, [&](const Task & task) { return task.direction == direction; });
            row_taken_[direction] = false;
        }
    });
}

//
// jobs
//

void Engine::check_token(const char * where, llama_token token) const {
    if (token < 0 || token >= info_.n_vocab) {
        throw std::invalid_argument(std::string(where) + " holds token " + std::to_string(token) +
                                    ", but the vocabulary ends at " + std::to_string(info_.n_vocab - 1));
    }
}

void Engine::check_task(SessionState & session, const Task & task) {
    Sequence & seq = sequence_of(session, task.sequence);
    if (seq.busy) {
        throw Error("the sequence is already in a running job");
    }
    if (task.feed.empty()) {
        throw std::invalid_argument("feed is empty; a task feeds at least one token");
    }
    if (task.n_generate < 0) {
        throw std::invalid_argument("n_generate is " + std::to_string(task.n_generate) + ", but must be at least 0");
    }
    for (const llama_token token : task.feed) {
        check_token("feed", token);
    }
    if (task.direction != 0 && !session.directions.count(task.direction)) {
        throw Error("the direction was dropped or belongs to another session");
    }
}

// Makes what the tasks need to run: samplers above all, which takes its time where a grammar is long.
void Engine::prepare(Job & job) const {
    const auto         model = this->model();
    const GrammarWatch watch{ &closed_, nullptr };
    for (size_t i = 0; i < job.tasks_.size(); ++i) {
        const Task & task    = job.tasks_[i];
        auto         running = std::make_unique<Job::Running>();
        running->task        = &task;
        running->output      = &job.outputs_[i];
        running->index       = i;
        running->tail        = task.tail;
        for (const auto & text : task.stop) {
            running->tail_most = std::max(running->tail_most, text.size());
        }
        if (task.n_generate > 0) {
            running->sampler = std::make_unique<Sampler>(vocab_, task.sampling, task.seed, job.tasks_.size());
            for (const auto * tokens : { &task.history, &task.feed }) {
                for (const llama_token token : *tokens) {
                    check_token(tokens == &task.feed ? "feed" : "history", token);
                    running->sampler->accept_prompt(token);
                }
            }
            for (const llama_token token : task.grammar_history) {
                check_token("grammar_history", token);
            }
            running->sampler->accept_grammar(task.grammar_history);
        }
        if (task.norms) {
            running->output->norm_sums.assign(info_.n_layer, 0.0);
            running->output->norm_counts.assign(info_.n_layer, 0.0);
        }
        job.running_.push_back(std::move(running));
    }
}

std::shared_ptr<Job> Engine::submit(uint64_t session, std::vector<Task> tasks) {
    auto job = std::make_shared<Job>(std::move(tasks));
    if (job->tasks_.empty()) {
        job->done_ = true;
        return job;
    }
    check_here();
    try {
        prepare(*job);
    } catch (const GrammarStopped &) {
        throw CancelledError("the engine was closed");
    }
    call([&] {
        SessionState &    state = session_of(session);
        std::set<int32_t> seen;
        size_t            needed = 0;
        for (const Task & task : job->tasks_) {
            check_task(state, task);
            if (!seen.insert(task.sequence).second) {
                throw std::invalid_argument("two tasks of one job name the same sequence; fork it first");
            }
            needed += task.feed.size() + std::max(0, task.n_generate - 1);
        }
        needed += state.used + state.pledged;
        if (needed > state.room.size()) {
            throw CapacityError("needs " + std::to_string(needed) + " cache cells, but the session was granted " +
                                std::to_string(state.room.size()) + "; ask for more when opening it");
        }
        for (const Task & task : job->tasks_) {
            sequence_of(state, task.sequence).busy = true;
        }
        job->session_ = session;
        job->pledged_ = needed - state.used - state.pledged;
        job->serial_  = state.serial;
        state.pledged += job->pledged_;
        ++state.n_jobs;
        if (state.crew) {
            ++state.crew->n_jobs[state.rank];
        }
        jobs_.push_back(job);
        std::stable_sort(jobs_.begin(), jobs_.end(), [&](const auto & a, const auto & b) {
            const auto place = [&](const auto & j) {
                return std::make_pair(j->serial_, sessions_.at(j->session_)->rank);
            };
            return place(a) < place(b);
        });
    });
    return job;
}

void Engine::cancel(const std::shared_ptr<Job> & job) {
    if (!here()) {
        return;
    }
    {
        std::lock_guard lock(mutex_);
        job->cancelled_ = true;
        if (job->in_batch_ && interruptible_) {
            interrupt_ = true;
        }
    }
    post([] {}); // wakes a worker that waits for a crew
}

} // namespace tgr
