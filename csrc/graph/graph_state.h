// State of a context that our operations in the compute graph read, and their results: injections, the cells of a
// batch, states and norms. Private to graph.cpp, session_attention.cpp and products.cpp.
#pragma once

#include "graph/graph_hooks.h"
#include "graph/interleaved_weights.h"

#include "ggml-cpp.h"
#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-kv-cache.h"

#include <atomic>
#include <vector>

namespace tgr {

struct graph_state_t {
    int32_t n_layer = 0;
    int32_t n_embd  = 0;

    InterleavedWeights * weights = nullptr; // of the model; null = they stay as they are in the file

    std::vector<ggml_context_ptr>        ctxs;
    std::vector<ggml_backend_buffer_ptr> bufs;
    std::vector<ggml_tensor *>           table;   // [n_layer] of [n_embd, n_rows]
    std::vector<bool>                    reached; // [n_layer]

    // tokens of the batch, see graph_place
    std::vector<llama_kv_cache *>    kvs;     // caches of equal size, placed alike; empty = a cache of another kind
    std::vector<int32_t>             row_of;  // [n_tokens] or empty = 0
    std::vector<int32_t>             view_of; // [n_tokens]
    std::vector<std::vector<extent>> views;
    std::vector<uint64_t>            view_sizes; // cells

    bool                  on_gpu = false; // some layer is on a GPU
    std::atomic<uint64_t> n_built{ 0 };   // graphs; read by other threads
    std::atomic<uint64_t> n_whole{ 0 };   // graphs whose attention looks at the whole cache
    std::atomic<uint32_t> n_splits{ 0 };  // parts of the last graph; read by other threads

    bool scanned   = false; // a graph was looked through
    bool same_bits = false; // all of its operations compute each row by itself, in one order

    bool reserving      = false; // buffers, for graphs with all of our nodes
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

    int32_t row(const llama_ubatch & ubatch, uint32_t i) const {
        const bool known = !row_of.empty() && ubatch.data && i < ubatch.data->batch_idxs.size();
        return known ? row_of[ubatch.data->batch_idxs[i]] : 0;
    }

    bool any_row(const llama_ubatch & ubatch) const {
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            if (row(ubatch, i) != 0) {
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
