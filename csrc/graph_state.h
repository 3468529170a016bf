// The state of graph.cpp and session_attention.cpp beside llama.cpp's context. Included by these two only.
#pragma once

#include "graph_hooks.h"

#include "ggml-cpp.h"
#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-kv-cache.h"

#include <vector>

namespace tgr {

struct graph_state_t {
    int32_t n_layer = 0;
    int32_t n_embd  = 0;

    std::vector<ggml_context_ptr>        ctxs;
    std::vector<ggml_backend_buffer_ptr> bufs;
    std::vector<ggml_tensor *>           table;      // [n_layer] of [n_embd, n_rows]
    std::vector<int32_t>                 row_of_seq; // [LLAMA_MAX_SEQ]
    std::vector<bool>                    reached;    // [n_layer]

    // the cells of the batch's tokens, see graph_place
    llama_kv_cache *         kv = nullptr; // null = of another kind
    std::vector<int32_t>     group_of;     // [n_tokens]
    std::vector<graph_group> groups;
    bool                     on_gpu = false; // some layer is

    bool capture_states = false;
    bool capture_norms  = false;

    // results of the last decode
    size_t               n_rows_done   = 0;
    size_t               n_tokens_done = 0;
    std::vector<float>   states;        // [n_outputs][n_embd]
    std::vector<int32_t> row_of_token;  // [n_tokens], -1 = no output
    std::vector<float>   sq_norms;      // [n_layer][n_tokens], llama.cpp's token order
    std::vector<int32_t> slot_of_token; // [n_tokens] batch index -> place in sq_norms
    std::vector<int32_t> row_of_slot;   // [n_tokens] place in sq_norms -> output row, -1 = no output
    std::vector<float>   sq_norms_last; // [n_outputs] last layer, when it computes output tokens only

    int32_t row_of(const llama_ubatch & ubatch, uint32_t i) const {
        return ubatch.n_seq_id && ubatch.n_seq_id[i] > 0 ? row_of_seq[ubatch.seq_id[i][0]] : 0;
    }

    bool any_row(const llama_ubatch & ubatch) const {
        if (!ubatch.seq_id) {
            return false;
        }
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            if (row_of(ubatch, i) != 0) {
                return true;
            }
        }
        return false;
    }
};

// The input of that kind in a graph; nullptr where there is none.
template <class Input> Input * find_input(const llm_graph_result & res) {
    for (const auto & input : res.inputs) {
        if (auto * found = dynamic_cast<Input *>(input.get())) {
            return found;
        }
    }
    return nullptr;
}

} // namespace tgr
