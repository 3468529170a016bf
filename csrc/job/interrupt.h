// Ends the decode under way when one of its jobs is cancelled.
//
// llama.cpp asks requested() during a decode. An interrupted decode is repeated without the cancelled jobs, and the
// repetition cannot be interrupted: clients that come and go do not stop the others.
#pragma once

#include "job/job.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace tgr {

class Interrupt {
public:
    // Callback for llama.cpp's abort; `self` is an Interrupt.
    static bool requested(void * self) { return static_cast<Interrupt *>(self)->requested_; }

    // Callback for models whose state cannot go back: only the engine's end interrupts a decode.
    static bool closed(void * self) { return static_cast<Interrupt *>(self)->closed_; }

    // Cancels a job. Any thread.
    void cancel(Job & job) {
        std::lock_guard lock(mutex_);
        job.cancelled = true;
        if (job.in_batch && allowed_) {
            requested_ = true;
        }
    }

    // Interrupts every decode from now on. Any thread.
    void close() {
        std::lock_guard lock(mutex_);
        closed_    = true;
        requested_ = true;
    }

    // Prepares for a decode for some of all jobs; `allowed` = their cancel may interrupt it.
    void arm(const std::vector<std::shared_ptr<Job>> & all, const std::vector<std::shared_ptr<Job>> & jobs,
             bool allowed) {
        std::lock_guard lock(mutex_);
        bool            cancelled = false;
        for (const auto & job : all) {
            job->in_batch = false;
        }
        for (const auto & job : jobs) {
            job->in_batch = true;
            cancelled |= job->cancelled;
        }
        allowed_   = allowed;
        requested_ = closed_ || (cancelled && allowed_);
    }

    // Notes that the job is over.
    void forget(Job & job) {
        std::lock_guard lock(mutex_);
        job.in_batch = false;
    }

private:
    std::mutex        mutex_;
    std::atomic<bool> requested_{ false };
    bool              allowed_ = true;
    std::atomic<bool> closed_{ false };
};

} // namespace tgr
