// A job: tasks that were submitted together, and their outputs.
//
// In: tasks, whose sequences belong to one session. Out: new tokens while it runs, also in parts with all that belongs
// to them, and outputs when it is done. A job does not know the model or the cache; the scheduler runs it, and any
// thread may wait for it.
#pragma once

#include "job/drafts.h"
#include "job/records.h"
#include "sample/sampling.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tgr {

class Job;

// A task while its job runs. Worker only.
struct RunningTask {
    Job *                    job    = nullptr;
    const Task *             task   = nullptr;
    Output *                 output = nullptr;
    std::unique_ptr<Sampler> sampler;
    size_t                   n_again = 0; // tokens of its sequence that lost their cells: they are read first
    size_t                   n_fed   = 0;
    llama_token              next    = LLAMA_TOKEN_NULL; // sampled, not decoded yet
    std::string              tail;                       // newest text, for stop texts
    size_t                   tail_most = 0;              // bytes of it that the longest one may need
    bool                     ended     = false;          // the text ended with a token

    std::vector<uint32_t> cells; // planned for its tokens; those from n_placed on are not used yet
    size_t                n_placed = 0;
    std::set<size_t>      marks;         // places in the feed at which the text so far is remembered
    Prompt                prompt;        // prompt of a task that reuses
    bool                  waits = false; // another task reads the same tokens first
    Followed              guesses;       // guesses at the tokens after `next`

    // values of this step
    size_t first_in_batch = 0;
    size_t n_in_batch     = 0;
    size_t n_drafted      = 0; // guesses among them that are not accepted yet

    bool feeds() const { return n_again > 0 || next == LLAMA_TOKEN_NULL; }
    bool done() const { return ended || (task->n_generate == 0 && n_fed == task->feed.size()); }
};

class Job : public std::enable_shared_from_this<Job> {
public:
    explicit Job(std::vector<Task> tasks);

    // Waits for the end, at most `seconds`. True when the job is done.
    bool wait(double seconds);

    // Waits until there are `least` new tokens or the job is done, at most `seconds`; then returns the tokens of each
    // task that were generated since the last call, and whether the job is done.
    struct News {
        std::vector<std::vector<llama_token>> tokens;
        bool                                  done;
    };
    News take(double seconds, size_t least);

    // The next n generated tokens of a task with parts, among those that take() has returned. The last ones say why it
    // ended.
    Output take_part(size_t task, size_t n);

    // The outputs of a job that is done, one for each task. Throws the error that ended it, if there is one.
    const std::vector<Output> & outputs();

    // --- for the engine and its scheduler ---

    // Makes what the tasks need to run: samplers above all, which takes long for a long grammar. Throws
    // ArgumentError. Call it in the thread that submits the job.
    void prepare(const TokenTexts & texts, const ModelInfo & info);

    // take() and take_part() return what the outputs hold now; wakes their callers.
    void notify();

    // Ends it, with an error or none.
    void end(std::exception_ptr error);

    const std::vector<Task> tasks;
    std::atomic<bool>       cancelled{ false };
    bool                    in_batch = false; // guarded by Interrupt

    // worker only
    std::vector<std::unique_ptr<RunningTask>> running;
    uint64_t                                  session = 0;

private:
    void publish();

    // Parts of a task that were published and returned.
    struct Parts {
        Output  left;                         // published tokens that take_part() has not returned
        int32_t n_decoded = 0, n_refused = 0; // positions of the parts that it has returned
    };

    std::vector<Output> outputs_;
    std::vector<size_t> n_published_; // tokens of each output; worker only

    std::mutex                            mutex_;   // guards what follows
    std::condition_variable               changed_; // signals new tokens, once a step, or the end
    std::condition_variable               ended_;
    std::vector<std::vector<llama_token>> new_tokens_;
    size_t                                n_new_ = 0;
    std::vector<Parts>                    parts_;
    bool                                  done_ = false;
    std::exception_ptr                    error_;
};

// Throws ArgumentError for a token outside of the vocabulary; `where` names what holds it.
void check_tokens(const char * where, const std::vector<llama_token> & tokens, int32_t n_vocab);

} // namespace tgr
