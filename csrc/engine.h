// The engine: one model, one KV cache, and one worker thread that decodes all running work together (continuous
// batching). It knows nothing of Python.
//
//   Session    a reservation in the cache: cells and sequences, admitted as a whole, in the order of asking
//   sequence   tokens in the cache; a fork shares the cells of the sequence that it was forked from
//   injection  vectors that are added to the residual stream of a task's tokens, [n_layer][n_embd]
//   Job        tasks that were submitted together: feed tokens to a sequence, then generate
//
// The state (cache allocator, scheduler) is guarded by the lock. The worker gives it up while it decodes, so
// that other threads can fork sequences or submit jobs without waiting for it. Work that needs llama.cpp's memory
// itself, or ends running jobs, is a command, which runs between two decodes. So is the opening of a session that needs
// more cells than are known to be free. Commands have a second lock, which is held only briefly. So posting a command
// does not wait for the worker, which may hold the first lock while the cache grows.
#pragma once

#include "base/errors.h"
#include "cache/cache.h"
#include "job/interrupt.h"
#include "job/job.h"
#include "job/lockstep.h"
#include "job/records.h"
#include "model/model.h"
#include "schedule/scheduler.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace tgr {

// Notes in the child that the process was forked; call it after a fork.
void forked();
// Notes that devices are about to be used: those of GPUs and of RPC servers do not survive a fork, and a driver would
// end the process. Throws Error in a forked child of a process that used any.
void use_devices(bool has_servers = false);

class Engine {
public:
    // Loads the model and starts the worker. Throws ModelError, and what `check` throws.
    explicit Engine(const EngineParams & params, const LoadCheck & check = {});
    ~Engine();

    // Ends all work with CancelledError and frees the model. May be called again. Nothing in a forked child.
    void close();

    // Whether this is the process that made the engine: a forked child has no worker, and must not destroy the
    // engine's remains. check_here() throws there.
    bool here() const;
    void check_here() const;

    const ModelInfo & info() const { return model_.info(); }

    // Statistics of this moment; what commands change is not in it while a step takes longer than a second.
    EngineStats stats();

    // Functions of Model of the same names, in the calling thread.
    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string              detokenize(const std::vector<llama_token> & tokens, bool special,
                                        const std::vector<llama_token> & shown = {}) const;
    void                     check_grammar(const std::string & grammar, const std::string & prefix) const;

    // Enlarges the cache, if it grows on demand and no session is open or it is bounded, so that n_sessions of
    // n_cells fit.
    void grow_cache(uint32_t n_cells, uint32_t n_sessions);

    // Makes it as small as n_cells again, if no session is open; remembered prefixes stay.
    void shrink_cache(uint32_t n_cells) { ask(&CacheAllocator::shrink, cache_, n_cells); }

    // Adds the adapters with these scales from now on, and forgets all prefixes. Throws Error while a session is open.
    void set_scales(const std::vector<float> & scales) { ask(&CacheAllocator::set_scales, cache_, scales); }

    // Bounds a cache that grows, which then does so while sessions are open too.
    void bound_cache(uint32_t n_cells) { model_.most_cells = n_cells; }

    // The most cells that the cache may have, as Model estimates it.
    uint32_t n_cells_possible() { return call(&Model::n_cells_possible, model_); }

    // Bytes of the context on all devices, and of these what decoding computes in.
    std::pair<uint64_t, uint64_t> memory() { return ask(&Model::memory, model_); }

    // A group of n participants.
    std::shared_ptr<LockstepGroup> group(uint32_t n) { return call(&Scheduler::group, scheduler_, n); }
    void                           leave(const std::shared_ptr<LockstepGroup> & group, uint32_t index);

    // Asks for a session; the future gets its id when it is admitted. Throws CapacityError if it never can be. For
    // preemptible, in_the_way, withdraw and give_up see Scheduler.
    std::future<uint64_t> open(uint32_t n_cells, uint32_t n_seqs, bool preemptible, Prompt prompt,
                               std::shared_ptr<LockstepGroup> group, uint32_t index, uint64_t & ticket);
    std::vector<uint64_t> in_the_way(uint64_t ticket) { return ask(&Scheduler::in_the_way, scheduler_, ticket); }
    void                  withdraw(uint64_t ticket);
    void                  give_up(uint64_t ticket);
    void                  close_session(uint64_t session);
    uint32_t              session_peak(uint64_t session, bool reset); // cells used at most since the last reset

    int32_t sequence(uint64_t session) { return call(&CacheAllocator::add_sequence, cache_, session); }
    int32_t fork(uint64_t session, int32_t sequence) { return call(&CacheAllocator::fork, cache_, session, sequence); }
    void    truncate(uint64_t session, int32_t sequence, uint32_t n_tokens) {
        call(&CacheAllocator::truncate, cache_, session, sequence, n_tokens);
    }
    void shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end) { // removes [start, end)
        call(&CacheAllocator::shift, cache_, session, sequence, start, end);
    }
    void     drop(uint64_t session, int32_t sequence);
    uint32_t length(uint64_t session, int32_t sequence);
    void     remember(uint64_t session, int32_t sequence); // keeps its text as a prefix

    // Remembered prefixes, latest first; the longest of a prompt with its data; see CacheAllocator.
    std::vector<std::pair<std::vector<llama_token>, std::string>> prefixes();
    PrefixData  read_prefix(const Prompt & prompt) { return ask(&CacheAllocator::read_prefix, cache_, prompt); }
    bool        add_prefix(PrefixData data) { return ask(&CacheAllocator::add_prefix, cache_, std::move(data)); }
    std::string memory_layout(); // layout that the data depend on

    int32_t injection(uint64_t session, std::vector<float> vectors, Injected injected) { // [n_layer][n_embd]
        return call(&CacheAllocator::add_injection, cache_, session, std::move(vectors), std::move(injected));
    }
    void drop_injection(uint64_t session, int32_t injection);

    std::shared_ptr<Job> submit(uint64_t session, std::vector<Task> tasks);
    void                 cancel(const std::shared_ptr<Job> & job); // ends it at once, in prefill too; outputs stay

private:
    using Lock = std::unique_lock<std::mutex>;

    template <class F, class... Args> using Result = std::invoke_result_t<F, Args...>;

    // Runs f under the lock: now, or as a command, for whose end it waits.
    template <class F, class... Args> Result<F, Args...> call(F && f, Args &&... args);
    template <class F, class... Args> Result<F, Args...> ask(F && f, Args &&... args);

    bool post(std::function<void()> command); // false when the engine is closed
    void change();                            // tells the worker that something changed
    bool has_commands();
    void free_now_or_later(uint64_t session, std::function<void()> command);

    void        work();
    void        run_commands();
    void        step(Lock & lock);
    bool        decode(Batch & batch, Lock & lock);
    bool        interleave(double seconds, Lock & lock); // Model::interleave
    EngineStats count();

    const int      home_;
    Interrupt      interrupt_;
    Model          model_;
    CacheAllocator cache_;
    Scheduler      scheduler_;

    std::mutex              mutex_; // guards the state and the members up to stats_
    std::condition_variable stepped_;
    bool                    stepping_ = false; // the worker decodes or samples, without the lock
    EngineStats             stats_;

    std::mutex                        command_mutex_; // guards the members up to closed_; taken last
    std::condition_variable           wake_;          // wakes the worker
    std::deque<std::function<void()>> commands_;
    bool                              changed_ = false; // something changed since the worker looked
    std::atomic<bool>                 closed_{ false }; // is set under it

    std::thread    worker_;
    std::once_flag close_once_;
    bool           interrupted_     = false; // the last decode; worker only
    double         decoded_seconds_ = 0;     // … likewise
};

template <class F, class... Args> Engine::Result<F, Args...> Engine::call(F && f, Args &&... args) {
    check_here();
    Lock lock(mutex_);
    if (closed_) {
        throw CancelledError("the engine is closed");
    }
    change();
    return std::invoke(std::forward<F>(f), std::forward<Args>(args)...);
}

template <class F, class... Args> Engine::Result<F, Args...> Engine::ask(F && f, Args &&... args) {
    check_here();
    std::packaged_task<Result<F, Args...>()> task(
        [&] { return std::invoke(std::forward<F>(f), std::forward<Args>(args)...); });
    auto result = task.get_future();
    if (!post([&task] { task(); })) {
        throw CancelledError("the engine is closed");
    }
    return result.get();
}

} // namespace tgr
