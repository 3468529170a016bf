// The engine as other threads see it. The worker's loop is in worker.cpp.

#include "engine.h"

#include "machine/available.h"

#include <chrono>

namespace tgr {

static std::atomic<int> n_forks{ 0 }; // from the first process to this one

static std::atomic<int> device_home{ -1 }; // the process that first used a device besides the CPU; -1 = none did

void forked() {
    ++n_forks;
}

void use_devices(bool has_servers) {
    const bool is_cpu_alone = !has_servers && gpus().empty();
    int        none         = -1;
    if (!is_cpu_alone && !device_home.compare_exchange_strong(none, n_forks) && none != n_forks) {
        throw Error("this process was forked from one that used a GPU or an RPC server, whose connections it cannot "
                    "use; start it anew (multiprocessing: the method spawn), or fork before tgr_local is used");
    }
}

bool Engine::here() const {
    return home_ == n_forks;
}

void Engine::check_here() const {
    if (!here()) {
        throw Error("the engine stayed in the process that this one was forked from; load it again here");
    }
}

Engine::Engine(const EngineParams & params, const LoadCheck & check) :
    home_((use_devices(!params.rpc.empty()), n_forks.load())),
    model_(params, interrupt_, check),
    cache_(model_),
    scheduler_(model_, cache_, interrupt_) {
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
            const std::lock_guard lock(command_mutex_);
            closed_ = true;
        }
        interrupt_.close();
        wake_.notify_all();
        worker_.join();
        model_.release();
    });
}

//
// commands
//

// A command that somebody waits for reports its error itself. The others free something; where that fails for lack of
// memory, the end of the session frees it.
void Engine::run_commands() {
    while (true) {
        std::function<void()> command;
        {
            const std::lock_guard lock(command_mutex_);
            if (commands_.empty()) {
                return;
            }
            command = std::move(commands_.front());
            commands_.pop_front();
        }
        try {
            command();
        } catch (...) {
        }
    }
}

bool Engine::post(std::function<void()> command) {
    if (!here()) { // a thread that held the mutex is not here either
        return false;
    }
    {
        const std::lock_guard lock(command_mutex_);
        if (closed_) {
            return false;
        }
        commands_.push_back(std::move(command));
    }
    if (const Lock lock(mutex_, std::try_to_lock); lock && !stepping_) { // else the worker comes to it
        run_commands();
    }
    change();
    return true;
}

void Engine::change() {
    {
        const std::lock_guard lock(command_mutex_);
        changed_ = true;
    }
    wake_.notify_all();
}

bool Engine::has_commands() {
    const std::lock_guard lock(command_mutex_);
    return !commands_.empty();
}

EngineStats Engine::stats() {
    check_here();
    Lock lock(mutex_);
    stepped_.wait_for(lock, std::chrono::seconds(1), [&] { return !has_commands() || !stepping_ || closed_; });
    if (closed_) { // perhaps meanwhile: the model is going
        throw CancelledError("the engine is closed");
    }
    return count();
}

//
// text
//

std::vector<llama_token> Engine::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    check_here();
    return model_.tokenize(text, add_special, parse_special);
}

std::string Engine::detokenize(const std::vector<llama_token> & tokens, bool special,
                               const std::vector<llama_token> & shown) const {
    check_here();
    return model_.detokenize(tokens, special, shown);
}

void Engine::check_grammar(const std::string & grammar, const std::string & prefix) const {
    check_here();
    model_.check_grammar(grammar, prefix);
}

//
// sessions
//

void Engine::grow_cache(uint32_t n_cells, uint32_t n_sessions) {
    const uint64_t total = uint64_t(n_cells) * n_sessions;
    ask([&] {
        if (total > model_.n_ctx() && total <= INT32_MAX) {
            cache_.grow(uint32_t(total));
        }
    });
}

void Engine::leave(const std::shared_ptr<LockstepGroup> & group, uint32_t index) {
    if (index >= group->participants.size()) {
        throw ArgumentError("the group has no participant ", index);
    }
    post([group, index] { group->participants[index] = LockstepGroup::Participant::gone; });
}

std::future<uint64_t> Engine::open(uint32_t n_cells, uint32_t n_seqs, bool preemptible, Prompt prompt,
                                   std::shared_ptr<LockstepGroup> group, uint32_t index, uint64_t & ticket) {
    check_tokens("prompt", prompt.tokens, info().n_vocab);
    if (!call([&] { return model_.is_known_to_fit(n_cells); })) {
        ask([&] { cache_.check(n_cells, n_seqs); }); // measures buffers, which a decode may be changing
    }
    return call([&] {
        return scheduler_.request(n_cells, n_seqs, preemptible, std::move(prompt), std::move(group), index, ticket);
    });
}

void Engine::withdraw(uint64_t ticket) {
    post([this, ticket] { scheduler_.withdraw(ticket); });
}

void Engine::give_up(uint64_t ticket) {
    post([this, ticket] { scheduler_.give_up(ticket); });
}

void Engine::close_session(uint64_t session) {
    free_now_or_later(session, [this, session] { scheduler_.close_session(session); });
}

// At once where the session has no running job, so that its next command finds the room; else between two decodes.
void Engine::free_now_or_later(uint64_t session, std::function<void()> command) {
    if (here()) {
        const std::lock_guard lock(mutex_);
        if (!closed_ && !scheduler_.is_busy(session)) {
            command();
            change();
            return;
        }
    }
    post(std::move(command));
}

uint32_t Engine::session_peak(uint64_t session, bool reset) {
    return call([&] {
        Reservation &  reservation = cache_.of(session);
        const uint32_t most        = reservation.n_most;
        if (reset) {
            reservation.n_most = 0;
            reservation.note_most();
        }
        return most;
    });
}

//
// sequences and injections
//

void Engine::drop(uint64_t session, int32_t sequence) {
    free_now_or_later(session, [this, session, sequence] { scheduler_.drop_sequence(session, sequence); });
}

uint32_t Engine::length(uint64_t session, int32_t sequence) {
    return call([&] { return cache_.sequence(session, sequence).length(); });
}

void Engine::remember(uint64_t session, int32_t sequence) {
    const auto remember = [&] { cache_.remember(session, sequence); };
    cache_.rolls_back() ? call(remember) : ask(remember);
}

std::vector<std::pair<std::vector<llama_token>, std::string>> Engine::prefixes() {
    return call([&] {
        std::vector<std::pair<std::vector<llama_token>, std::string>> all;
        for (const auto & prefix : cache_.prefixes().all()) {
            all.emplace_back(prefix->tokens, prefix->digest);
        }
        return all;
    });
}

std::string Engine::memory_layout() {
    return ask([&] {
        if (!model_.context()) {
            throw CapacityError(
                "the model has no cache, because the memory for it was not there; load the model again");
        }
        const uint32_t block = cache_.reading().block;
        return tgr::memory_layout(model_.context()) + (block ? concat("; read in blocks of ", block) : "");
    });
}

void Engine::drop_injection(uint64_t session, int32_t injection) {
    free_now_or_later(session, [this, session, injection] { scheduler_.drop_injection(session, injection); });
}

//
// jobs
//

std::shared_ptr<Job> Engine::submit(uint64_t session, std::vector<Task> tasks) {
    auto job = std::make_shared<Job>(std::move(tasks));
    if (job->tasks.empty()) {
        return job;
    }
    check_here();
    try {
        const auto         held = model_.weights();
        const GrammarWatch watch{ &closed_, nullptr };
        job->prepare(model_.token_texts(), info());
    } catch (const GrammarStopped &) {
        throw CancelledError("the engine was closed");
    }
    call([&] { scheduler_.submit(session, job); });
    return job;
}

void Engine::cancel(const std::shared_ptr<Job> & job) {
    if (!here()) {
        return;
    }
    interrupt_.cancel(*job);
    post([] {}); // wakes a worker that waits for a lockstep group
}

} // namespace tgr
