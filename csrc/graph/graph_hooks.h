// The calls that csrc/patches places in llama.cpp's own files; those files and csrc include it.
#pragma once

#include "graph/graph.h"

#include "ggml-backend.h"

#include <cstdint>
#include <utility>
#include <vector>

struct llama_adapter_cvec;
struct llama_ubatch;
struct llm_graph_context;
class llm_graph_result;

namespace tgr {

// llm_graph_context::build_cvec: the residual stream after layer il, with this batch's injections added.
ggml_tensor * inject(const llm_graph_context & graph, ggml_tensor * cur, int il);

// llm_graph_context::build_attn_mha: per-session attention; nullptr where llama.cpp's own, over the whole cache, is to
// be used.
ggml_tensor * attend(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                     ggml_tensor * kq_b, ggml_tensor * kq_mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                     float kq_scale, int il);

// llm_graph_context::build_lora_mm and build_lora_mm_id: GGML_ASSERT where a file lacks weights that llama.cpp loads as
// optional and multiplies with all the same. A graph is built when the model is loaded, under AssertGuard.
void require_weights(const ggml_tensor * weights);

// llm_graph_context::build_lora_mm: the product of weights [n, rows] with tokens [n, n_tokens]; nullptr where ggml's
// own is to be used.
ggml_tensor * product(const llm_graph_context & graph, ggml_tensor * weights, ggml_tensor * tokens);

// llama_kv_cache::find_slot: the cells chosen for a micro-batch.
std::vector<uint32_t> cells_of(const std::vector<uint32_t> & cells, const llama_ubatch & ubatch);

// llama_context::graph_max_nodes: nodes that per-session attention, and products, add to a graph at most.
uint32_t session_attention_nodes(uint32_t n_layer);
uint32_t product_nodes(uint32_t n_layer);

// select_weight_buft: whether weights for an operation must not lie in a buffer of this type, though it supports them.
// Of AMX: gcc before 14 drops most of the tile configuration of ggml's kernels as dead stores, and their first product
// then ends the process. Of weights that ggml would repack: where `product` can have them as they are in the file.
bool is_refused(ggml_backend_buffer_type_t type, const ggml_tensor & weights, ggml_op op,
                const std::vector<std::pair<ggml_backend_dev_t, ggml_backend_buffer_type_t>> & all);

// Wherever a buffer for keys and values, or recurrent states was made, before anything is written into it:
// asks the system for huge pages, where the buffer is in RAM.
void use_huge_pages(ggml_backend_buffer_t buffer);

// llama_context::decode: before the first micro-batch, after each, and after the last.
void before_decode(llama_adapter_cvec & cvec, uint32_t n_tokens, uint32_t n_outputs);
void after_ubatch(llama_adapter_cvec & cvec, const llm_graph_result & res, ggml_backend_sched_t sched,
                  const llama_ubatch & ubatch, uint32_t n_outputs);
void after_decode(llama_adapter_cvec & cvec, const std::vector<int32_t> & out_ids);

} // namespace tgr
