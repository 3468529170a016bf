// The engine: one model, one KV cache, and one worker thread that decodes all running work together (continuous
// batching). It knows nothing of Python.
//
//   Session    a reservation in the cache: cells and sequences, admitted as a whole, in the order of asking
//   sequence   tokens in the cache; a fork shares the cells of the sequence that it was forked from
//   injection  vectors that are added to the residual stream of a task's tokens, [n_layer][n_embd]
//   Job        tasks that were submitted together: feed tokens to a sequence, then generate
//
// The model, the cache allocator and the scheduler belong to the worker thread. Other threads hand it commands and wait
// for their results.
#pragma once

#include "cache.h"
#include "errors.h"
#include "interrupt.h"
#include "job.h"
#include "lockstep.h"
#include "model.h"
#include "records.h"
#include "scheduler.h"

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
#include <vector>

namespace tgr {

// To be called in the child after a fork.
void forked();

class Engine {
public:
    // Loads the model and starts the worker. Throws ModelError.
    explicit Engine(const EngineParams & params);
    ~Engine();

    // Ends all work with CancelledError and frees the model. May be called again. Nothing in a forked child.
    void close();

    // Whether this is the process that made the engine: a forked child has no worker, and must not destroy the
    // engine's remains. check_here() throws there.
    bool here() const;
    void check_here() const;

    const ModelInfo & info() const { return model_.info(); }

    // Now; or before the step under way, if that takes longer than a second.
    EngineStats stats();

    // As Model's; in the calling thread.
    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string              detokenize(const std::vector<llama_token> & tokens, bool special) const;
    void                     check_grammar(const std::string & grammar) const;

    // Enlarges the cache, if it grows on demand and no session is open, so that so many sessions of n_cells fit.
    void grow_cache(uint32_t n_cells, uint32_t n_sessions);

    // A group of n participants.
    std::shared_ptr<LockstepGroup> group(uint32_t n);
    void                           leave(const std::shared_ptr<LockstepGroup> & group, uint32_t index);

    // Asks for a session; the future gets its id when it is admitted. Throws CapacityError if it never can be. For
    // in_the_way and withdraw see Scheduler.
    std::future<uint64_t> open(uint32_t n_cells, uint32_t n_seqs, std::shared_ptr<LockstepGroup> group, uint32_t index,
                               uint64_t & ticket);
    std::vector<uint64_t> in_the_way(uint64_t ticket);
    void                  withdraw(uint64_t ticket);
    void                  close_session(uint64_t session);
    uint32_t              session_peak(uint64_t session, bool reset); // cells used at most since the last reset

    int32_t  sequence(uint64_t session);
    int32_t  fork(uint64_t session, int32_t sequence);
    void     truncate(uint64_t session, int32_t sequence, uint32_t n_tokens);
    void     shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end); // removes [start, end)
    void     drop(uint64_t session, int32_t sequence);
    uint32_t length(uint64_t session, int32_t sequence);

    int32_t injection(uint64_t session, std::vector<float> vectors); // [n_layer][n_embd]
    void    drop_injection(uint64_t session, int32_t injection);

    std::shared_ptr<Job> submit(uint64_t session, std::vector<Task> tasks);
    void                 cancel(const std::shared_ptr<Job> & job); // ends it at once, in prefill too; outputs stay

private:
    template <class F> auto call(F && f) -> decltype(f());       // runs f in the worker and waits for it
    bool                    post(std::function<void()> command); // false when the engine is closed

    void        work();
    void        step();
    bool        decode(Batch & batch);
    EngineStats count() const;

    const int      home_;
    Interrupt      interrupt_;
    Model          model_;
    CacheAllocator cache_;
    Scheduler      scheduler_;

    std::mutex                        mutex_; // guards the members up to stepping_
    std::condition_variable           wake_;
    std::deque<std::function<void()>> commands_;
    std::atomic<bool>                 closed_{ false };
    EngineStats                       shown_; // before the step under way
    bool                              stepping_ = false;
    std::thread                       worker_;
    std::once_flag                    close_once_;

    // worker only
    bool        interrupted_ = false; // the last decode
    EngineStats stats_;
};

} // namespace tgr
