// The tokens of one decode.
#pragma once

#include "graph/graph.h"
#include "job/job.h"
#include "sample/sampling.h"

#include "llama.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace tgr {

// A token of the batch whose logits or states are read.
struct Row {
    RunningTask * task;
    int32_t       batch_index;
    int32_t       feed_index;    // index of the fed token, -1 for a generated one
    bool          sample;        // the next token is sampled from here; of a draft, once the tokens before are accepted
    bool          draft = false; // a token of the task's draft

    const float *                              logits = nullptr; // valid until the next decode
    Distribution                               stats{};
    Draw                                       draw{};
    std::vector<std::pair<llama_token, float>> top{};
    std::exception_ptr                         error{};
};

struct Batch {
    // values of every token
    std::vector<llama_token>  tokens;
    std::vector<llama_pos>    positions;
    std::vector<llama_seq_id> sequences;
    std::vector<int8_t>       output;     // whether its logits are computed
    std::vector<uint32_t>     cells;      // cell of the cache that it goes to
    std::vector<int32_t>      injections; // row of the table of injections, 0 = none
    std::vector<int32_t>      view_of;    // index in views

    std::vector<std::vector<extent>>  views; // the cells of each sequence, with those of the batch
    std::vector<std::shared_ptr<Job>> jobs;  // jobs that the rows belong to
    std::vector<Row>                  rows;
    bool                              states = false; // read the states of output tokens
    bool                              norms  = false; // read the residual norms of all tokens

    size_t size() const { return tokens.size(); }

    // Calls visit(task) for the tasks that have tokens in it.
    template <class F> void each_task(F && visit) const {
        for (const auto & job : jobs) {
            for (const auto & task : job->running) {
                if (task->n_in_batch > 0) {
                    visit(*task);
                }
            }
        }
    }
};

} // namespace tgr
