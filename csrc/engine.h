// The engine: one model, one KV cache, and one worker thread that decodes all running work together (continuous
// batching). It knows nothing of Python.
//
//   Session    room in the cache: cells and sequences, granted as a whole, in the order of asking (crews: of making)
//   sequence   tokens in the cache; a fork shares the cells of what it was forked from
//   direction  a push for every layer, [n_layer][n_embd], that the tokens of a task get
//   Job        tasks that were submitted together: feed tokens to a sequence, then generate
//   Crew       sessions that advance in step, so that the same seeds always meet the same batches
//
// All state belongs to the worker thread. Other threads hand it commands and wait.
#pragma once

#include "sampling.h"

#include "llama-cpp.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tgr {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct ModelError : Error {
    using Error::Error;
};
struct CapacityError : Error {
    using Error::Error;
};
struct CancelledError : Error {
    using Error::Error;
};

struct EngineParams {
    std::string        path;
    uint32_t           n_ctx        = 0; // cells; 0 = grows to what sessions ask for
    uint32_t           n_batch      = 512;
    uint32_t           n_ubatch     = 512;
    uint32_t           n_seq_max    = 64;
    int32_t            n_threads    = 1;
    int32_t            n_gpu_layers = -1; // -1 = all
    int32_t            main_gpu     = 0;
    std::vector<float> tensor_split;
    int32_t            flash_attn = -1; // -1 = llama.cpp decides, 0 = off, 1 = on
    ggml_type          type_k     = GGML_TYPE_F16;
    ggml_type          type_v     = GGML_TYPE_F16;
    bool               use_mmap   = true;
    bool               use_mlock  = false;
};

struct ModelInfo {
    int32_t                  n_vocab, n_embd, n_layer, n_ctx_train;
    llama_token              bos, eos, fim_pad; // LLAMA_TOKEN_NULL where the vocabulary has none
    uint64_t                 size_bytes, n_params;
    std::string              description;
    std::string              chat_template; // empty = none
    std::vector<llama_token> eog;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::vector<std::string>                         devices; // of every layer, then of the output layer
};

struct EngineStats {
    uint64_t n_positions    = 0; // token positions that passed through the model
    uint64_t n_decodes      = 0; // calls of llama_decode
    double   decode_seconds = 0, sample_seconds = 0;
    uint32_t n_ctx = 0, n_seq_max = 0;
    uint32_t cells_used = 0, cells_peak = 0, cells_reserved = 0;
    uint32_t n_sequences = 0, n_sessions = 0, n_waiting = 0, n_jobs = 0;
};

// To be called in the child after a fork.
void forked();

enum class Keep { none, last, all };

// What one sequence does in a job.
struct Task {
    int32_t                  sequence = -1;
    std::vector<llama_token> feed;            // appended to the sequence first
    std::vector<llama_token> history;         // what stands before the feed, for penalties only
    std::vector<llama_token> grammar_history; // what the grammar has read before the first generated token
    std::string              tail;            // newest text of the reply so far, for stop texts that began there
    int32_t                  direction  = 0;  // 0 = none
    int32_t                  n_generate = 0;  // tokens to generate at most; the last one is not decoded
    SamplingParams           sampling;
    uint64_t                 seed = 0;
    std::vector<std::string> stop; // UTF-8 text that ends the generation
    bool                     ignore_eog    = false;
    bool                     states        = false; // keep the state that each generated token was sampled from
    Keep                     feed_states   = Keep::none;
    bool                     feed_logprobs = false;
    bool                     norms         = false; // sum residual norms over the fed tokens
    int32_t                  n_top         = 0;     // likeliest alternatives kept for each generated token
};

struct Output {
    std::vector<llama_token> tokens;           // generated, the end token included
    std::vector<float>       logprobs;         // of each, temperature 1
    std::vector<float>       sampled_logprobs; // of each, in the distribution that it was drawn from
    std::vector<float>       entropies;        // of each token's distribution, nats
    std::vector<float>       states;           // [n][n_embd]
    std::vector<float>       feed_states;      // [n_feed or 1][n_embd]
    std::vector<float>       feed_logprobs;    // [n_feed - 1], of feed[i] given what stands before it
    std::vector<double>      norm_sums;        // [n_layer] Σ‖h‖₂ over the fed tokens
    std::vector<double>      norm_counts;      // [n_layer] tokens in the sum
    std::vector<llama_token> top_ids;          // [n][n_top]
    std::vector<float>       top_logprobs;     // [n][n_top]
    int32_t                  n_decoded = 0;    // positions that this task decoded
    const char *             finish    = "";   // "length", "stop", "cancelled"; empty when nothing was to be generated
};

class Engine;

// Sessions that advance in step. A member is absent until it asks for its session, and gone after leave() or when its
// session closes. Worker only.
struct Crew {
    enum class Member { absent, waiting, open, gone };
    std::vector<Member>   members;
    std::vector<uint32_t> n_jobs; // of each member
    uint64_t              serial = 0;

    bool assembled() const;
    bool idle_member() const; // whether a member with a session has nothing to do
};

class Job {
public:
    explicit Job(std::vector<Task> tasks);
    ~Job();

    // Waits for the end, at most `seconds`. True when the job is done.
    bool wait(double seconds);

    // Waits until there are new tokens or the job is done, at most `seconds`; then returns, for each task, the tokens
    // generated since the last call.
    std::vector<std::vector<llama_token>> take(double seconds);

    // The outputs of a job that is done. Throws what stopped it otherwise.
    std::vector<Output> & outputs();

private:
    friend class Engine;
    struct Running;

    const std::vector<Task> tasks_;
    std::vector<Output>     outputs_;
    std::atomic<bool>       cancelled_{ false };
    bool                    in_batch_ = false; // written by the worker under the engine's mutex

    // worker only
    std::vector<std::unique_ptr<Running>> running_;
    uint64_t                              session_ = 0;
    size_t                                pledged_ = 0; // cells that it has yet to take
    uint64_t                              serial_  = 0;

    std::mutex                            mutex_;
    std::condition_variable               changed_; // there are new tokens, once a step, or it is done
    std::condition_variable               ended_;
    std::vector<std::vector<llama_token>> fresh_;
    bool                                  done_ = false;
    std::exception_ptr                    error_;
};

class Engine {
public:
    // Loads the model and starts the worker. Throws ModelError.
    explicit Engine(const EngineParams & params);
    ~Engine();

    // Ends all work with CancelledError and frees the model. May be called again. Nothing in a forked child.
    void close();

    // Whether this is the process that made the engine: a forked child has no worker, and must not destroy what it has
    // of it. check_here() throws there.
    bool here() const;
    void check_here() const;

    const ModelInfo & info() const { return info_; }

    // Now; or before the step under way, if that takes longer than a second.
    EngineStats stats();

    // Text to tokens and back; they touch the vocabulary only and may run in any thread. CancelledError after close,
    // which does not wait for them.
    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string              detokenize(const std::vector<llama_token> & tokens, bool special) const;

    // Throws std::invalid_argument for a grammar that does not parse.
    void check_grammar(const std::string & grammar) const;

    // Enlarges the cache, if it grows on demand and no session is open, so that so many sessions of n_cells fit.
    void reserve(uint32_t n_cells, uint32_t n_sessions);

    // A crew of n members: none of its jobs is decoded while a member that has a session has nothing to do.
    std::shared_ptr<Crew> crew(uint32_t n);
    void                  leave(const std::shared_ptr<Crew> & crew, uint32_t rank);

    // Asks for a session; the future holds its id once there is room. Throws CapacityError if there never will be.
    std::future<uint64_t> open(uint32_t n_cells, uint32_t n_seqs, std::shared_ptr<Crew> crew, uint32_t rank,
                               uint64_t & ticket);
    // The sessions that must close before the request is granted; none where it waits for its crew only.
    std::vector<uint64_t> in_the_way(uint64_t ticket);
    void                  give_up(uint64_t ticket); // withdraws a request, or closes what it was granted meanwhile
    void                  close_session(uint64_t session);
    uint32_t              session_peak(uint64_t session, bool reset); // cells used at most since the last reset

    int32_t  sequence(uint64_t session);
    int32_t  fork(uint64_t session, int32_t sequence);
    void     truncate(uint64_t session, int32_t sequence, uint32_t n_tokens);
    void     shift(uint64_t session, int32_t sequence, uint32_t start, uint32_t end); // removes [start, end)
    void     drop(uint64_t session, int32_t sequence);
    uint32_t length(uint64_t session, int32_t sequence);

    int32_t direction(uint64_t session, std::vector<float> pushes); // [n_layer][n_embd]
    void    drop_direction(uint64_t session, int32_t direction);

    std::shared_ptr<Job> submit(uint64_t session, std::vector<Task> tasks);
    void                 cancel(const std::shared_ptr<Job> & job); // ends it at once, in prefill too; outputs stay

private:
    struct Sequence;
    struct SessionState;
    struct Request;
    struct Row;

    template <class F> auto call(F && f) -> decltype(f());
    bool                    post(std::function<void()> command); // false when the engine is closed

    void                  work();
    bool                  ready() const;
    bool                  held_back(const Job & job) const;
    void                  admit();
    bool                  grant(Request & request);
    bool                  grow(uint32_t n_cells);
    std::vector<uint32_t> find_room(uint32_t n_cells) const;
    void                  make_context(uint32_t n_cells);
    void                  describe_model();
    void                  check_injection();

    void step();
    void settle_cancelled();
    void collect();
    void place();
    void give_back_cells();
    bool decode();
    bool apply_shift();
    void arm();
    void process_rows();
    void finish(const std::shared_ptr<Job> & job, std::exception_ptr error);
    void push_token(Job & job, Job::Running & task, const Row & row);

    std::shared_ptr<llama_model> model() const;
    EngineStats                  count() const;

    SessionState & session_of(uint64_t session);
    Sequence &     sequence_of(SessionState & session, int32_t sequence);
    void           end_session(uint64_t session);
    void           cancel_jobs(uint64_t session, const std::function<bool(const Task &)> & which);
    void           check_token(const char * where, llama_token token) const;
    void           check_task(SessionState & session, const Task & task);
    void           prepare(Job & job) const;
    int32_t        take_sequence(SessionState & session);
    void           release(SessionState & session, int32_t sequence);
    uint32_t       cells_used() const;

    const int                    home_;
    EngineParams                 params_;
    ModelInfo                    info_;
    mutable std::shared_mutex    model_mutex_; // guards model_, not what it points to
    std::shared_ptr<llama_model> model_;       // shared with whoever reads the vocabulary outside the worker
    llama_context_ptr            context_;
    const llama_vocab *          vocab_ = nullptr;

    std::mutex                        mutex_; // guards what stands here up to stepping_, and what sets interrupt_
    std::condition_variable           wake_;
    std::deque<std::function<void()>> commands_;
    std::atomic<bool>                 closed_{ false };
    bool                              interruptible_ = true;
    EngineStats                       shown_; // before the step under way
    bool                              stepping_ = false;
    std::atomic<bool>                 interrupt_{ false }; // ends the running decode early
    std::thread                       worker_;
    std::once_flag                    close_once_;

    // worker only
    uint32_t                                          n_ctx_   = 0;
    uint64_t                                          next_id_ = 1;
    std::map<uint64_t, std::unique_ptr<SessionState>> sessions_;
    std::deque<std::unique_ptr<Request>>              waiting_;
    std::vector<std::shared_ptr<Job>>                 jobs_;
    std::vector<bool>                                 seq_taken_, row_taken_;
    bool                                              shift_pending_ = false;
    bool                                              given_up_      = false; // the last decode
    EngineStats                                       stats_;

    // the batch of the current step
    std::vector<llama_token>    batch_tokens_;
    std::vector<llama_pos>      batch_pos_;
    std::vector<llama_seq_id>   batch_seq_;
    std::vector<llama_seq_id *> batch_seq_ptr_;
    std::vector<int32_t>        batch_n_seq_;
    std::vector<int8_t>         batch_output_;
    std::vector<uint32_t>       batch_cells_;
    std::vector<int32_t>        batch_group_;
    std::vector<Row>            rows_;
};

} // namespace tgr
