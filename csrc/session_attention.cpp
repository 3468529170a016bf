// Per-session attention. llama.cpp lets every token look, masked, at every cell of the cache; here the tokens of a
// sequence look at the cells of its view only. attention_plan.cpp decides with which operations; a block of rows has
// the scores of its spans side by side in one softmax, and adds what the values of each span weigh.
#include "attention_plan.h"
#include "graph_state.h"

#include "llama-adapter.h"
#include "llama-hparams.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tgr {

uint32_t session_attention_nodes(uint32_t n_layer) {
    return n_layer * (uint32_t(MAX_BLOCKS) * 28 + uint32_t(MAX_SHARED_TOTAL) * 10 + 8);
}

// The operations of a block.
enum class layout_t {
    few,   // few rows: the query heads of one head of keys are the rows of one multiplication: [cells, heads, span, …]
    many,  // many rows: [cells, rows, heads, span]
    llama, // llama.cpp's own operation on one span of cells
};

// What the layers of one kind look at: those with a sliding window, or those without.
struct half_t {
    plan_t   plan;
    layout_t most = layout_t::llama; // few: blocks of few rows are `few`, the others `many`
    uint32_t gqa  = 1;               // query heads for each head of keys, at most
    bool     even = true;            // … in every layer

    std::vector<ggml_tensor *> masks;          // [n_cells, rows] of each span of each block
    ggml_tensor *              rows = nullptr; // I32, the token of every row of every block
    ggml_tensor *              back = nullptr; // I32 [n_tokens], the row of every token

    layout_t layout(const block_t & block) const {
        // several rows at one span are left as they are in llama.cpp, so that sums have the same order
        const bool one_span = block.n_spans == 1 && block.shared.empty();
        const bool many     = block.n_rows > 1 && (one_span || block.n_rows * gqa > 64 || !even);
        return most == layout_t::few && many ? layout_t::many : most;
    }
    uint32_t copies(const block_t & block) const { return layout(block) == layout_t::few ? gqa : 1; }
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
                      bool window, layout_t most) {
    static constexpr uint32_t step = 256; // by which the first cell moves, so that graphs can be used again

    std::map<int32_t, reader_t> of_view;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const int32_t  view   = state.view_of[ubatch.data->batch_idxs[i]];
        reader_t &     reader = of_view.emplace(view, reader_t{ &state.views[view], UINT32_MAX, 0, {} }).first->second;
        const uint32_t pos    = uint32_t(ubatch.pos[i]);
        reader.first          = std::min(reader.first, first_seen(hparams, window, ubatch.pos[i]) / step * step);
        reader.end            = std::max(reader.end, pos + 1);
        reader.tokens.push_back(int32_t(i));
    }
    std::vector<reader_t> readers;
    bool                  shorter = false;
    for (auto & [view, reader] : of_view) {
        shorter |= reader.first > 0;
        readers.push_back(std::move(reader));
    }
    const uint32_t n_cells     = state.kvs.front()->get_size();
    const size_t   most_shared = most == layout_t::llama ? 0 : MAX_SHARED;
    plan_t         plan        = plan_attention(readers, n_cells, most_shared);
    if (shorter) { // sequences that begin alike share more
        for (reader_t & reader : readers) {
            reader.first = 0;
        }
        plan_t whole = plan_attention(readers, n_cells, most_shared);
        if (whole.cost() < plan.cost()) {
            plan = std::move(whole);
        }
    }
    return plan;
}

// The masks of the blocks, and which row of them every token is.
class graph_input_views : public llm_graph_input_i {
public:
    graph_input_views(graph_state_t * state, const llm_graph_context & graph) :
        state(state),
        hparams(graph.hparams),
        enabled(can_plan(state, graph.ubatch)) {}

    void set_input(const llama_ubatch * ubatch) override {
        for (const bool window : { false, true }) {
            const half_t & half = halves[window];
            if (half.masks.empty()) {
                continue;
            }
            std::vector<int32_t> gather, scatter(ubatch->n_tokens);
            for (size_t b = 0; b < half.plan.blocks.size(); ++b) {
                for (const int32_t token : half.plan.blocks[b].tokens) {
                    if (token >= 0) {
                        scatter[token] = int32_t(gather.size());
                    }
                    gather.push_back(std::max(token, 0));
                }
                if (half.masks[b]->type == GGML_TYPE_F16) {
                    fill(*ubatch, half, b, window, ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
                } else {
                    fill(*ubatch, half, b, window, 0.0f, -INFINITY);
                }
            }
            if (half.rows) {
                ggml_backend_tensor_set(half.rows, gather.data(), 0, ggml_nbytes(half.rows));
                ggml_backend_tensor_set(half.back, scatter.data(), 0, ggml_nbytes(half.back));
            }
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        if (enabled != can_plan(state, params.ubatch)) {
            return false;
        }
        for (const bool window : { false, true }) {
            half_t & half = halves[window];
            if (half.masks.empty()) {
                continue;
            }
            plan_t now = plan_of(*state, hparams, params.ubatch, window, half.most);
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

    graph_state_t * const state;
    const llama_hparams   hparams; // a copy: this outlives the graph's parameters
    const bool            enabled;
    half_t                halves[2]; // without a sliding window, with one

private:
    template <class T>
    void fill(const llama_ubatch & ubatch, const half_t & half, size_t b, bool window, T keep, T drop) {
        const block_t & block   = half.plan.blocks[b];
        const uint32_t  n_cells = block.n_cells(), copies = half.copies(block);
        std::vector<T>  values(ggml_nelements(half.masks[b]), drop);
        for (size_t row = 0; row < block.tokens.size(); ++row) {
            const auto to = values.begin() + row * copies * n_cells;
            if (block.tokens[row] < 0) {
                *to = keep; // the softmax of nothing is NaN
            } else {
                fill_row(ubatch, block, uint32_t(row), window, to, keep);
            }
            for (uint32_t copy = 1; copy < copies; ++copy) {
                std::copy_n(to, n_cells, to + size_t(copy) * n_cells);
            }
        }
        ggml_backend_tensor_set(half.masks[b], values.data(), 0, values.size() * sizeof(T));
    }

    // Shows a row the cells of its view up to its own position, each in the first span that has it.
    template <class To, class T>
    void fill_row(const llama_ubatch & ubatch, const block_t & block, uint32_t row, bool window, To to, T keep) {
        const uint32_t token = uint32_t(block.tokens[row]);
        const uint32_t first = first_seen(hparams, window, ubatch.pos[token]), end = uint32_t(ubatch.pos[token]) + 1;
        uint32_t       position = 0;
        for (const extent & run : state->views[state->view_of[ubatch.data->batch_idxs[token]]]) {
            const uint32_t from = std::max(position, first), until = std::min(position + run.n, end);
            for (uint32_t p = from; p < until;) {
                const uint32_t cell    = run.begin + (p - position);
                const auto [column, n] = find(block, row / block.n_rows, cell);
                const uint32_t n_here  = std::min(n, until - p);
                std::fill_n(to + column, n_here, keep);
                p += n_here;
            }
            position += run.n;
        }
    }

    // The column of a cell among those that a row looks at, and how many follow in the same span.
    static std::pair<uint32_t, uint32_t> find(const block_t & block, uint32_t span, uint32_t cell) {
        uint32_t column = 0;
        for (const extent & shared : block.shared) {
            if (cell - shared.begin < shared.n) { // unsigned: not before it either
                return { column + (cell - shared.begin), shared.n - (cell - shared.begin) };
            }
            column += shared.n;
        }
        const uint32_t at = cell - (block.own.begin + span * block.stride);
        GGML_ASSERT(at < block.own.n);
        return { column + at, block.own.n - at };
    }

    bool counted = false;
};

//
// the operations
//

// The cells of a span and of those that follow it at the distance `stride`, in keys [d, heads, cells] or in values,
// whose cells are dimension 0 when they are transposed. The result has the cells in dimension 1, or 0, and then the
// spans either before the heads or behind them.
static ggml_tensor * cells_of_span(ggml_context * ctx, ggml_tensor * kv, const extent & span, uint32_t stride,
                                   uint32_t n_spans, bool spans_first) {
    const bool    transposed = kv->nb[1] > kv->nb[2];
    const size_t  cell       = transposed ? kv->nb[0] : kv->nb[2];
    const int64_t ne0 = transposed ? span.n : kv->ne[0], ne1 = transposed ? kv->ne[2] : span.n;
    const size_t  nb1 = kv->nb[2], heads = kv->nb[1], spans = cell * stride;
    return spans_first ? ggml_view_4d(ctx, kv, ne0, ne1, n_spans, kv->ne[1], nb1, spans, heads, cell * span.begin)
                       : ggml_view_4d(ctx, kv, ne0, ne1, kv->ne[1], n_spans, nb1, heads, spans, cell * span.begin);
}

// What llama.cpp does with the scores before the softmax.
static ggml_tensor * capped(ggml_context * ctx, ggml_tensor * scores, const llama_hparams & hparams) {
    if (!hparams.attn_soft_cap) {
        return scores;
    }
    scores = ggml_tanh(ctx, ggml_scale(ctx, scores, 1.0f / hparams.f_attn_logit_softcapping));
    return ggml_scale(ctx, scores, hparams.f_attn_logit_softcapping);
}

static ggml_tensor * scores_of(ggml_context * ctx, ggml_tensor * k, ggml_tensor * q) {
    ggml_tensor * scores = ggml_mul_mat(ctx, k, q);
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    return scores;
}

// q [d, heads, rows of the block]. Below, "rows" are those of the block times the heads that share a head of keys. What
// each span has of its own is [.., rows, heads of keys, span], in the order of its cells in memory; at the shared
// spans,
// [.., rows and spans, 1, heads of keys], the rows of all spans are those of one multiplication.
static ggml_tensor * attend_few(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                const block_t & block, ggml_tensor * mask, const llama_hparams & hparams,
                                float kq_scale) {
    const int64_t d = q->ne[0], n_kv_heads = k->ne[1], gqa = q->ne[1] / n_kv_heads, n_tokens = q->ne[2];
    const int64_t n_spans = block.n_spans, n_rows = gqa * block.n_rows;

    q                   = ggml_is_contiguous(q) ? q : ggml_cont(ctx, q);
    ggml_tensor * q_own = ggml_reshape_4d(ctx, q, d * gqa, n_kv_heads, block.n_rows, n_spans);
    if (block.n_rows > 1) {
        q_own = ggml_cont(ctx, ggml_permute(ctx, q_own, 0, 2, 1, 3));
    }
    q_own             = ggml_reshape_4d(ctx, q_own, d, n_rows, n_kv_heads, n_spans);
    ggml_tensor * own = scores_of(ctx, cells_of_span(ctx, k, block.own, block.stride, block.n_spans, false), q_own);
    ggml_tensor * kq  = own;
    if (block.shared.empty()) {
        mask = ggml_reshape_4d(ctx, mask, mask->ne[0], mask->ne[1], 1, n_spans);
    } else {
        ggml_tensor * q_all = ggml_reshape_3d(ctx, q, d * gqa, n_kv_heads, n_tokens);
        q_all               = ggml_cont(ctx, ggml_permute(ctx, q_all, 0, 2, 1, 3));
        q_all               = ggml_reshape_4d(ctx, q_all, d, n_rows * n_spans, 1, n_kv_heads);
        kq                  = nullptr;
        for (const extent & span : block.shared) {
            ggml_tensor * scores = scores_of(ctx, cells_of_span(ctx, k, span, 0, 1, true), q_all);
            scores               = ggml_reshape_4d(ctx, scores, span.n, n_rows, n_spans, n_kv_heads);
            kq                   = kq ? ggml_concat(ctx, kq, scores, 0) : scores;
        }
        kq = ggml_concat(ctx, kq, ggml_permute(ctx, own, 0, 1, 3, 2), 0);
    }
    kq = ggml_soft_max_ext(ctx, capped(ctx, kq, hparams), mask, kq_scale, 0.0f);

    size_t        at  = 0; // bytes
    ggml_tensor * kqv = nullptr;
    for (const extent & span : block.shared) {
        ggml_tensor * weights =
            ggml_view_4d(ctx, kq, span.n, n_rows * n_spans, 1, n_kv_heads, kq->nb[1], kq->nb[3], kq->nb[3], at);
        ggml_tensor * part = ggml_mul_mat(ctx, cells_of_span(ctx, v, span, 0, 1, true), weights);
        kqv                = kqv ? ggml_add(ctx, kqv, part) : part;
        at += span.n * kq->nb[0];
    }
    if (kqv) {
        kq = ggml_view_4d(ctx, kq, block.own.n, n_rows, n_kv_heads, n_spans, kq->nb[1], kq->nb[3], kq->nb[2], at);
    }
    own             = ggml_mul_mat(ctx, cells_of_span(ctx, v, block.own, block.stride, block.n_spans, false), kq);
    const int64_t n = own->ne[0] * gqa;
    if (kqv) {
        kqv = ggml_reshape_4d(ctx, kqv, own->ne[0], n_rows, n_spans, n_kv_heads);
        own = ggml_add(ctx, own, ggml_permute(ctx, kqv, 0, 1, 3, 2));
    }
    if (block.n_rows > 1) {
        own = ggml_permute(ctx, ggml_reshape_4d(ctx, own, n, block.n_rows, n_kv_heads, n_spans), 0, 2, 1, 3);
        return ggml_cont_2d(ctx, own, n * n_kv_heads, n_tokens);
    }
    return ggml_reshape_2d(ctx, own, n * n_kv_heads, n_tokens);
}

// The same as [cells or d, rows, heads, span], as llama.cpp has it.
static ggml_tensor * attend_many(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                 const block_t & block, ggml_tensor * mask, ggml_tensor * sinks,
                                 const llama_hparams & hparams, float kq_scale) {
    const int64_t n_heads = q->ne[1], n_rows = block.n_rows, n_spans = block.n_spans;

    q = ggml_view_4d(ctx, q, q->ne[0], n_heads, n_rows, n_spans, q->nb[1], q->nb[2], q->nb[2] * n_rows, 0);
    q = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * kq = nullptr;
    for (const extent & span : block.shared) {
        ggml_tensor * scores = scores_of(ctx, cells_of_span(ctx, k, span, 0, 1, false), q);
        kq                   = kq ? ggml_concat(ctx, kq, scores, 0) : scores;
    }
    ggml_tensor * own = scores_of(ctx, cells_of_span(ctx, k, block.own, block.stride, block.n_spans, false), q);
    kq                = capped(ctx, kq ? ggml_concat(ctx, kq, own, 0) : own, hparams);
    kq                = ggml_soft_max_ext(ctx, kq, mask, kq_scale, 0.0f);
    ggml_soft_max_add_sinks(kq, sinks);

    size_t        at  = 0; // bytes
    ggml_tensor * kqv = nullptr;
    const auto    add = [&](const extent & span, uint32_t stride, uint32_t n) {
        ggml_tensor * weights =
            ggml_view_4d(ctx, kq, span.n, n_rows, n_heads, n_spans, kq->nb[1], kq->nb[2], kq->nb[3], at);
        ggml_tensor * part = ggml_mul_mat(ctx, cells_of_span(ctx, v, span, stride, n, false), weights);
        kqv                = kqv ? ggml_add(ctx, kqv, part) : part;
        at += span.n * kq->nb[0];
    };
    for (const extent & span : block.shared) {
        add(span, 0, 1);
    }
    add(block.own, block.stride, block.n_spans);
    return ggml_cont_2d(ctx, ggml_permute(ctx, kqv, 0, 2, 1, 3), kqv->ne[0] * n_heads, n_rows * n_spans);
}

// llama.cpp's own operation, which also knows flash attention, ALiBi and multi-head latent attention. It wants the
// cells in dimension 2, or 0 when they are transposed.
static ggml_tensor * attend_llama(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                  const block_t & block, ggml_tensor * mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                                  float kq_scale, int il) {
    const auto spans = [&](ggml_tensor * kv) {
        const bool   transposed = kv->nb[1] > kv->nb[2];
        const size_t cell       = kv->nb[transposed ? 0 : 2];
        return ggml_view_4d(graph.ctx0, kv, transposed ? block.own.n : kv->ne[0], kv->ne[1],
                            transposed ? kv->ne[2] : block.own.n, block.n_spans, kv->nb[1], kv->nb[2],
                            cell * block.stride, cell * block.own.begin);
    };
    ggml_tensor * keys   = spans(k);
    ggml_tensor * values = spans(v);
    return graph.build_attn_mha(q, keys, values, nullptr, mask, sinks, v_mla, 0, kq_scale, il);
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
                      ggml_type mask_type, layout_t most) {
    const llama_hparams & hparams = graph.hparams;
    half.most                     = most;
    for (uint32_t layer = 0; layer < hparams.n_layer(); ++layer) {
        const uint32_t gqa = std::max(hparams.n_gqa(layer), 1u);
        half.even &= gqa == half.gqa || layer == 0;
        half.gqa = std::max(half.gqa, gqa);
    }
    half.plan      = plan_of(*input.state, hparams, graph.ubatch, window, most);
    int64_t n_rows = 0;
    for (const block_t & block : half.plan.blocks) {
        const int64_t n = int64_t(block.n_rows) * half.copies(block);
        half.masks.push_back(half.layout(block) == layout_t::few
                                 ? ggml_new_tensor_3d(graph.ctx0, mask_type, block.n_cells(), n, block.n_spans)
                                 : ggml_new_tensor_4d(graph.ctx0, mask_type, block.n_cells(), n, 1, block.n_spans));
        ggml_set_input(half.masks.back());
        n_rows += int64_t(block.tokens.size());
    }
    if (!half.plan.direct) {
        half.rows = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n_rows);
        half.back = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_tokens);
        ggml_set_input(half.rows);
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
    half_t &   half  = input->halves[half_at];
    const bool plain = !graph.cparams.flash_attn && !v_mla && hparams.f_max_alibi_bias == 0.0f &&
                       graph.arch != LLM_ARCH_GROK && v->nb[1] > v->nb[2];
    if (half.masks.empty()) {
        const layout_t most = !plain ? layout_t::llama : sinks ? layout_t::many : layout_t::few;
        make_half(half, *input, graph, half_at == 1, kq_mask->type, most);
    }
    if ((!plain && half.most != layout_t::llama) || (sinks && half.most == layout_t::few)) {
        input->count_whole(); // a layer that differs from those before it
        return nullptr;
    }
    const plan_t & plan   = half.plan;
    ggml_context * ctx    = graph.ctx0;
    const int64_t  n_embd = q->ne[0], n_heads = q->ne[1];
    if (!plan.direct) {
        ggml_tensor * flat = ggml_is_contiguous(q) ? q : ggml_cont(ctx, q);
        q                  = ggml_get_rows(ctx, ggml_reshape_2d(ctx, flat, n_embd * n_heads, q->ne[2]), half.rows);
        q                  = ggml_reshape_3d(ctx, q, n_embd, n_heads, q->ne[1]);
    }
    std::vector<ggml_tensor *> parts;
    int64_t                    at = 0;
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
        const block_t & block  = plan.blocks[b];
        const int64_t   n_rows = int64_t(block.tokens.size());
        ggml_tensor *   mine   = ggml_view_3d(ctx, q, n_embd, n_heads, n_rows, q->nb[1], q->nb[2], at * q->nb[2]);
        ggml_tensor *   mask   = half.masks[b];
        switch (half.layout(block)) {
        case layout_t::few:
            parts.push_back(attend_few(ctx, mine, k, v, block, mask, hparams, kq_scale));
            break;
        case layout_t::many:
            parts.push_back(attend_many(ctx, mine, k, v, block, mask, sinks, hparams, kq_scale));
            break;
        case layout_t::llama:
            parts.push_back(attend_llama(graph, mine, k, v, block, mask, sinks, v_mla, kq_scale, il));
            break;
        }
        at += n_rows;
    }
    while (parts.size() > 1) { // in pairs: each value is copied log(n) times
        std::vector<ggml_tensor *> joined;
        for (size_t i = 0; i < parts.size(); i += 2) {
            joined.push_back(i + 1 < parts.size() ? ggml_concat(ctx, parts[i], parts[i + 1], 1) : parts[i]);
        }
        parts = std::move(joined);
    }
    return plan.direct ? parts[0] : ggml_get_rows(ctx, parts[0], half.back);
}

} // namespace tgr
