// Per-session attention. llama.cpp lets every token look, masked, at every cell of the cache; here the tokens of a
// session look at a span of cells, from the session's first to the last that it uses. Spans of the same kind at equal
// distances form one block, which is one attention operation: [cells, rows, heads, spans]. A span with fewer tokens
// than the block has rows, or none, is padded with rows whose result nobody reads.
#include "graph_state.h"

#include "llama-adapter.h"
#include "llama-hparams.h"
#include "llama-kv-cells.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>

namespace tgr {

static constexpr size_t   MAX_BLOCKS = 8;   // more are merged: each takes some twenty nodes in every layer
static constexpr uint64_t BLOCK_COST = 256; // of one more block, in tokens times cells

uint32_t session_attention_nodes(uint32_t n_layer) {
    return n_layer * (MAX_BLOCKS * 24 + 8);
}

struct block_t {
    uint32_t begin, stride, n_kv; // cells
    uint32_t n_spans, n_rows;

    std::vector<int32_t> tokens; // [n_spans][n_rows] place in the micro-batch, -1 = padding

    uint32_t end() const { return begin + (n_spans - 1) * stride + n_kv; }

    uint64_t cost() const { return uint64_t(n_spans) * n_rows * n_kv + BLOCK_COST; }

    bool same_shape(const block_t & other) const {
        return begin == other.begin && stride == other.stride && n_kv == other.n_kv && n_spans == other.n_spans &&
               n_rows == other.n_rows;
    }
};

struct plan_t {
    std::vector<block_t> blocks; // none: attention over the whole cache
    bool                 direct; // their rows are the tokens in order

    bool same_shape(const plan_t & other) const {
        return direct == other.direct &&
               std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), other.blocks.end(),
                          [](const block_t & a, const block_t & b) { return a.same_shape(b); });
    }
};

// The tokens of a micro-batch that belong to one group.
struct share_t {
    graph_group          group;
    std::vector<int32_t> tokens;

    uint32_t n_kv() const { return group.end - group.begin; }
    uint32_t kind() const { // one, few or many tokens: those of one kind fit into one block
        const size_t n = tokens.size();
        return n <= 1 ? 0 : n <= 16 ? 1 : n <= 128 ? 2 : 3;
    }
};

static std::vector<share_t> shares_of(const graph_state_t & state, const llama_ubatch & ubatch) {
    std::vector<share_t> shares(state.groups.size());
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const int32_t group = state.group_of[ubatch.data->batch_idxs[i]];
        shares[group].group = state.groups[group];
        shares[group].tokens.push_back(int32_t(i));
    }
    shares.erase(std::remove_if(shares.begin(), shares.end(), [](const share_t & s) { return s.tokens.empty(); }),
                 shares.end());
    std::sort(shares.begin(), shares.end(), [](const share_t & a, const share_t & b) {
        return std::make_tuple(a.kind(), a.group.size, a.group.begin) <
               std::make_tuple(b.kind(), b.group.size, b.group.begin);
    });
    return shares;
}

// Spans grow by so many cells at a time, so that graphs can be used again.
static uint32_t padded(uint32_t n_kv) {
    return GGML_PAD(n_kv, 64);
}

static block_t block_of(const graph_state_t & state, const share_t & share) {
    const graph_group & group = share.group;
    const uint32_t      n_kv  = std::min(padded(share.n_kv()), state.kv->get_size() - group.begin);
    return { group.begin, group.size, n_kv, 1, uint32_t(share.tokens.size()), share.tokens };
}

// Adds a share to a block when its span is one of the block's kind and little padding is needed.
static bool extend(const graph_state_t & state, block_t & block, const share_t & share) {
    const uint32_t distance = share.group.begin - block.begin;
    if (share.group.size != block.stride || share.group.begin < block.begin || distance % block.stride != 0 ||
        distance / block.stride < block.n_spans) {
        return false;
    }
    block_t larger = block;
    larger.n_spans = distance / block.stride + 1;
    larger.n_rows  = std::max(block.n_rows, uint32_t(share.tokens.size()));
    larger.n_kv    = std::min(std::max(block.n_kv, padded(share.n_kv())), block.stride);
    if (share.group.begin + larger.n_kv > state.kv->get_size() ||
        larger.cost() > 2 * (block.cost() + uint64_t(share.tokens.size()) * share.n_kv() + BLOCK_COST)) {
        return false;
    }
    larger.tokens.assign(size_t(larger.n_spans) * larger.n_rows, -1);
    for (uint32_t w = 0; w < block.n_spans; ++w) {
        std::copy_n(block.tokens.begin() + w * block.n_rows, block.n_rows, larger.tokens.begin() + w * larger.n_rows);
    }
    std::copy(share.tokens.begin(), share.tokens.end(), larger.tokens.end() - larger.n_rows);
    block = std::move(larger);
    return true;
}

using blocks_t = std::vector<block_t>;

// One span over all of them.
static block_t joined(const graph_state_t & state, blocks_t::const_iterator first, blocks_t::const_iterator last) {
    block_t  all{ first->begin, 0, 0, 1, 0, {} };
    uint32_t end = 0;
    for (auto block = first; block != last; ++block) {
        all.begin = std::min(all.begin, block->begin);
        end       = std::max(end, block->end());
        std::copy_if(block->tokens.begin(), block->tokens.end(), std::back_inserter(all.tokens),
                     [](int32_t token) { return token >= 0; });
    }
    std::sort(all.tokens.begin(), all.tokens.end());
    all.n_rows = uint32_t(all.tokens.size());
    all.n_kv = all.stride = std::min(padded(end - all.begin), state.kv->get_size() - all.begin);
    return all;
}

static uint64_t cost_of(const blocks_t & blocks) {
    return std::accumulate(blocks.begin(), blocks.end(), uint64_t(0),
                           [](uint64_t sum, const block_t & block) { return sum + block.cost(); });
}

// Joins neighbours until there are few enough, each time the closest ones.
static void join_most(const graph_state_t & state, blocks_t & blocks) {
    std::sort(blocks.begin(), blocks.end(), [](const block_t & a, const block_t & b) { return a.begin < b.begin; });
    while (blocks.size() > MAX_BLOCKS) {
        const auto area = [&](size_t i) {
            const block_t &a = blocks[i], &b = blocks[i + 1];
            return uint64_t(a.tokens.size() + b.tokens.size()) * (std::max(a.end(), b.end()) - a.begin);
        };
        size_t best = 0;
        for (size_t i = 1; i + 1 < blocks.size(); ++i) {
            best = area(i) < area(best) ? i : best;
        }
        const auto at = blocks.begin() + best;
        *at           = joined(state, at, at + 2);
        blocks.erase(at + 1);
    }
}

static plan_t plan_of(const graph_state_t * state, const llama_ubatch & ubatch) {
    plan_t plan{};
    if (!state || !state->kv || !ubatch.data || ubatch.data->batch_idxs.size() != ubatch.n_tokens ||
        state->group_of.empty()) {
        return plan;
    }
    auto & blocks = plan.blocks;
    for (const share_t & share : shares_of(*state, ubatch)) {
        const auto fits = [&](block_t & block) { return extend(*state, block, share); };
        if (std::none_of(blocks.rbegin(), blocks.rend(), fits)) {
            blocks.push_back(block_of(*state, share));
        }
    }
    join_most(*state, blocks);
    block_t all = joined(*state, blocks.begin(), blocks.end());
    if (all.cost() < cost_of(blocks)) {
        blocks.assign(1, std::move(all));
    }
    plan.direct  = true;
    int32_t next = 0;
    for (const block_t & block : blocks) {
        for (const int32_t token : block.tokens) {
            plan.direct &= token == next++;
        }
    }
    return plan;
}

// The masks of the blocks, and which row of them every token is.
class graph_input_session_masks : public llm_graph_input_i {
public:
    graph_input_session_masks(const graph_state_t * state, bool enabled, const llama_ubatch & ubatch) :
        state(state),
        enabled(enabled),
        plan(enabled ? plan_of(state, ubatch) : plan_t{}) {}

    void set_input(const llama_ubatch * ubatch) override {
        std::vector<int32_t> gather, scatter(ubatch->n_tokens);
        for (size_t b = 0; b < plan.blocks.size(); ++b) {
            const block_t & block = plan.blocks[b];
            for (const int32_t token : block.tokens) {
                if (token >= 0) {
                    scatter[token] = int32_t(gather.size());
                }
                gather.push_back(std::max(token, 0));
            }
            if (masks[b]->type == GGML_TYPE_F16) {
                fill<ggml_fp16_t>(*ubatch, block, masks[b], ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
            } else {
                fill<float>(*ubatch, block, masks[b], 0.0f, -INFINITY);
            }
        }
        if (rows) {
            ggml_backend_tensor_set(rows, gather.data(), 0, ggml_nbytes(rows));
            ggml_backend_tensor_set(back, scatter.data(), 0, ggml_nbytes(back));
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        if (enabled) {
            plan_t     now  = plan_of(state, params.ubatch);
            const bool same = plan.same_shape(now);
            plan            = std::move(now);
            return same;
        }
        return true;
    }

    const graph_state_t * state;
    const bool            enabled;
    plan_t                plan;

    std::vector<ggml_tensor *> masks;          // [n_kv, n_rows or more, 1, n_spans] of each block
    ggml_tensor *              rows = nullptr; // I32, the token of every row of every block
    ggml_tensor *              back = nullptr; // I32 [n_tokens], the row of every token

private:
    template <class T>
    void fill(const llama_ubatch & ubatch, const block_t & block, ggml_tensor * mask, T keep, T drop) {
        std::vector<T> values(ggml_nelements(mask), drop);
        for (size_t row = 0; row < block.tokens.size(); ++row) {
            const uint32_t span = uint32_t(row / block.n_rows);
            T *            to   = values.data() + (span * mask->ne[1] + row % block.n_rows) * block.n_kv;
            fill_row(ubatch, block, row, block.begin + span * block.stride, to, keep);
            for (int64_t copy = 1; block.n_rows == 1 && copy < mask->ne[1]; ++copy) {
                std::copy_n(to, block.n_kv, to + copy * block.n_kv); // see attend_one
            }
        }
        ggml_backend_tensor_set(mask, values.data(), 0, ggml_nbytes(mask));
    }

    template <class T>
    void fill_row(const llama_ubatch & ubatch, const block_t & block, size_t row, uint32_t begin, T * to, T keep) {
        const int32_t token = block.tokens[row];
        if (token < 0) {
            to[0] = keep; // the softmax of nothing is NaN
            return;
        }
        const llama_seq_id seq    = ubatch.seq_id[token][0];
        const llama_pos    pos    = ubatch.pos[token];
        const int32_t      before = row % block.n_rows > 0 ? block.tokens[row - 1] : -1;
        if (before >= 0 && ubatch.seq_id[before][0] == seq && ubatch.pos[before] + 1 == pos) {
            std::copy_n(to - block.n_kv, block.n_kv, to); // the cells of the token before, and its own
            to[state->kv->tgr_cells[ubatch.data->batch_idxs[token]] - begin] = keep;
            return;
        }
        const llama_kv_cells & cells = state->kv->get_cells(seq);
        for (uint32_t i = 0; i < block.n_kv; ++i) {
            if (cells.seq_has(begin + i, seq) && cells.pos_get(begin + i) <= pos) {
                to[i] = keep;
            }
        }
    }
};

// One row in each span: the query heads that share a head of keys become the rows of one multiplication, which is
// much faster on a CPU. The mask has a row for each of them.
static ggml_tensor * attend_one(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                ggml_tensor * mask, float kq_scale) {
    const int64_t n_shared = q->ne[1] / k->ne[1];
    q                      = ggml_reshape_4d(ctx, q, q->ne[0], n_shared, k->ne[1], q->ne[2]);
    ggml_tensor * kq       = ggml_mul_mat(ctx, ggml_permute(ctx, k, 0, 2, 1, 3), q);
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    kq                = ggml_soft_max_ext(ctx, kq, mask, kq_scale, 0.0f);
    ggml_tensor * kqv = ggml_mul_mat(ctx, ggml_permute(ctx, v, 0, 2, 1, 3), kq);
    return ggml_reshape_2d(ctx, kqv, kqv->ne[0] * kqv->ne[1] * kqv->ne[2], kqv->ne[3]);
}

static uint32_t most_shared(const llama_hparams & hparams) {
    uint32_t most = 1;
    for (uint32_t layer = 0; layer < hparams.n_layer(); ++layer) {
        most = std::max(most, hparams.n_gqa(layer));
    }
    return most;
}

static graph_input_session_masks * make_input(const llm_graph_context & graph, const graph_state_t * state,
                                              ggml_type mask_type) {
    // masks that are more than causal are left to llama.cpp; so are GPUs, on which this is untested
    const llama_hparams & hparams = graph.hparams;
    const bool            enabled = graph.cparams.causal_attn && !hparams.use_alibi && hparams.n_pos_per_embd() == 1 &&
                                    hparams.swa_type == LLAMA_SWA_TYPE_NONE && !state->on_gpu;
    auto                  made    = std::make_unique<graph_input_session_masks>(state, enabled, graph.ubatch);
    auto *                input   = static_cast<graph_input_session_masks *>(graph.res->add_input(std::move(made)));
    const plan_t &        plan    = input->plan;
    int64_t               n_rows  = 0;
    for (const block_t & block : plan.blocks) {
        const int64_t n_rows_mask =
            block.n_rows == 1 && !graph.cparams.flash_attn ? most_shared(hparams) : block.n_rows;
        ggml_tensor * mask = ggml_new_tensor_4d(graph.ctx0, mask_type, block.n_kv, n_rows_mask, 1, block.n_spans);
        ggml_set_input(mask);
        input->masks.push_back(mask);
        n_rows += int64_t(block.tokens.size());
    }
    if (!plan.blocks.empty() && !plan.direct) {
        input->rows = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n_rows);
        input->back = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_tokens);
        ggml_set_input(input->rows);
        ggml_set_input(input->back);
    }
    return input;
}

// The spans of a block in the keys or the values, whose cells are in dimension 2, or 0 when transposed.
static ggml_tensor * spans_of(ggml_context * ctx, ggml_tensor * kv, const block_t & block) {
    const int    dim = kv->nb[1] > kv->nb[2] ? 0 : 2;
    int64_t      ne[3]{ kv->ne[0], kv->ne[1], kv->ne[2] };
    const size_t cell = kv->nb[dim];
    ne[dim]           = block.n_kv;
    return ggml_view_4d(ctx, kv, ne[0], ne[1], ne[2], block.n_spans, kv->nb[1], kv->nb[2], cell * block.stride,
                        cell * block.begin);
}

ggml_tensor * attend(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                     ggml_tensor * kq_b, ggml_tensor * kq_mask, ggml_tensor * sinks, ggml_tensor * v_mla,
                     float kq_scale, int il) {
    const graph_state_t * state = graph.cvec ? graph.cvec->tgr.get() : nullptr;
    const auto *          whole = find_input<llm_graph_input_attn_kv>(*graph.res);
    if (!state || !whole || whole->self_kq_mask_cnv != kq_mask || kq_b || v_mla || k->ne[3] != 1 ||
        q->ne[2] != graph.n_tokens || graph.cparams.training) {
        return nullptr;
    }
    auto * input = find_input<graph_input_session_masks>(*graph.res);
    if (!input) {
        input = make_input(graph, state, kq_mask->type);
    }
    const plan_t & plan = input->plan;
    if (plan.blocks.empty()) {
        return nullptr;
    }
    ggml_context * ctx     = graph.ctx0;
    const int64_t  n_embd  = q->ne[0];
    const int64_t  n_heads = q->ne[1];
    if (!plan.direct) {
        ggml_tensor * flat = ggml_is_contiguous(q) ? q : ggml_cont(ctx, q);
        q                  = ggml_get_rows(ctx, ggml_reshape_2d(ctx, flat, n_embd * n_heads, q->ne[2]), input->rows);
        q                  = ggml_reshape_3d(ctx, q, n_embd, n_heads, q->ne[1]);
    }
    const bool simple = !graph.cparams.flash_attn && !sinks && !graph.hparams.attn_soft_cap &&
                        graph.hparams.f_max_alibi_bias == 0.0f && graph.arch != LLM_ARCH_GROK && v->nb[1] > v->nb[2];
    std::vector<ggml_tensor *> parts;
    int64_t                    at = 0;
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
        const block_t & block  = plan.blocks[b];
        const int64_t   n_rows = int64_t(block.tokens.size());
        ggml_tensor *   mine   = ggml_view_3d(ctx, q, n_embd, n_heads, n_rows, q->nb[1], q->nb[2], at * q->nb[2]);
        ggml_tensor *   keys   = spans_of(ctx, k, block);
        ggml_tensor *   values = spans_of(ctx, v, block);
        ggml_tensor *   mask   = input->masks[b];
        parts.push_back(simple && block.n_rows == 1 && ggml_is_contiguous(mine)
                            ? attend_one(ctx, mine, keys, values, mask, kq_scale)
                            : graph.build_attn_mha(mine, keys, values, nullptr, mask, sinks, nullptr, 0, kq_scale, il));
        at += n_rows;
    }
    while (parts.size() > 1) { // in pairs: each value is copied log(n) times
        std::vector<ggml_tensor *> joined;
        for (size_t i = 0; i < parts.size(); i += 2) {
            joined.push_back(i + 1 < parts.size() ? ggml_concat(ctx, parts[i], parts[i + 1], 1) : parts[i]);
        }
        parts = std::move(joined);
    }
    return plan.direct ? parts[0] : ggml_get_rows(ctx, parts[0], input->back);
}

} // namespace tgr
