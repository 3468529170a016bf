// The tokens of one decode.
#pragma once

#include "graph.h"
#include "job.h"
#include "sampling.h"

#include "llama.h"

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

namespace tgr {

// A token of the batch whose output somebody reads.
struct Row {
    Job *         job;
    RunningTask * task;
    int32_t       batch_index;
    int32_t       feed_index; // which fed token this is, -1 for a generated one
    bool          sample;     // the next token is sampled from here

    const float *                              logits = nullptr; // valid until the next decode
    Distribution                               stats{};
    Draw                                       draw{};
    std::vector<std::pair<llama_token, float>> top{};
    std::exception_ptr                         error{};
};

struct Batch {
    // of every token
    std::vector<llama_token>  tokens;
    std::vector<llama_pos>    positions;
    std::vector<llama_seq_id> sequences;
    std::vector<int8_t>       output; // whether its logits are computed
    std::vector<uint32_t>     cells;  // of the cache, that it goes to
    std::vector<int32_t>      group;  // in groups

    std::vector<graph_group>                      groups;     // the sessions of the batch
    std::vector<std::pair<llama_seq_id, int32_t>> injections; // of the sequences in the batch
    std::vector<Row>                              rows;
    bool                                          states = false; // read the states of output tokens
    bool                                          norms  = false; // read the residual norms of all tokens

    size_t size() const { return tokens.size(); }

    void clear() {
        tokens.clear();
        positions.clear();
        sequences.clear();
        output.clear();
        cells.clear();
        group.clear();
        groups.clear();
        injections.clear();
        rows.clear();
        states = norms = false;
    }
};

} // namespace tgr
