// Per-session attention. llama.cpp lets every token look, masked, at every cell of the cache; here the tokens of a
// sequence look at the cells of its view only.
#include "graph/attention.h"
#include "graph/graph_state.h"

#include "llama-adapter.h"
#include "llama-hparams.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include <list>
#include <map>
#include <optional>
#include <utility>

namespace tgr {

uint32_t session_attention_nodes(uint32_t n_layer) {
    return n_layer * 8;
}

// The plan of a half as one layer sees it.
struct layer_attention_t {
    const attention_plan_t * plan;
    attention_scores_t       scores;
};

static bool can_plan(const graph_state_t * state, const llama_ubatch & ubatch) {
    if (!state || state->kvs.empty() || state->view_of.empty() || !ubatch.token || !ubatch.data ||
        ubatch.data->batch_idxs.size() != ubatch.n_tokens) {
        return false;
    }
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (state->view_sizes[state->view_of[ubatch.data->batch_idxs[i]]] <= uint64_t(ubatch.pos[i])) {
            return false; // the caller's books are wrong: llama.cpp has its own
        }
    }
    return true;
}

// The first position that a token at `pos` sees.
static uint32_t first_seen(const llama_hparams & hparams, bool window, llama_pos pos) {
    llama_pos low = 0, high = pos;
    while (window && low < high) {
        const llama_pos middle = low + (high - low) / 2;
        if (llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, middle, pos)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return uint32_t(low);
}

static attention_plan_t plan_of(const graph_state_t & state, const llama_hparams & hparams, const llama_ubatch & ubatch,
                                bool window) {
    std::map<int32_t, std::vector<seen_t>> tokens; // of a view
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const uint32_t end = uint32_t(ubatch.pos[i]) + 1;
        tokens[state.view_of[ubatch.data->batch_idxs[i]]].push_back(
            { int32_t(i), first_seen(hparams, window, ubatch.pos[i]), end });
    }
    attention_plan_t plan;
    for (const auto & [view, of_view] : tokens) {
        plan.add(state.views[view], of_view);
    }
    plan.finish();
    return plan;
}

// The plans, made anew for each micro-batch.
class graph_input_views : public llm_graph_input_i {
public:
    graph_input_views(graph_state_t * state, const llm_graph_context & graph) :
        state(state),
        hparams(graph.hparams),
        enabled(can_plan(state, graph.ubatch)) {}

    void set_input(const llama_ubatch *) override {}

    bool can_reuse(const llm_graph_params & params) override {
        if (enabled != can_plan(state, params.ubatch)) {
            return false;
        }
        for (const bool window : { false, true }) {
            if (halves[window]) {
                *halves[window] = plan_of(*state, hparams, params.ubatch, window);
            }
        }
        return true;
    }

    void count_whole() {
        state->n_whole += !counted && !state->reserving;
        counted = true;
    }

    graph_state_t * const           state;
    const llama_hparams             hparams; // a copy: this outlives the graph's parameters
    const bool                      enabled;
    std::optional<attention_plan_t> halves[2]; // of the layers without a sliding window, and of those with one
    std::list<layer_attention_t>    layers;    // the graph's operations point to them

private:
    bool counted = false;
};

//
// the operation
//

static void attend_op(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto & layer = *static_cast<const layer_attention_t *>(userdata);
    attend(static_cast<float *>(dst->data), *layer.plan, layer.scores, dst->src[0], dst->src[1], dst->src[2],
           dst->src[3], ith, nth);
}

// What llama.cpp does with the scores.
static attention_scores_t scores_of(const llm_graph_context & graph, float scale) {
    const llama_hparams & hparams = graph.hparams;
    attention_scores_t    scores;
    scores.scale  = scale;
    scores.rounds = !graph.cparams.flash_attn;
    if (graph.arch == LLM_ARCH_GROK && !graph.cparams.flash_attn) {
        scores.factor = hparams.f_attn_out_scale;
        scores.cap    = hparams.f_attn_logit_softcapping;
    } else if (hparams.attn_soft_cap) {
        scores.cap = hparams.f_attn_logit_softcapping;
    }
    return scores;
}

//
// the graph
//

// Which of llama.cpp's masks this is: 0 = of layers that see everything, 1 = of those with a sliding window, -1 =
// another.
static int half_of(const llm_graph_context & graph, ggml_tensor * mask) {
    for (const auto & one : graph.res->inputs) {
        llm_graph_input_i *                  input  = one.get();
        const llm_graph_input_attn_kv *      kv     = dynamic_cast<llm_graph_input_attn_kv *>(input);
        const llm_graph_input_attn_k *       k      = dynamic_cast<llm_graph_input_attn_k *>(input);
        const llm_graph_input_attn_kv_iswa * iswa   = dynamic_cast<llm_graph_input_attn_kv_iswa *>(input);
        bool                                 filled = k != nullptr;
        if (const auto * memory = dynamic_cast<llm_graph_input_mem_hybrid *>(input)) {
            kv     = memory->get_attn();
            filled = true;
        } else if (const auto * memory = dynamic_cast<llm_graph_input_mem_hybrid_k *>(input)) {
            k      = memory->get_attn();
            filled = true;
        } else if (const auto * memory = dynamic_cast<llm_graph_input_mem_hybrid_iswa *>(input)) {
            iswa = memory->get_attn();
        }
        if ((kv && kv->self_kq_mask_cnv == mask) || (k && k->self_kq_mask_cnv == mask)) {
            if (filled) { // by llama.cpp, also where no layer uses it
                ggml_build_forward_expand(graph.gf, mask);
            }
            return 0;
        }
        if (iswa && mask == iswa->self_kq_mask_cnv) {
            return 0;
        }
        if (iswa && mask == iswa->self_kq_mask_swa_cnv) {
            return 1;
        }
    }
    return -1;
}

ggml_tensor * attend(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                     ggml_tensor * kq_b, ggml_tensor * kq_mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                     float kq_scale, int) {
    graph_state_t * state = graph.cvec ? graph.cvec->tgr.get() : nullptr;
    if (!state || !graph.ubatch.data || graph.ubatch.data->batch_idxs.size() != graph.ubatch.n_tokens) {
        return nullptr; // llama.cpp reserves buffers
    }
    auto * input = find_input<graph_input_views>(*graph.res);
    if (!input) {
        auto made = std::make_unique<graph_input_views>(state, graph);
        input     = static_cast<graph_input_views *>(graph.res->add_input(std::move(made)));
    }
    const llama_hparams & hparams = graph.hparams;
    const int             half_at = half_of(graph, kq_mask);
    // masks that are more than causal are left to llama.cpp; so are GPUs, on which this is untested
    if (!input->enabled || half_at < 0 || kq_b || k->ne[3] != 1 || q->ne[2] != graph.n_tokens ||
        !graph.cparams.causal_attn || graph.cparams.training || hparams.use_alibi || state->on_gpu) {
        input->count_whole();
        return nullptr;
    }
    std::optional<attention_plan_t> & half = input->halves[half_at];
    if (!half) {
        half = plan_of(*state, hparams, graph.ubatch, half_at == 1);
    }
    input->layers.push_back({ &*half, scores_of(graph, kq_scale) });
    ggml_context * ctx     = graph.ctx0;
    const int64_t  n_heads = q->ne[1], d_v = v->nb[1] > v->nb[2] ? v->ne[2] : v->ne[0];
    ggml_tensor *  args[] = { q, k, v, sinks };
    ggml_tensor *  cur    = ggml_custom_4d(ctx, GGML_TYPE_F32, d_v, n_heads, graph.n_tokens, 1, args, sinks ? 4 : 3,
                                           attend_op, GGML_N_TASKS_MAX, &input->layers.back());
    if (v_mla) { // multi-head latent attention: the values of each head are still to be multiplied
        cur = ggml_mul_mat(ctx, v_mla, ggml_permute(ctx, cur, 0, 2, 1, 3));
        cur = ggml_cont(ctx, ggml_permute(ctx, cur, 0, 2, 1, 3));
    }
    return ggml_reshape_2d(ctx, cur, cur->ne[0] * n_heads, cur->ne[2]);
}

} // namespace tgr
