// Additions of tgr-local to llama.cpp's compute graph: an injection into the residual stream after every layer, chosen
// per token, the reading of final-norm states and of per-layer residual norms (graph.cpp), per-session attention, which
// looks at a sequence's own cells only (session_attention.cpp), and products of quantized weights (products.cpp).
//
// These files are compiled into our copy of libllama. The engine calls the functions below; llama.cpp's own files call
// those of graph_hooks.h, from the lines that csrc/patches adds. Functions that take a context must be called from the
// thread that decodes, except graph_n_built, graph_n_whole and graph_n_splits.
#pragma once

#include "base/cells.h"
#include "graph/interleaved_weights.h"

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tgr {

// Allocates the table of injections, one [n_embd, n_rows] tensor per layer in the memory of that layer's device.
// Row 0 is zero and means "no injection". Then reserves llama.cpp's buffers for graphs with injections and norms.
// False, or a std::exception, when there is not enough memory. A model that has other rotation factors for long texts
// uses the factors for texts of up to n_text tokens; 0 = as many as the cache has cells, as in llama.cpp. `weights`, if
// not null, gets the multiplied weights, and outlives the context.
bool graph_init(llama_context * ctx, int32_t n_rows, uint32_t n_text, InterleavedWeights * weights);

// Reserves the buffers for the largest graphs again, after the adapters have changed. Throws when the memory is not
// there.
void graph_reserve(llama_context * ctx);

// Fills one row with vectors, [n_layer][n_embd], added after layers 0 … n_layer-1.
void graph_set_row(llama_context * ctx, int32_t row, const float * vectors);

// Copies the rows of `from` to `to`, a context of the same model with the same number of rows.
void graph_copy_rows(llama_context * from, llama_context * to);

// The final-norm state [n_embd] of an output token of the last decode, by its index in the batch; nullptr where
// there is none. Valid until the next decode, and only after llama_synchronize.
const float * graph_state(llama_context * ctx, int32_t batch_index);

// ‖h‖₂ of a token of the last decode after a layer and its injection; negative where it was not computed (in the last
// layer llama.cpp computes output tokens only). Valid as graph_state.
float graph_norm(llama_context * ctx, int32_t layer, int32_t batch_index);

// Sets for every token of the next decode its free cell, its row of the table of injections and its view; without rows,
// every token has row 0. A view holds the cells of the token's sequence, oldest first, with those that this batch adds:
// the cell of position p is the p-th. Attention looks at these only. In a cache of an unknown kind llama.cpp places the
// tokens itself. `states`, `norms`: it keeps the final-norm states of output tokens, and the residual norms of all.
void graph_place(llama_context * ctx, const std::vector<uint32_t> & cells, const std::vector<int32_t> & rows,
                 const std::vector<int32_t> & view_of, const std::vector<std::vector<extent>> & views, bool states,
                 bool norms);

// Calls llama_decode for a batch in which every token has one sequence below n_seqs. llama.cpp looks at every pair of
// the sequences that the batch may have, which for 256 of them takes as long as a fifth of a very small model's step.
int32_t graph_decode(llama_context * ctx, const llama_batch & batch, int32_t n_seqs);

// Graphs that were built so far (a step may use the last one again), and those among them whose attention looked at the
// whole cache instead.
uint64_t graph_n_built(llama_context * ctx);
uint64_t graph_n_whole(llama_context * ctx);

// The number of splits of the last computed graph. Each split runs on one device; tensors are copied between them.
uint32_t graph_n_splits(llama_context * ctx);

// Why tokens in the cache cannot move to other positions; nullptr when they can.
const char * graph_no_shift(llama_context * ctx);

// Turns the keys of moved tokens to their new positions, at once. False, and the cache is lost, when that
// failed; llama.cpp logs the reason. Must not be interrupted.
bool graph_apply_shift(llama_context * ctx);

// Layers whose output passed through the injection point in some graph so far: n_layer for a supported model.
int32_t graph_layers_reached(llama_context * ctx);

// The ggml device that holds a layer; n_layer = the output layer.
const char * layer_device(const llama_model * model, int32_t layer);

// The devices, other than the CPU, that hold layers and have no flash attention for a cache of these types.
std::vector<std::string> without_attention(const llama_model * model, ggml_type type_k, ggml_type type_v);

// Whether most weights are multiplied by our own kernels (products.cpp).
bool has_own_products(llama_context * ctx);

// Whether the logits of a token are the same bit for bit in every batch: all sums of the first computed graph are our
// own, or are over one row.
bool graph_has_same_bits(llama_context * ctx);

// Whether all layers, the output layer too, are in the memory that the CPU computes in.
bool on_cpu(const llama_model * model);

} // namespace tgr
