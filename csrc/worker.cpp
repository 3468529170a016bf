// The worker thread: commands, admission, and one step after another: schedule, decode, sample, book.

#include "engine.h"

#include <algorithm>
#include <chrono>

namespace tgr {

// Time for the interleaving of weights: while nothing runs, between two looks at commands; and after a step, as a share
// of its time and at most.
static constexpr double idle_seconds = 0.002, share_of_steps = 1.0 / 16, most_seconds = 0.05;

namespace {

// Gives the lock up while this lives; `stepping` says so to others.
class Unlocked {
public:
    Unlocked(std::unique_lock<std::mutex> & lock, bool & stepping) : lock_(lock), stepping_(stepping) {
        stepping_ = true;
        lock_.unlock();
    }
    ~Unlocked() {
        lock_.lock();
        stepping_ = false;
    }
    Unlocked(const Unlocked &) = delete;

private:
    std::unique_lock<std::mutex> & lock_;
    bool &                         stepping_;
};

} // namespace

static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Engine::work() {
    Lock lock(mutex_);
    while (!closed_) {
        {
            const std::lock_guard commands(command_mutex_);
            changed_ = false;
        }
        run_commands();
        try {
            scheduler_.settle_cancelled();
            scheduler_.admit();
            scheduler_.share();
            scheduler_.provide_cells();
            if (scheduler_.ready()) {
                step(lock);
                change();
            }
        } catch (...) { // no memory, or a throw from llama.cpp: the running jobs end with it, the engine goes on
            scheduler_.end_all(std::current_exception());
        }
        stepped_.notify_all();
        const auto is_awaited = [&] { return closed_ || changed_ || !commands_.empty(); };
        const auto is_idle    = [&] {
            const std::lock_guard commands(command_mutex_);
            return !is_awaited();
        };
        while (is_idle() && interleave(idle_seconds, lock)) {
        }
        lock.unlock();
        {
            Lock commands(command_mutex_);
            wake_.wait(commands, is_awaited);
        }
        lock.lock();
    }
    // who waits for a command gets its result; jobs and requests end
    run_commands();
    const auto closed = std::make_exception_ptr(CancelledError("the engine was closed"));
    scheduler_.end_all(closed);
    scheduler_.refuse_all(closed);
    stepped_.notify_all();
}

void Engine::step(Lock & lock) {
    Batch & batch = scheduler_.schedule();
    if (!decode(batch, lock)) {
        return;
    }
    const double start = seconds_now();
    try {
        {
            const Unlocked unlocked(lock, stepping_);
            model_.sample(batch, closed_);
        }
        scheduler_.book_rows();
    } catch (...) {
        scheduler_.drop_drafts();
        throw;
    }
    stats_.sample_seconds += seconds_now() - start;
    scheduler_.finish_done();
    interleave(std::min(share_of_steps * decoded_seconds_, most_seconds), lock);
}

bool Engine::interleave(double seconds, Lock & lock) {
    if (!model_.has_to_interleave()) {
        return false;
    }
    const Unlocked unlocked(lock, stepping_);
    return model_.interleave(seconds);
}

// False when the batch has no results: it was interrupted for a cancelled job, or it failed and so did its jobs.
bool Engine::decode(Batch & batch, Lock & lock) {
    cache_.apply();
    if (const std::string fault = cache_.take_fault(); !fault.empty()) {
        cache_.prefixes().clear();
        scheduler_.close_all(std::make_exception_ptr(Error(fault + "; all sessions are closed, open new ones")));
        return false;
    }
    // a state that cannot roll back must not be left halfway
    interrupt_.arm(scheduler_.jobs(), batch.jobs, !interrupted_ && cache_.rolls_back());
    const double start  = seconds_now();
    int32_t      status = 0;
    try {
        const Unlocked unlocked(lock, stepping_);
        status = model_.decode(batch);
    } catch (...) {
        scheduler_.undo();
        throw;
    }
    const double seconds = seconds_now() - start;
    stats_.decode_seconds += seconds;

    decoded_seconds_ = seconds;
    interrupted_     = status == 2;
    if (status != 0) {
        scheduler_.undo();
        if (!interrupted_) { // an interrupted batch is decoded again, without the cancelled jobs
            scheduler_.fail(status);
        }
        return false;
    }
    ++stats_.n_decodes;
    stats_.n_positions += batch.size();
    scheduler_.book_decode(seconds);
    stats_.cells_peak = std::max(stats_.cells_peak, cache_.pool().n_used());
    return true;
}

EngineStats Engine::count() {
    EngineStats stats = stats_;
    model_.count_graphs(stats);
    scheduler_.count_drafts(stats);
    scheduler_.count_preemptions(stats);
    stats.n_ctx             = model_.n_ctx();
    stats.n_seq_max         = model_.params().n_seq_max;
    stats.n_threads         = model_.n_threads();
    stats.cells_used        = cache_.pool().n_used();
    stats.n_prefixes        = uint32_t(cache_.prefixes().all().size());
    stats.cells_remembered  = cache_.pool().n_kept();
    stats.n_sessions        = uint32_t(cache_.reservations().size());
    stats.n_waiting         = uint32_t(scheduler_.n_waiting());
    stats.n_jobs            = uint32_t(scheduler_.jobs().size());
    stats.interleaved_bytes = model_.interleaved_bytes();
    for (const auto & [session, reservation] : cache_.reservations()) {
        stats.cells_reserved += uint32_t(reservation.cells.size());
        stats.n_sequences += uint32_t(reservation.sequences.size());
    }
    return stats;
}

} // namespace tgr
