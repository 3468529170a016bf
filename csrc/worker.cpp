// The worker thread: commands, admission, and one step after another: schedule, decode, sample, book.

#include "engine.h"

#include <chrono>

namespace tgr {

static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A command that somebody waits for reports its error itself. The others free something; where that fails for lack of
// memory, the end of the session frees it.
static void run(const std::function<void()> & command) {
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
            run(command);
        }
        bool ready = false;
        try {
            scheduler_.settle_cancelled();
            scheduler_.admit();
            ready = scheduler_.ready();
            if (ready) {
                {
                    std::lock_guard show(mutex_);
                    shown_    = count();
                    stepping_ = true;
                }
                step();
            }
        } catch (...) { // no memory, or a throw from llama.cpp: the running jobs end with it, the engine goes on
            scheduler_.end_all(std::current_exception());
        }
        lock.lock();
        stepping_ = false;
        if (!ready) {
            wake_.wait(lock, [&] { return closed_ || !commands_.empty(); });
        }
    }
    auto commands = std::move(commands_);
    lock.unlock();
    // who waits for a command gets its result; jobs and requests end
    for (auto & command : commands) {
        run(command);
    }
    const auto closed = std::make_exception_ptr(CancelledError("the engine was closed"));
    scheduler_.end_all(closed);
    scheduler_.refuse_all(closed);
}

void Engine::step() {
    Batch & batch = scheduler_.schedule();
    if (!decode(batch)) {
        return;
    }
    const double start = seconds_now();
    model_.sample(batch, closed_);
    scheduler_.book_rows();
    stats_.sample_seconds += seconds_now() - start;
    scheduler_.finish_done();
}

// False when the batch has no results: it was interrupted for a cancelled job, or it failed and so did its jobs.
bool Engine::decode(Batch & batch) {
    const double start = seconds_now();
    if (cache_.shift_pending()) {
        if (const std::string error = cache_.apply_shift(); !error.empty()) {
            scheduler_.close_all(std::make_exception_ptr(Error(error)));
            return false;
        }
    }
    interrupt_.arm(scheduler_.jobs(), !interrupted_);
    int32_t status = 0;
    try {
        scheduler_.take_cells();
        status = model_.decode(batch);
    } catch (...) {
        scheduler_.undo();
        throw;
    }
    stats_.decode_seconds += seconds_now() - start;

    interrupted_ = status == 2;
    if (status != 0) {
        scheduler_.undo();
        if (!interrupted_) { // an interrupted batch is decoded again, without the cancelled jobs
            scheduler_.fail(status);
        }
        return false;
    }
    ++stats_.n_decodes;
    stats_.n_positions += batch.size();
    scheduler_.book_decode();
    stats_.cells_peak = std::max(stats_.cells_peak, cache_.used());
    return true;
}

EngineStats Engine::count() const {
    EngineStats stats = stats_;
    stats.n_ctx       = model_.n_ctx();
    stats.n_seq_max   = model_.params().n_seq_max;
    stats.cells_used  = cache_.used();
    stats.n_sessions  = uint32_t(cache_.reservations().size());
    stats.n_waiting   = uint32_t(scheduler_.n_waiting());
    stats.n_jobs      = uint32_t(scheduler_.n_jobs());
    for (const auto & [session, reservation] : cache_.reservations()) {
        stats.cells_reserved += uint32_t(reservation.cells.size());
        stats.n_sequences += uint32_t(reservation.sequences.size());
    }
    return stats;
}

} // namespace tgr
