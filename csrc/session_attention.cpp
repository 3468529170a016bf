// Per-session attention. llama.cpp lets every token look, masked, at every cell of the cache; here the tokens of a
// sequence look at the cells of its view only. attention_plan.cpp decides with which operations.
#include "attention_plan.h"
#include "graph_state.h"

#include "llama-adapter.h"
#include "llama-hparams.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include <cmath>
#include <cstring>
#include <list>
#include <map>
#include <utility>

namespace tgr {

uint32_t session_attention_nodes(uint32_t n_layer) {
    return n_layer * (uint32_t(MAX_BLOCKS) * (12 + uint32_t(MAX_SPANS) * 8) + 16);
}

// What the layers of one kind look at: those with a sliding window, or those without.
struct half_t {
    plan_t plan;
    bool   by_llama = false; // the blocks are llama.cpp's own operation, on one span of cells

    bool                       made = false;
    std::vector<ggml_tensor *> masks;          // [n_cells, rows] of each block
    ggml_tensor *              rows = nullptr; // I32, the token of every row of the blocks
    ggml_tensor *              back = nullptr; // I32 [n_tokens], the row of every token
};

// The tree of a half as one layer sees it.
struct layer_tree_t {
    const half_t * half;
    tree_scores_t  scores;
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

static plan_t plan_of(const graph_state_t & state, const llama_hparams & hparams, const llama_ubatch & ubatch,
                      bool window, bool by_llama) {
    std::map<int32_t, reader_t> of_view;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const int32_t view   = state.view_of[ubatch.data->batch_idxs[i]];
        reader_t &    reader = of_view.emplace(view, reader_t{ &state.views[view], {} }).first->second;
        reader.tokens.push_back(
            { int32_t(i), first_seen(hparams, window, ubatch.pos[i]), uint32_t(ubatch.pos[i]) + 1 });
    }
    std::vector<reader_t> readers;
    for (auto & [view, reader] : of_view) {
        readers.push_back(std::move(reader));
    }
    return plan_attention(readers, state.kvs.front()->get_size(), by_llama ? 1 : MAX_SPANS);
}

// The masks of the blocks, and which row every token is.
class graph_input_views : public llm_graph_input_i {
public:
    graph_input_views(graph_state_t * state, const llm_graph_context & graph) :
        state(state),
        hparams(graph.hparams),
        enabled(can_plan(state, graph.ubatch)) {}

    void set_input(const llama_ubatch * ubatch) override {
        for (const half_t & half : halves) {
            std::vector<int32_t> rows, back(ubatch->n_tokens);
            const plan_t &       plan = half.plan;
            int32_t              row  = 0;
            for (const seen_t & seen : plan.tree.rows) {
                back[seen.token] = row++;
            }
            for (size_t b = 0; b < plan.blocks.size(); ++b) {
                for (const seen_t & seen : plan.blocks[b].tokens) {
                    back[seen.token] = row++;
                    rows.push_back(seen.token);
                }
                if (half.masks[b]->type == GGML_TYPE_F16) {
                    fill(*ubatch, half, b, ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
                } else {
                    fill(*ubatch, half, b, 0.0f, -INFINITY);
                }
            }
            if (half.rows) {
                ggml_backend_tensor_set(half.rows, rows.data(), 0, ggml_nbytes(half.rows));
            }
            if (half.back) {
                ggml_backend_tensor_set(half.back, back.data(), 0, ggml_nbytes(half.back));
            }
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        if (enabled != can_plan(state, params.ubatch)) {
            return false;
        }
        for (const bool window : { false, true }) {
            half_t & half = halves[window];
            if (!half.made) {
                continue;
            }
            plan_t now = plan_of(*state, hparams, params.ubatch, window, half.by_llama);
            if (!half.plan.same_shape(now)) {
                return false;
            }
            half.plan = std::move(now);
        }
        return true;
    }

    bool has(const ggml_tensor * mask) const {
        const auto is = [&](const half_t & half) {
            return std::find(half.masks.begin(), half.masks.end(), mask) != half.masks.end();
        };
        return is(halves[0]) || is(halves[1]);
    }

    void count_whole() {
        state->n_whole += !counted && !state->reserving;
        counted = true;
    }

    graph_state_t * const   state;
    const llama_hparams     hparams; // a copy: this outlives the graph's parameters
    const bool              enabled;
    half_t                  halves[2];   // without a sliding window, with one
    std::list<layer_tree_t> layer_trees; // the graph's operations point to them

private:
    template <class T> void fill(const llama_ubatch & ubatch, const half_t & half, size_t b, T keep, T drop) {
        const block_t & block   = half.plan.blocks[b];
        const uint32_t  n_cells = block.n_cells();
        std::vector<T>  values(ggml_nelements(half.masks[b]), drop);
        auto            to = values.begin();
        for (const seen_t & seen : block.tokens) {
            const auto & view     = state->views[state->view_of[ubatch.data->batch_idxs[seen.token]]];
            uint32_t     position = 0;
            for (const extent & run : view) {
                const uint32_t from = std::max(position, seen.first), until = std::min(position + run.n, seen.end);
                if (from < until) {
                    std::fill_n(to + column(block, run.begin + (from - position)), until - from, keep);
                }
                position += run.n;
            }
            to += n_cells;
        }
        ggml_backend_tensor_set(half.masks[b], values.data(), 0, values.size() * sizeof(T));
    }

    // Of a cell, in the span that has it and all that follow it in its extent.
    static uint32_t column(const block_t & block, uint32_t cell) {
        uint32_t before = 0;
        for (const extent & span : block.spans) {
            if (cell - span.begin < span.n) { // unsigned: not before it either
                return before + (cell - span.begin);
            }
            before += span.n;
        }
        GGML_ABORT("a cell is in no span of its block");
    }

    bool counted = false;
};

//
// the operations
//

static void attend_tree_op(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto & layer = *static_cast<const layer_tree_t *>(userdata);
    attend_tree(static_cast<float *>(dst->data), layer.half->plan.tree, layer.scores, dst->src[0], dst->src[1],
                dst->src[2], dst->src[3], ith, nth);
}

// Values of heads [d, n_heads, rows] that multi-head latent attention still has to multiply.
static ggml_tensor * decompressed(ggml_context * ctx, ggml_tensor * cur, ggml_tensor * v_mla) {
    cur = ggml_mul_mat(ctx, v_mla, ggml_permute(ctx, cur, 0, 2, 1, 3));
    return ggml_cont(ctx, ggml_permute(ctx, cur, 0, 2, 1, 3));
}

// Rows of the tree, from q [d, heads, tokens].
static ggml_tensor * attend_few(graph_input_views & input, const half_t & half, ggml_context * ctx, ggml_tensor * q,
                                ggml_tensor * k, ggml_tensor * v, ggml_tensor * sinks, ggml_tensor * v_mla,
                                const tree_scores_t & scores) {
    input.layer_trees.push_back({ &half, scores });
    const int64_t n_heads = q->ne[1], d = v->nb[1] > v->nb[2] ? v->ne[2] : v->ne[0];
    ggml_tensor * args[] = { q, k, v, sinks };
    ggml_tensor * cur    = ggml_custom_4d(ctx, GGML_TYPE_F32, d, n_heads, int64_t(half.plan.tree.rows.size()), 1, args,
                                          sinks ? 4 : 3, attend_tree_op, GGML_N_TASKS_MAX, &input.layer_trees.back());
    if (v_mla) {
        cur = decompressed(ctx, cur, v_mla);
    }
    return ggml_reshape_2d(ctx, cur, cur->ne[0] * n_heads, cur->ne[2]);
}

// The cells of a span: of keys [d, heads, cells] as [d, cells, heads], of transposed values [cells, heads, d] as
// [cells, d, heads].
static ggml_tensor * cells_of_span(ggml_context * ctx, ggml_tensor * kv, const extent & span) {
    const bool   transposed = kv->nb[1] > kv->nb[2];
    const size_t cell       = kv->nb[transposed ? 0 : 2];
    return ggml_view_3d(ctx, kv, transposed ? span.n : kv->ne[0], transposed ? kv->ne[2] : span.n, kv->ne[1], kv->nb[2],
                        kv->nb[1], cell * span.begin);
}

// What llama.cpp does with the scores.
static tree_scores_t scores_of(const llm_graph_context & graph, float scale) {
    const llama_hparams & hparams = graph.hparams;
    tree_scores_t         scores;
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

static ggml_tensor * capped(ggml_context * ctx, ggml_tensor * kq, const tree_scores_t & scores) {
    if (scores.cap == 0.0f) {
        return kq;
    }
    return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, kq, scores.factor / scores.cap)), scores.cap);
}

// Rows of a block: the scores of its spans are side by side in one softmax, and what the values of each span weigh is
// added up.
static ggml_tensor * attend_many(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                 const block_t & block, ggml_tensor * mask, ggml_tensor * sinks,
                                 const tree_scores_t & scores) {
    const int64_t n_heads = q->ne[1], n_rows = q->ne[2];

    q                = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * kq = nullptr;
    for (const extent & span : block.spans) {
        ggml_tensor * part = ggml_mul_mat(ctx, cells_of_span(ctx, k, span), q);
        ggml_prec_set_acc(part, GGML_PREC_F32);
        kq = kq ? ggml_concat(ctx, kq, part, 0) : part;
    }
    kq = ggml_soft_max_ext(ctx, capped(ctx, kq, scores), mask, scores.scale, 0.0f);
    ggml_soft_max_add_sinks(kq, sinks);

    size_t        at  = 0; // bytes
    ggml_tensor * kqv = nullptr;
    for (const extent & span : block.spans) {
        ggml_tensor * weights = ggml_view_3d(ctx, kq, span.n, n_rows, n_heads, kq->nb[1], kq->nb[2], at);
        ggml_tensor * part    = ggml_mul_mat(ctx, cells_of_span(ctx, v, span), weights);
        kqv                   = kqv ? ggml_add(ctx, kqv, part) : part;
        at += span.n * kq->nb[0];
    }
    return ggml_cont_2d(ctx, ggml_permute(ctx, kqv, 0, 2, 1, 3), kqv->ne[0] * n_heads, n_rows);
}

// llama.cpp's own operation, which also knows flash attention and multi-head latent attention. It wants the cells in
// dimension 2, or 0 when they are transposed.
static ggml_tensor * attend_llama(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                  const block_t & block, ggml_tensor * mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                                  float kq_scale, int il) {
    const extent & span  = block.spans[0];
    const auto     cells = [&](ggml_tensor * kv) {
        const bool transposed = kv->nb[1] > kv->nb[2];
        return ggml_view_3d(graph.ctx0, kv, transposed ? span.n : kv->ne[0], kv->ne[1], transposed ? kv->ne[2] : span.n,
                            kv->nb[1], kv->nb[2], kv->nb[transposed ? 0 : 2] * span.begin);
    };
    ggml_tensor * keys   = cells(k);
    ggml_tensor * values = cells(v);
    return graph.build_attn_mha(q, keys, values, nullptr, mask, sinks, v_mla, 0, kq_scale, il);
}

// ggml_concat copies value by value.
static void copy_stacked(ggml_tensor * dst, int ith, int nth, void *) {
    char * to = static_cast<char *>(dst->data);
    for (size_t i = 0; i < GGML_MAX_SRC && dst->src[i]; ++i) {
        const size_t n = ggml_nbytes(dst->src[i]), begin = n * ith / nth, end = n * (ith + 1) / nth;
        std::memcpy(to + begin, static_cast<char *>(dst->src[i]->data) + begin, end - begin);
        to += n;
    }
}

static_assert(MAX_BLOCKS + 1 <= GGML_MAX_SRC);

// Contiguous matrices of F32 with rows of one length, below each other.
static ggml_tensor * stacked(ggml_context * ctx, std::vector<ggml_tensor *> & parts) {
    if (parts.size() == 1) {
        return parts[0];
    }
    int64_t n_rows = 0;
    for (const ggml_tensor * part : parts) {
        n_rows += part->ne[1];
    }
    return ggml_custom_4d(ctx, GGML_TYPE_F32, parts[0]->ne[0], n_rows, 1, 1, parts.data(), int(parts.size()),
                          copy_stacked, GGML_N_TASKS_MAX, nullptr);
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

static void make_half(half_t & half, const graph_input_views & input, const llm_graph_context & graph, bool window,
                      ggml_type mask_type, bool by_llama) {
    half.made      = true;
    half.by_llama  = by_llama;
    half.plan      = plan_of(*input.state, graph.hparams, graph.ubatch, window, by_llama);
    int64_t n_rows = 0;
    for (const block_t & block : half.plan.blocks) {
        const int64_t n = int64_t(block.tokens.size());
        half.masks.push_back(ggml_new_tensor_2d(graph.ctx0, mask_type, block.n_cells(), n));
        ggml_set_input(half.masks.back());
        n_rows += n;
    }
    if (!half.plan.direct) {
        if (n_rows > 0) {
            half.rows = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n_rows);
            ggml_set_input(half.rows);
        }
        half.back = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_tokens);
        ggml_set_input(half.back);
    }
}

ggml_tensor * attend(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                     ggml_tensor * kq_b, ggml_tensor * kq_mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                     float kq_scale, int il) {
    graph_state_t * state = graph.cvec ? graph.cvec->tgr.get() : nullptr;
    if (!state || !graph.ubatch.data || graph.ubatch.data->batch_idxs.size() != graph.ubatch.n_tokens) {
        return nullptr; // llama.cpp reserves buffers
    }
    auto * input = find_input<graph_input_views>(*graph.res);
    if (!input) {
        auto made = std::make_unique<graph_input_views>(state, graph);
        input     = static_cast<graph_input_views *>(graph.res->add_input(std::move(made)));
    }
    if (input->has(kq_mask)) {
        return nullptr; // called by attend_llama
    }
    const llama_hparams & hparams = graph.hparams;
    const int             half_at = half_of(graph, kq_mask);
    // masks that are more than causal are left to llama.cpp; so are GPUs, on which this is untested
    if (!input->enabled || half_at < 0 || kq_b || k->ne[3] != 1 || q->ne[2] != graph.n_tokens ||
        !graph.cparams.causal_attn || graph.cparams.training || hparams.use_alibi || state->on_gpu) {
        input->count_whole();
        return nullptr;
    }
    half_t &   half     = input->halves[half_at];
    const bool by_llama = graph.cparams.flash_attn || v_mla || v->nb[1] <= v->nb[2];
    if (!half.made) {
        make_half(half, *input, graph, half_at == 1, kq_mask->type, by_llama);
    }
    if (by_llama && !half.by_llama) {
        input->count_whole(); // a layer that differs from those before it
        return nullptr;
    }
    const tree_scores_t scores = scores_of(graph, kq_scale);
    const plan_t &      plan   = half.plan;
    ggml_context *      ctx    = graph.ctx0;

    std::vector<ggml_tensor *> parts;
    if (!plan.tree.rows.empty()) {
        parts.push_back(attend_few(*input, half, ctx, q, k, v, sinks, v_mla, scores));
    }
    if (half.rows) {
        const int64_t d = q->ne[0], n_heads = q->ne[1];
        ggml_tensor * flat = ggml_is_contiguous(q) ? q : ggml_cont(ctx, q);
        q                  = ggml_get_rows(ctx, ggml_reshape_2d(ctx, flat, d * n_heads, q->ne[2]), half.rows);
        q                  = ggml_reshape_3d(ctx, q, d, n_heads, q->ne[1]);
    }
    int64_t at = half.rows ? 0 : int64_t(plan.tree.rows.size());
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
        const block_t & block  = plan.blocks[b];
        const int64_t   n_rows = int64_t(block.tokens.size());
        ggml_tensor *   mine   = ggml_view_3d(ctx, q, q->ne[0], q->ne[1], n_rows, q->nb[1], q->nb[2], at * q->nb[2]);
        parts.push_back(half.by_llama
                            ? attend_llama(graph, mine, k, v, block, half.masks[b], sinks, v_mla, kq_scale, il)
                            : attend_many(ctx, mine, k, v, block, half.masks[b], sinks, scores));
        at += n_rows;
    }
    ggml_tensor * all = stacked(ctx, parts);
    return plan.direct ? all : ggml_get_rows(ctx, all, half.back);
}

} // namespace tgr
