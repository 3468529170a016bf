// What the worker thread keeps. Included by the engine's own source files only.
#pragma once

#include "engine.h"
#include "graph.h"

#include <algorithm>
#include <set>

namespace tgr {

// One sequence and the cells of its session that hold its tokens. A fork shares cells; their reference counts say how
// many a session really uses.
struct Engine::Sequence {
    std::vector<uint32_t> cells; // token i stands at position i
    bool                  busy = false;
};

struct Engine::SessionState {
    uint64_t              id     = 0;
    uint64_t              serial = 0; // place in the order of batches
    std::shared_ptr<Crew> crew;
    uint32_t              rank = 0;
    std::vector<uint32_t> room;       // the cells of the cache that were granted, ascending
    uint32_t              n_seqs = 0; // granted
    uint32_t              n_jobs = 0;

    std::map<int32_t, Sequence> sequences;
    std::set<int32_t>           directions;

    // cells, as places in the room; the lowest free one is taken first, so that those in use lie close together
    std::vector<uint32_t> refs; // up to the highest cell in use
    std::set<uint32_t>    free_cells;
    uint32_t              used    = 0;
    uint32_t              peak    = 0;
    size_t                pledged = 0; // cells that running jobs have yet to take

    uint32_t take_cell() {
        const uint32_t cell = free_cells.empty() ? uint32_t(refs.size()) : *free_cells.begin();
        if (free_cells.empty()) {
            refs.push_back(0);
        } else {
            free_cells.erase(free_cells.begin());
        }
        refs[cell] = 1;
        peak       = std::max(peak, ++used);
        return cell;
    }

    void drop_cell(uint32_t cell) {
        if (--refs[cell] > 0) {
            return;
        }
        --used;
        free_cells.insert(cell);
        while (!refs.empty() && refs.back() == 0) {
            refs.pop_back();
            free_cells.erase(uint32_t(refs.size()));
        }
    }

    graph_group group() const {
        const uint32_t span = room.back() + 1 - room.front();
        return { room.front(), room[refs.size() - 1] + 1, span == room.size() ? uint32_t(window_stride(span)) : span };
    }
};

struct Engine::Request {
    uint64_t               ticket;
    uint64_t               serial;
    uint32_t               n_cells, n_seqs;
    std::shared_ptr<Crew>  crew;
    uint32_t               rank;
    std::promise<uint64_t> granted;
};

// A task while its job runs.
struct Job::Running {
    const Task *             task   = nullptr;
    Output *                 output = nullptr;
    size_t                   index  = 0; // in the job
    std::unique_ptr<Sampler> sampler;
    size_t                   n_fed = 0;
    llama_token              next  = LLAMA_TOKEN_NULL; // sampled, not decoded yet
    std::string              tail;                     // newest text, for stop strings
    size_t                   tail_most = 0;            // bytes of it that the longest one may need
    bool                     done      = false;

    // this step
    size_t                first_in_batch = 0;
    size_t                n_in_batch     = 0;
    std::vector<uint32_t> new_cells; // of the session's room
};

// An output row of the current batch.
struct Engine::Row {
    Job *          job;
    Job::Running * task;
    int32_t        batch_index;
    int32_t        feed_index; // which fed token this is, -1 for a generated one
    bool           sample;     // the next token comes from here

    Distribution                               stats{};
    Draw                                       draw{};
    std::vector<std::pair<llama_token, float>> top{};
    std::exception_ptr                         error{};
};

// What llama.cpp asks during a decode: whether to give it up.
inline bool interrupt_requested(void * flag) {
    return static_cast<std::atomic<bool> *>(flag)->load();
}

template <class F> auto Engine::call(F && f) -> decltype(f()) {
    check_here();
    std::packaged_task<decltype(f())()> task(std::forward<F>(f));
    auto                                result = task.get_future();
    if (!post([&task] { task(); })) {
        throw CancelledError("the engine is closed");
    }
    return result.get();
}

} // namespace tgr
