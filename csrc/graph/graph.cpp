#include "graph/graph_state.h"
#include "graph/memory.h"

#include "llama-adapter.h"
#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

namespace tgr {

// The graph input that says which row of the table each token takes. It is registered in every graph, also in one
// without injection, because it is what tells llama.cpp whether a graph may be used again.
class graph_input_rows : public llm_graph_input_i {
public:
    graph_input_rows(const graph_state_t * state, bool inject, bool norms) :
        state(state),
        inject(inject),
        norms(norms),
        norm_of_layer(state->n_layer, nullptr) {}

    void set_input(const llama_ubatch * ubatch) override {
        if (!rows && !rows_out) {
            return;
        }
        std::vector<int32_t> all(ubatch->n_tokens), out;
        for (uint32_t i = 0; i < ubatch->n_tokens; ++i) {
            all[i] = state->row(*ubatch, i);
            if (ubatch->output[i]) {
                out.push_back(all[i]);
            }
        }
        if (rows) {
            ggml_backend_tensor_set(rows, all.data(), 0, ggml_nbytes(rows));
        }
        if (rows_out) {
            out.resize(rows_out->ne[0], 0);
            ggml_backend_tensor_set(rows_out, out.data(), 0, ggml_nbytes(rows_out));
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        const graph_state_t * now = params.cvec ? params.cvec->tgr.get() : nullptr;
        return now == state && inject == now->any_row(params.ubatch) && norms == now->capture_norms;
    }

    const graph_state_t * state;
    const bool            inject;
    const bool            norms;

    ggml_tensor * rows     = nullptr; // I32 [n_tokens]
    ggml_tensor * rows_out = nullptr; // I32 [n_outputs], for the last layer

    std::vector<ggml_tensor *> norm_of_layer; // F32 [1, n_tokens or n_outputs], squared
};

//
// hooks, called by llama.cpp
//

static constexpr int64_t few_tokens = 32; // for which llama.cpp keeps a layer's operations where its weights are

// Lets an addition be computed where its table is. ggml would have that of the last layer before another device
// computed there, and copy the table in every step. In a prompt it copies the weights too, and the table is nothing
// beside them.
static void keep_at_table(const llm_graph_context & graph, ggml_tensor * sum, const ggml_tensor * table) {
    const auto type = ggml_backend_buffer_get_type(table->buffer);
    for (int i = 0; i < ggml_backend_sched_get_n_backends(graph.sched); ++i) {
        const auto backend = ggml_backend_sched_get_backend(graph.sched, i);
        if (ggml_backend_supports_buft(backend, type)) {
            ggml_backend_sched_set_tensor_backend(graph.sched, sum, backend);
            return;
        }
    }
}

ggml_tensor * inject(const llm_graph_context & graph, ggml_tensor * cur, int il) {
    graph_state_t * state = graph.cvec ? graph.cvec->tgr.get() : nullptr;
    if (!state || il < 0 || il >= state->n_layer) {
        return cur;
    }
    state->reached[il] = true;

    graph_input_rows * input = find_input<graph_input_rows>(*graph.res);
    if (!input) {
        state->n_built += !state->reserving;
        const bool inject = state->reserving || state->any_row(graph.ubatch);
        const bool norms  = state->reserving || state->capture_norms;
        auto       fresh  = std::make_unique<graph_input_rows>(state, inject, norms);
        input             = static_cast<graph_input_rows *>(graph.res->add_input(std::move(fresh)));
    }

    ggml_context * ctx0 = graph.ctx0;
    if (input->inject) {
        ggml_tensor *& rows = cur->ne[1] == graph.n_tokens ? input->rows : input->rows_out;
        if (!rows) {
            rows = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, cur->ne[1]);
            ggml_set_input(rows);
        }
        cur = ggml_add_id(ctx0, cur, state->table[il], rows); // one kernel: on a GPU each costs a launch
        if (state->on_gpu && graph.n_tokens < few_tokens) {
            keep_at_table(graph, cur, state->table[il]);
        }
    }
    if (input->norms) {
        ggml_tensor * norm = ggml_sum_rows(ctx0, ggml_sqr(ctx0, cur));
        ggml_set_output(norm);
        ggml_build_forward_expand(graph.gf, norm);
        input->norm_of_layer[il] = norm;
    }
    return cur;
}

std::vector<uint32_t> cells_of(const std::vector<uint32_t> & cells, const llama_ubatch & ubatch) {
    std::vector<uint32_t> chosen(ubatch.n_tokens);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        chosen[i] = cells[ubatch.data->batch_idxs[i]];
    }
    return chosen;
}

void before_decode(llama_adapter_cvec & cvec, uint32_t n_tokens, uint32_t n_outputs) {
    graph_state_t * state = cvec.tgr.get();
    state->n_rows_done    = 0;
    state->n_tokens_done  = 0;
    // sized here once: asynchronous copies write into these buffers until llama_synchronize
    state->states.assign(state->capture_states ? size_t(n_outputs) * state->n_embd : 0, 0.0f);
    state->sq_norms.assign(state->capture_norms ? size_t(n_tokens) * state->n_layer : 0, -1.0f);
    state->sq_norms_last.assign(state->capture_norms ? n_outputs : 0, -1.0f);
    state->row_of_token.assign(n_tokens, -1);
    state->slot_of_token.assign(n_tokens, -1);
    state->row_of_slot.assign(n_tokens, -1);
}

// Whether ggml computes every row by itself and in one order, however many there are; our own operations do.
static bool is_by_row(ggml_op op) {
    static constexpr ggml_op by_row[] = {
        GGML_OP_NONE,     GGML_OP_ADD,    GGML_OP_ADD_ID,   GGML_OP_SUB,       GGML_OP_MUL,   GGML_OP_DIV,
        GGML_OP_SQR,      GGML_OP_SQRT,   GGML_OP_SUM_ROWS, GGML_OP_SCALE,     GGML_OP_CLAMP, GGML_OP_UNARY,
        GGML_OP_GLU,      GGML_OP_NORM,   GGML_OP_RMS_NORM, GGML_OP_L2_NORM,   GGML_OP_ROPE,  GGML_OP_GET_ROWS,
        GGML_OP_SET_ROWS, GGML_OP_CONCAT, GGML_OP_REPEAT,   GGML_OP_DUP,       GGML_OP_CPY,   GGML_OP_CONT,
        GGML_OP_RESHAPE,  GGML_OP_VIEW,   GGML_OP_PERMUTE,  GGML_OP_TRANSPOSE, GGML_OP_CUSTOM
    };
    return std::find(std::begin(by_row), std::end(by_row), op) != std::end(by_row);
}

void after_ubatch(llama_adapter_cvec & cvec, const llm_graph_result & res, ggml_backend_sched_t sched,
                  const llama_ubatch & ubatch, uint32_t n_outputs) {
    graph_state_t * state = cvec.tgr.get();
    state->n_splits       = uint32_t(ggml_backend_sched_get_n_splits(sched));
    if (!std::exchange(state->scanned, true)) {
        state->same_bits = true;
        for (int i = 0; i < ggml_graph_n_nodes(res.get_gf()); ++i) {
            state->same_bits &= is_by_row(ggml_graph_node(res.get_gf(), i)->op);
        }
    }
    const auto copy = [&](ggml_tensor * tensor, float * to, size_t n) {
        ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, tensor), tensor, to, 0,
                                      n * sizeof(float));
    };
    if (state->capture_states && n_outputs > 0 && res.get_embd()) {
        copy(res.get_embd(), state->states.data() + state->n_rows_done * state->n_embd,
             size_t(n_outputs) * state->n_embd);
    }
    if (state->capture_norms) {
        const size_t n_tokens_all = state->slot_of_token.size();
        const auto * input        = find_input<graph_input_rows>(res);
        for (int32_t il = 0; input && il < state->n_layer; ++il) {
            ggml_tensor * norm = input->norm_of_layer[il];
            if (!norm || ggml_nelements(norm) == 0) {
                continue;
            }
            if (norm->ne[1] == int64_t(ubatch.n_tokens)) {
                copy(norm, state->sq_norms.data() + il * n_tokens_all + state->n_tokens_done, ubatch.n_tokens);
            } else {
                copy(norm, state->sq_norms_last.data() + state->n_rows_done, n_outputs);
            }
        }
        int32_t row = int32_t(state->n_rows_done);
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            const int32_t slot                                                    = int32_t(state->n_tokens_done + i);
            state->slot_of_token[ubatch.data ? ubatch.data->batch_idxs[i] : slot] = slot;
            if (ubatch.output[i]) {
                state->row_of_slot[slot] = row++;
            }
        }
    }
    state->n_rows_done += n_outputs;
    state->n_tokens_done += ubatch.n_tokens;
}

void after_decode(llama_adapter_cvec & cvec, const std::vector<int32_t> & out_ids) {
    graph_state_t * state = cvec.tgr.get();
    for (size_t row = 0; row < out_ids.size(); ++row) {
        state->row_of_token[out_ids[row]] = int32_t(row);
    }
}

//
// interface
//

static graph_state_t & state_of(llama_context * ctx) {
    return *ctx->tgr_adapter().tgr;
}

void graph_reserve(llama_context * ctx) {
    graph_state_t & state = state_of(ctx);
    state.reserving       = true;
    ctx->set_adapter_cvec(nullptr, 0, state.n_embd, 0, 0); // there is none; buffers are outdated after this
    try {
        ctx->sched_reserve();
    } catch (...) {
        state.reserving = false;
        throw;
    }
    state.reserving = false;
}

bool graph_init(llama_context * ctx, int32_t n_rows, uint32_t n_text, InterleavedWeights * weights) {
    if (n_text > 0) {
        // llama.cpp chooses the factors by the size of the cache. A cache that grows would turn later keys otherwise
        // than those that it holds. Nothing else asks for n_ctx_seq once the context is made.
        const_cast<llama_cparams &>(ctx->get_cparams()).n_ctx_seq = n_text;
    }
    const llama_model & model = ctx->get_model();
    auto                state = std::make_shared<graph_state_t>();
    state->n_layer            = int32_t(model.hparams.n_layer());
    state->n_embd             = int32_t(model.hparams.n_embd);
    state->weights            = weights;
    state->on_gpu             = !on_cpu(&model);
    state->kvs                = memory_caches(ctx);
    state->reached.assign(state->n_layer, false);

    std::map<ggml_backend_buffer_type_t, ggml_context *> ctx_of_buft;
    for (int32_t il = 0; il < state->n_layer; ++il) {
        ggml_backend_buffer_type_t buft      = model.select_buft(il);
        ggml_context *&            ctx_table = ctx_of_buft[buft];
        if (!ctx_table) {
            ctx_table = ggml_init({ state->n_layer * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true });
            state->ctxs.emplace_back(ctx_table);
        }
        state->table.push_back(ggml_new_tensor_2d(ctx_table, GGML_TYPE_F32, state->n_embd, n_rows));
    }
    for (const auto & [buft, ctx_table] : ctx_of_buft) {
        ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx_table, buft);
        if (!buf) {
            return false;
        }
        ggml_backend_buffer_clear(buf, 0);
        state->bufs.emplace_back(buf);
    }
    ctx->tgr_adapter().tgr = std::move(state);
    graph_reserve(ctx); // llama.cpp has done so before our nodes were known
    return true;
}

void graph_set_row(llama_context * ctx, int32_t row, const float * vectors) {
    graph_state_t & state = state_of(ctx);
    const size_t    bytes = state.n_embd * sizeof(float);
    for (int32_t il = 0; il < state.n_layer; ++il) {
        ggml_backend_tensor_set(state.table[il], vectors + size_t(il) * state.n_embd, row * bytes, bytes);
    }
}

void graph_copy_rows(llama_context * from, llama_context * to) {
    const graph_state_t & source = state_of(from);
    const graph_state_t & target = state_of(to);
    for (int32_t il = 0; il < source.n_layer; ++il) {
        ggml_backend_tensor_copy(source.table[il], target.table[il]);
    }
}

const float * graph_state(llama_context * ctx, int32_t batch_index) {
    const graph_state_t & state = state_of(ctx);
    const int32_t         row   = state.row_of_token[batch_index];
    return row < 0 || state.states.empty() ? nullptr : state.states.data() + size_t(row) * state.n_embd;
}

float graph_norm(llama_context * ctx, int32_t layer, int32_t batch_index) {
    const graph_state_t & state = state_of(ctx);
    const int32_t         slot  = state.slot_of_token[batch_index];
    if (slot < 0 || state.sq_norms.empty()) {
        return -1.0f;
    }
    float sq = state.sq_norms[size_t(layer) * state.slot_of_token.size() + slot];
    if (sq < 0 && layer == state.n_layer - 1) {
        const int32_t row = state.row_of_slot[slot];
        sq                = row < 0 ? sq : state.sq_norms_last[row];
    }
    return sq < 0 ? -1.0f : std::sqrt(sq);
}

void graph_place(llama_context * ctx, const std::vector<uint32_t> & cells, const std::vector<int32_t> & rows,
                 const std::vector<int32_t> & view_of, const std::vector<std::vector<extent>> & views, bool states,
                 bool norms) {
    graph_state_t & state = state_of(ctx);
    state.row_of          = rows;
    state.view_of         = view_of;
    state.views           = views;
    state.capture_states  = states;
    state.capture_norms   = norms;
    state.view_sizes.clear();
    for (const auto & view : views) {
        state.view_sizes.push_back(n_cells_of(view));
    }
    for (llama_kv_cache * kv : state.kvs) {
        kv->tgr_cells = cells;
    }
}

int32_t graph_decode(llama_context * ctx, const llama_batch & batch, int32_t n_seqs) {
    const llama_model & model = ctx->get_model();
    llama_batch_ext given(size_t(batch.n_tokens), model.hparams.n_embd_inp(), model.hparams.n_embd_inp_enc(), n_seqs,
                          ctx->get_memory(), model.vocab.n_tokens(), model.hparams.n_pos_per_embd());
    llama_batch_compat::init(given, batch);
    return ctx->decode(given);
}

bool graph_has_same_bits(llama_context * ctx) {
    return state_of(ctx).same_bits && ggml_backend_sched_get_n_backends(ctx->get_sched()) == 1;
}

uint64_t graph_n_built(llama_context * ctx) {
    return state_of(ctx).n_built;
}

uint64_t graph_n_whole(llama_context * ctx) {
    return state_of(ctx).n_whole;
}

uint32_t graph_n_splits(llama_context * ctx) {
    return state_of(ctx).n_splits;
}

const char * graph_no_shift(llama_context * ctx) {
    const llama_cparams & cparams = ctx->get_cparams();
    const llama_hparams & hparams = ctx->get_model().hparams;
    if (memory_of(ctx).recurrent) {
        return "the state of its recurrent layers holds the removed tokens too";
    }
    if (!ctx->get_memory()->get_can_shift()) {
        return "the positions of this model are no single number, or differ between layers";
    }
    if (hparams.rope_type == LLAMA_ROPE_TYPE_NONE) {
        return "this model does not keep positions as rotations of the keys";
    }
    // what scales keys as well as rotating them would do so again, to every cell of the cache
    const bool  yarn = cparams.yarn_ext_factor != 0.0f;
    const float scale =
        cparams.yarn_attn_factor * (yarn ? 1.0f + 0.1f * std::log(1.0f / cparams.rope_freq_scale) : 1.0f);
    if (std::fabs(scale - 1.0f) > 1e-6f) {
        return "this model scales its keys while it turns them";
    }
    return nullptr;
}

bool graph_apply_shift(llama_context * ctx) {
    ctx->memory_update(/*optimize =*/false);
    return !ctx->memory_update(false); // nothing is left to do
}

int32_t graph_layers_reached(llama_context * ctx) {
    const auto & reached = state_of(ctx).reached;
    return int32_t(std::count(reached.begin(), reached.end(), true));
}

static ggml_backend_dev_t device_of(const llama_model * model, int32_t layer) {
    const bool output = layer >= int32_t(model->hparams.n_layer());
    return output ? model->dev_output() : model->dev_layer(layer);
}

const char * layer_device(const llama_model * model, int32_t layer) {
    return ggml_backend_dev_name(device_of(model, layer));
}

std::vector<std::string> without_attention(const llama_model * model, ggml_type type_k, ggml_type type_v) {
    constexpr int64_t        n_cells = 256, n_tokens = 32;
    const auto &             hparams = model->hparams;
    std::vector<std::string> names;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        const ggml_backend_dev_t device  = device_of(model, int32_t(il));
        const bool               attends = !hparams.is_recr(il) && hparams.n_head(il) > 0 && hparams.n_head_kv(il) > 0;
        if (!attends || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        const ggml_context_ptr ctx(ggml_init({ 8 * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true }));
        const auto             tensor = [&](ggml_type type, int64_t width, int64_t n, int64_t n_head) {
            return ggml_new_tensor_3d(ctx.get(), type, width, n, n_head);
        };
        const int64_t width_k = hparams.n_embd_head_k(il), width_v = hparams.n_embd_head_v(il);
        if (width_k % ggml_blck_size(type_k) != 0 || width_v % ggml_blck_size(type_v) != 0) {
            continue; // refused when the context is made
        }
        ggml_tensor * q    = tensor(GGML_TYPE_F32, width_k, n_tokens, hparams.n_head(il));
        ggml_tensor * k    = tensor(type_k, width_k, n_cells, hparams.n_head_kv(il));
        ggml_tensor * v    = tensor(type_v, width_v, n_cells, hparams.n_head_kv(il));
        ggml_tensor * mask = tensor(GGML_TYPE_F16, n_cells, n_tokens, 1);
        ggml_tensor * op   = ggml_flash_attn_ext(ctx.get(), q, k, v, mask, 1.0f, 0.0f, 0.0f);
        const char *  name = ggml_backend_dev_name(device);
        if (!ggml_backend_dev_supports_op(device, op) && std::find(names.begin(), names.end(), name) == names.end()) {
            names.emplace_back(name);
        }
    }
    return names;
}

bool on_cpu(const llama_model * model) {
    bool all = true;
    for (int32_t layer = 0; layer <= int32_t(model->hparams.n_layer()); ++layer) {
        all &= ggml_backend_dev_type(device_of(model, layer)) == GGML_BACKEND_DEVICE_TYPE_CPU;
    }
    return all;
}

} // namespace tgr
