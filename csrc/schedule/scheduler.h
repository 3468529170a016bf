// The scheduler: who gets a reservation, and which tokens are decoded next.
//
// In: requests for sessions, jobs, the rows of a decoded batch. Out: sessions, batches, finished jobs. Sessions are
// admitted in the order of asking (those of a lockstep group in the order in which the groups were made), jobs are
// decoded in the order of their sessions. The scheduler does not know threads or how a batch is computed. It is
// guarded by the engine's lock.
#pragma once

#include "cache/cache.h"
#include "job/drafts.h"
#include "job/interrupt.h"
#include "job/job.h"
#include "job/lockstep.h"
#include "model/batch.h"
#include "model/model.h"

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <vector>

namespace tgr {

class Scheduler {
public:
    Scheduler(Model & model, CacheAllocator & cache, Interrupt & interrupt);

    // --- sessions ---

    std::shared_ptr<LockstepGroup> group(uint32_t n);

    // Asks for a session; the future gets its id, which is `ticket`, when it is admitted. Throws CapacityError if it
    // never can be. A `preemptible` one has one sequence and takes its n_cells as its text grows; see preemption.cpp.
    // If reading a sequence again does not give the same bits, it is not preemptible.
    std::future<uint64_t> request(uint32_t n_cells, uint32_t n_seqs, bool preemptible, Prompt prompt,
                                  std::shared_ptr<LockstepGroup> group, uint32_t index, uint64_t & ticket);

    // The sessions of which at least one must close before the request is admitted; none where it waits only for other
    // participants of its group.
    std::vector<uint64_t> in_the_way(uint64_t ticket);

    bool give_up(uint64_t ticket);  // ends a wait with CancelledError; false = none waits
    void withdraw(uint64_t ticket); // takes back a request, or the session that was admitted meanwhile
    void close_session(uint64_t session);
    bool is_busy(uint64_t session) const; // some job of it runs
    void drop_sequence(uint64_t session, int32_t sequence);
    void drop_injection(uint64_t session, int32_t injection);

    // Admits waiting requests until one does not fit, so that none starves. A request of an incomplete group does not
    // count yet.
    void admit();

    size_t n_waiting() const { return waiting_.size(); }

    // --- jobs ---

    void submit(uint64_t session, const std::shared_ptr<Job> & job); // the job must have been prepared

    // Whether some job can be decoded now.
    bool ready() const;

    void settle_cancelled();                   // ends cancelled jobs; their outputs hold what was generated
    void end_all(std::exception_ptr error);    // ends all jobs
    void close_all(std::exception_ptr error);  // ends all jobs and sessions
    void refuse_all(std::exception_ptr error); // refuses all requests

    // --- a step ---

    // Lets tasks that wait until another task has read their prompt reuse the tokens read so far.
    void share();

    // Gives the texts of preemptible sessions cells for the next step; if none are free, takes them from others.
    void provide_cells();

    // The next batch: the next token of every sequence that generates, then as much waiting feed as fits. Both take
    // turns where there is not space for all. Without feed, also guesses at the tokens after the next ones.
    Batch & schedule();

    const std::vector<std::shared_ptr<Job>> & jobs() const { return jobs_; }

    void undo();                      // takes back a decode that failed
    void fail(int32_t status);        // ends the jobs in the batch
    void book_decode(double seconds); // books the decoded tokens
    void book_rows();                 // books what was read and sampled from the rows
    void drop_drafts();               // removes rejected drafts from the cache
    void count_drafts(EngineStats & stats) const;
    void count_preemptions(EngineStats & stats) const;
    void finish_done(); // ends jobs that are done

private:
    // Place of a session among the others, now or once it is admitted.
    struct Place {
        uint64_t                       serial; // rank in the order of batches
        std::shared_ptr<LockstepGroup> group;
        uint32_t                       index; // place in the group

        // Notes in the group, if there is one, what its participant does now.
        void mark(LockstepGroup::Participant now) const {
            if (group) {
                group->participants[index] = now;
            }
        }
    };

    struct Request : Place {
        uint64_t               ticket;
        uint32_t               n_cells, n_seqs;
        bool                   preemptible;
        Prompt                 prompt;
        std::promise<uint64_t> admitted;
    };

    struct Session : Place {
        uint32_t n_cells     = 0; // at most
        bool     preemptible = false;
        bool     preempted   = false; // it has no cells
        Hits     hits{};              // hit rates of the drafts of its texts, without a group
    };

    bool fits_together(size_t first);
    bool reserve(const Request & request);

    bool leaves_room(const Request & request) const;
    bool resume_preempted();
    void preempt(uint64_t session);
    bool preempt_for(uint64_t session);
    void provide_cells(const std::shared_ptr<Job> & job);
    void plan_more(RunningTask & task, size_t n);
    void refuse(const std::shared_ptr<Job> & job, size_t n_cells);

    bool held_back(const Job & job) const;
    void cancel_jobs(uint64_t session, const std::function<bool(const Task &)> & which);
    void check_task(uint64_t session, const Task & task);
    void finish(const std::shared_ptr<Job> & job, std::exception_ptr error);

    std::deque<std::unique_ptr<Request>>::iterator waiting(uint64_t ticket);

    using Runnable = std::vector<RunningTask *>; // tasks that can make progress in this step

    Runnable      runnable(bool feeding) const;
    void          choose_exclusive_group();
    bool          read_block();
    Prompt        prompt_of(const RunningTask & task);
    bool          waits_for_another(const RunningTask & task, const Runnable & readers);
    void          start_reading(RunningTask & task);
    void          book_reused(RunningTask & task, uint32_t n);
    static size_t n_to_read(const RunningTask & task);
    size_t        most_prompt_tokens(const Runnable & writers, const Runnable & readers);
    uint64_t      together(const Job & job) const;
    Sequence & sequence_of(const RunningTask & task) { return cache_.sequence(task.job->session, task.task->sequence); }
    void       add_writers(const Runnable & writers, size_t most);
    void       plan_drafts(const Runnable & writers);
    Hits &     hits_of(const Job & job);
    Draft      look_up(const RunningTask & task, size_t n_read);
    std::vector<uint64_t> together_with(uint64_t session) const;
    void                  add_feed(RunningTask & task, size_t most);
    void                  add(RunningTask & task, llama_token token, bool output);
    void                  place();
    void                  book_position(RunningTask & task, size_t at);
    void                  book_guess(const Row & row);
    void                  read_norms(RunningTask & task);
    void                  book_norms(RunningTask & task, size_t i, const float * norms);
    void                  book_row(Row & row);
    void                  book_token(Row & row);

    Model &          model_;
    CacheAllocator & cache_;
    Interrupt &      interrupt_;
    const StepTimes  times_;

    uint64_t                             next_id_ = 1;
    std::map<uint64_t, Session>          sessions_;
    std::deque<std::unique_ptr<Request>> waiting_;
    std::vector<std::shared_ptr<Job>>    jobs_;
    Batch                                batch_;
    size_t   next_writer_ = 0, next_reader_ = 0; // round-robin start when the batch is too small for all
    uint64_t exclusive_group_      = 0; // reproducible mode: only this session or group decodes in this step; 0 = all
    uint64_t last_exclusive_group_ = 0; // the exclusive group of the step before
    size_t   n_steps_              = 0;
    uint64_t n_drafted_ = 0, n_accepted_ = 0;
    uint64_t n_preemptions_ = 0, n_read_again_ = 0;
    double   prompt_tokens_;          // prompt tokens that a step decodes while texts are written
    double   prompt_seconds_ = 0.0;   // time of this step for them, 0 = no limit
    bool     prompt_limited_ = false; // the batch holds as many as the limit allows
};

} // namespace tgr
