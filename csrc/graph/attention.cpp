#include "graph/attention.h"

#include "ggml.h"
#include "graph/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

namespace tgr {

//
// the plan
//

void attention_plan_t::add(const std::vector<extent> & view, const std::vector<seen_t> & tokens) {
    const uint32_t begin = tokens.front().first / BLOCK * BLOCK, end = tokens.back().end;
    const uint32_t number = uint32_t(sequences.size());
    sequences.push_back({ uint32_t(rows.size()), uint32_t(tokens.size()), begin, end - begin });
    rows.insert(rows.end(), tokens.begin(), tokens.end());

    uint32_t position = 0, next = begin; // next: where a block begins
    for (const extent & run : view) {
        const uint32_t until = std::min(position + run.n, end);
        for (uint32_t at = std::max(position, begin); at < until;) {
            if (at == next) {
                blocks.push_back({ at, 0, uint32_t(extents.size()), 0, uint32_t(uses.size()), 1 });
                uses.push_back(number);
                next += BLOCK;
            }
            block_t &      block = blocks.back();
            const uint32_t n = std::min(until, next) - at, cell = run.begin + (at - position);
            if (block.n_extents > 0 && extents.back().begin + extents.back().n == cell) {
                extents.back().n += n;
            } else {
                extents.push_back({ cell, n });
                ++block.n_extents;
            }
            block.n += n;
            at += n;
        }
        position += run.n;
    }
}

void attention_plan_t::finish() {
    const auto is_before = [&](const block_t & a, const block_t & b) {
        const auto cells = [&](const block_t & of) { return extents.begin() + of.first_extent; };
        const auto less  = [](const extent & x, const extent & y) {
            return x.begin != y.begin ? x.begin < y.begin : x.n < y.n;
        };
        return a.begin != b.begin ? a.begin < b.begin
                                  : std::lexicographical_compare(cells(a), cells(a) + a.n_extents, cells(b),
                                                                 cells(b) + b.n_extents, less);
    };
    std::stable_sort(blocks.begin(), blocks.end(), is_before);
    std::vector<block_t>  different;
    std::vector<uint32_t> users;
    for (const block_t & block : blocks) {
        if (different.empty() || is_before(different.back(), block)) {
            different.push_back(block);
            different.back().first_use = uint32_t(users.size());
            different.back().n_uses    = 0;
        }
        users.push_back(uses[block.first_use]);
        ++different.back().n_uses;
    }
    blocks = std::move(different);
    uses   = std::move(users);
}

//
// the operation
//

static constexpr size_t BLOCK = attention_plan_t::BLOCK;
static void             to_floats(const rows_t & from, ggml_type type, float * to, size_t stride) {
    if (type == GGML_TYPE_F16) {
        return from_f16(from, to, stride);
    }
    for (size_t i = 0; i < from.n_rows; ++i) {
        const char * row = static_cast<const char *>(from.data) + i * from.stride;
        if (type == GGML_TYPE_F32) {
            std::memcpy(to + i * stride, row, from.n * sizeof(float));
        } else {
            ggml_get_type_traits(type)->to_float(row, to + i * stride, int64_t(from.n));
        }
    }
}

// To as many bits as ggml leaves numbers that it multiplies by those of that type.
static void round_to(ggml_type type, float * x, size_t n) {
    if (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
        drop_bits(type == GGML_TYPE_F16 ? 13 : 16, x, n);
    }
}

namespace {
// What one thread computes at a time: some rows, and some of the query heads of one head of keys. A query is a row and
// such a head.
struct unit_t {
    const attention_plan_t &   plan;
    const attention_scores_t & scores;
    const ggml_tensor *        q, *k, *v, *sinks;
    uint32_t                   first_row, end_row;
    size_t                     head;    // of keys
    size_t                     q_head;  // the first one
    size_t                     n_heads; // query heads

    using sequence_t = attention_plan_t::sequence_t;
    using block_t    = attention_plan_t::block_t;

    bool   transposed() const { return v->nb[1] > v->nb[2]; }
    size_t d_k() const { return size_t(q->ne[0]); }
    size_t d_v() const { return size_t(transposed() ? v->ne[2] : v->ne[0]); }

    // Numbers that a thread keeps from one operation to the next.
    struct buffers_t {
        std::vector<float>  queries, weights, sums, tile, cells;
        std::vector<size_t> begins; // of the weights of each query, from the first position of its first block on
        std::vector<const float *> factors;
        std::vector<float *>       results;
    };
    static buffers_t & buffers() {
        static thread_local buffers_t one;
        return one;
    }

    float * result(float * out, size_t query) const {
        const size_t token = size_t(plan.rows[first_row + query / n_heads].token);
        return out + (token * size_t(q->ne[1]) + q_head + query % n_heads) * d_v();
    }

    // Of all sequences: visit(sequence, row).
    template <class Visit> void each_row(Visit && visit) const {
        for (const sequence_t & sequence : plan.sequences) {
            const uint32_t end = std::min(sequence.first_row + sequence.n_rows, end_row);
            for (uint32_t row = std::max(sequence.first_row, first_row); row < end; ++row) {
                visit(sequence, row);
            }
        }
    }

    // visit(block, n) for each block and as many of its positions as are seen; before, visit_query(query, sequence,
    // block) for each query that sees some.
    template <class Query, class Visit> void each_block(Query && visit_query, Visit && visit) const {
        for (const block_t & block : plan.blocks) {
            uint32_t n = 0;
            for (uint32_t use = block.first_use; use < block.first_use + block.n_uses; ++use) {
                const sequence_t & sequence = plan.sequences[plan.uses[use]];
                const uint32_t     end      = std::min(sequence.first_row + sequence.n_rows, end_row);
                for (uint32_t row = std::max(sequence.first_row, first_row); row < end; ++row) {
                    const seen_t & seen = plan.rows[row];
                    if (seen.end <= block.begin || seen.first >= block.begin + block.n) {
                        continue;
                    }
                    n = std::max(n, std::min(seen.end - block.begin, block.n));
                    for (size_t i = 0; i < n_heads; ++i) {
                        visit_query((row - first_row) * n_heads + i, sequence, block);
                    }
                }
            }
            if (n > 0) {
                visit(block, n);
            }
        }
    }

    // visit(place in the block, first cell, number of cells) for each extent of the positions from `first` up to `end`.
    template <class Visit> void each_extent(const block_t & block, size_t first, size_t end, Visit && visit) const {
        size_t at = 0;
        for (uint32_t e = block.first_extent; e < block.first_extent + block.n_extents && at < end; ++e) {
            const extent & cells = plan.extents[e];
            const size_t   from = std::max(at, first), until = std::min(at + cells.n, end);
            if (from < until) {
                visit(from, cells.begin + (from - at), until - from);
            }
            at += cells.n;
        }
    }

    void compute(float * out) const {
        buffers_t &  b         = buffers();
        const size_t n_queries = (end_row - first_row) * n_heads, height = whole(d_v());
        copy_queries(b);
        make_room_for_weights(b);
        read_keys(b);
        each_row([&](const sequence_t & sequence, uint32_t row) {
            for (size_t i = 0; i < n_heads; ++i) {
                weigh(b.weights.data() + b.begins[(row - first_row) * n_heads + i], sequence, plan.rows[row],
                      q_head + i);
            }
        });
        b.sums.assign(n_queries * height, 0.0f);
        read_values(b);
        for (size_t i = 0; i < n_queries; ++i) {
            std::copy_n(b.sums.data() + i * height, d_v(), result(out, i));
        }
    }

    void copy_queries(buffers_t & b) const {
        const size_t n_queries = (end_row - first_row) * n_heads, width = whole(d_k());
        b.queries.assign(n_queries * width, 0.0f);
        for (size_t i = 0; i < n_queries; ++i) {
            const char * from = static_cast<const char *>(q->data) + (q_head + i % n_heads) * q->nb[1] +
                                size_t(plan.rows[first_row + i / n_heads].token) * q->nb[2];
            std::memcpy(b.queries.data() + i * width, from, d_k() * sizeof(float));
        }
        round_to(k->type, b.queries.data(), n_queries * width);
    }

    void make_room_for_weights(buffers_t & b) const {
        size_t n = 0;
        b.begins.clear();
        each_row([&](const sequence_t & sequence, uint32_t) {
            for (size_t i = 0; i < n_heads; ++i) {
                b.begins.push_back(n);
                n += whole(sequence.n) + LANES; // soft_max writes a whole vector behind the last one
            }
        });
        b.weights.resize(std::max(n, b.weights.size()));
    }

    void read_keys(buffers_t & b) const {
        constexpr size_t tile = 64, ahead = 24; // cells
        const size_t     width = whole(d_k());
        b.tile.assign(tile * width, 0.0f);
        b.factors.clear();
        b.results.clear();
        const auto add_query = [&](size_t i, const sequence_t & sequence, const block_t & block) {
            b.factors.push_back(b.queries.data() + i * width);
            b.results.push_back(b.weights.data() + b.begins[i] + (block.begin - sequence.begin));
        };
        each_block(add_query, [&](const block_t & block, uint32_t n) {
            for (size_t first = 0; first < n; first += tile) {
                const size_t end = std::min<size_t>(first + tile, n);
                each_extent(block, first, end, [&](size_t at, size_t cell, size_t n_cells) {
                    const char * from = static_cast<const char *>(k->data) + head * k->nb[1] + cell * k->nb[2];
                    to_floats({ from, k->nb[2], n_cells, d_k(), ahead * k->nb[2] }, k->type,
                              b.tile.data() + (at - first) * width, width);
                });
                products(b.tile.data(), width, whole(end - first, ROWS), b.factors.data(), b.factors.size(), width,
                         b.results.data(), false);
                for (float *& result : b.results) {
                    result += tile;
                }
            }
            b.factors.clear();
            b.results.clear();
        });
    }

    // The scores of a query, from the first position of its first block on, become weights; those of positions that it
    // does not see are zero.
    void weigh(float * x, const sequence_t & sequence, const seen_t & seen, size_t q_head) const {
        const size_t first = seen.first - sequence.begin, end = seen.end - sequence.begin;
        if (scores.cap != 0.0f) {
            for (size_t i = first; i < end; ++i) {
                x[i] = scores.cap * std::tanh(x[i] * scores.factor / scores.cap);
            }
        }
        soft_max(x + first, end - first, scores.scale,
                 sinks ? static_cast<const float *>(sinks->data) + q_head : nullptr);
        const size_t last = std::min(whole(end, BLOCK), whole(sequence.n)); // that are multiplied
        std::fill(x, x + first, 0.0f);
        std::fill(x + end, x + std::max(end, last), 0.0f);
        if (scores.rounds) {
            round_to(v->type, x, last);
        }
    }

    void read_values(buffers_t & b) const {
        constexpr size_t tile      = LANES; // of the numbers of each value
        const size_t     height    = whole(d_v());
        const auto       add_query = [&](size_t i, const sequence_t & sequence, const block_t & block) {
            b.factors.push_back(b.weights.data() + b.begins[i] + (block.begin - sequence.begin));
            b.results.push_back(b.sums.data() + i * height);
        };
        b.tile.assign((transposed() ? tile : height) * BLOCK, 0.0f);
        each_block(add_query, [&](const block_t & block, uint32_t n) {
            if (!transposed()) {
                copy_columns(b, block, n);
            }
            for (size_t first = 0; first < d_v(); first += tile) {
                float * rows = b.tile.data();
                if (transposed()) {
                    copy_rows(rows, block, n, first, std::min(tile, d_v() - first));
                } else {
                    rows += first * BLOCK;
                }
                for (size_t i = 0; n % LANES != 0 && i < tile; ++i) {
                    std::fill(rows + i * BLOCK + n, rows + i * BLOCK + whole(n), 0.0f);
                }
                products(rows, BLOCK, tile, b.factors.data(), b.factors.size(), whole(n), b.results.data(), true);
                for (float *& result : b.results) {
                    result += tile;
                }
            }
            b.factors.clear();
            b.results.clear();
        });
    }

    // n cells of transposed values: some of their numbers.
    void copy_rows(float * tile, const block_t & block, size_t n, size_t first, size_t n_rows) const {
        each_extent(block, 0, n, [&](size_t at, size_t cell, size_t n_cells) {
            const char * from =
                static_cast<const char *>(v->data) + head * v->nb[1] + first * v->nb[2] + cell * v->nb[0];
            // the next block of the same row, or the rows that follow
            const size_t ahead = n_cells == BLOCK && block.begin > 0 ? n_cells * v->nb[0] : 4 * v->nb[2];
            to_floats({ from, v->nb[2], n_rows, n_cells, ahead }, v->type, tile + at, BLOCK);
        });
    }

    // n cells of values that are not transposed, LANES at a time.
    void copy_columns(buffers_t & b, const block_t & block, size_t n) const {
        b.cells.resize(LANES * d_v());
        each_extent(block, 0, n, [&](size_t at, size_t cell, size_t n_cells) {
            const char * from = static_cast<const char *>(v->data) + head * v->nb[1] + cell * v->nb[2];
            for (size_t i = 0; i < n_cells; i += LANES) {
                const size_t some = std::min(LANES, n_cells - i);
                to_floats({ from + i * v->nb[2], v->nb[2], some, d_v(), LANES * v->nb[2] }, v->type, b.cells.data(),
                          d_v());
                for (size_t j = 0; j < d_v(); ++j) {
                    for (size_t c = 0; c < some; ++c) {
                        b.tile[j * BLOCK + at + i + c] = b.cells[c * d_v() + j];
                    }
                }
            }
        });
    }
};

// The rows and the query heads of a unit, at most.
struct shares_t {
    size_t n_rows, n_heads;
};
} // namespace

// So many that all threads have something to do, and that the weights of a unit stay in a processor's cache.
static shares_t shares_of(const attention_plan_t & plan, size_t n_kv_heads, size_t gqa, size_t n_threads) {
    constexpr size_t most_weights = 1 << 18, few_queries = 32; // each part of a unit converts its cells again
    size_t           n_columns = 1;
    for (const attention_plan_t::sequence_t & sequence : plan.sequences) {
        n_columns = std::max<size_t>(n_columns, sequence.n);
    }
    shares_t   shares{ plan.rows.size(), gqa };
    const auto parts = [](size_t n, size_t of) { return (of + n - 1) / n; };
    while (shares.n_rows * shares.n_heads > 1) {
        const size_t n         = parts(shares.n_rows, plan.rows.size()) * parts(shares.n_heads, gqa) * n_kv_heads;
        const size_t n_queries = shares.n_rows * shares.n_heads;
        const bool   unfair    = n * 10 < parts(n_threads, n) * n_threads * 9; // a tenth of the time is lost
        if (!unfair && (n_queries <= few_queries || n_queries * n_columns <= most_weights)) {
            break;
        }
        size_t & share = shares.n_rows > 1 ? shares.n_rows : shares.n_heads;
        share          = (share + 1) / 2;
    }
    return shares;
}

void attend(float * out, const attention_plan_t & plan, const attention_scores_t & scores, const ggml_tensor * q,
            const ggml_tensor * k, const ggml_tensor * v, const ggml_tensor * sinks, int thread, int n_threads) {
    const size_t   n_kv_heads = size_t(k->ne[1]), gqa = size_t(q->ne[1]) / n_kv_heads, n_rows = plan.rows.size();
    const shares_t shares = shares_of(plan, n_kv_heads, gqa, size_t(n_threads));
    int            number = 0;
    for (size_t head = 0; head < n_kv_heads; ++head) {
        for (size_t row = 0; row < n_rows; row += shares.n_rows) {
            for (size_t i = 0; i < gqa; i += shares.n_heads) {
                // later rows of a prompt take longer: the threads take turns, every other time backwards
                const int turn = number++ % (2 * n_threads);
                if (std::min(turn, 2 * n_threads - 1 - turn) != thread) {
                    continue;
                }
                const size_t n = std::min(shares.n_heads, gqa - i), end = std::min(row + shares.n_rows, n_rows);
                const unit_t unit{
                    plan, scores, q, k, v, sinks, uint32_t(row), uint32_t(end), head, head * gqa + i, n
                };
                // nothing may be thrown in a thread of ggml; the engine reports numbers that are not finite
                try {
                    unit.compute(out);
                } catch (const std::bad_alloc &) {
                    for (size_t query = 0; query < (end - row) * n; ++query) {
                        std::fill_n(unit.result(out, query), unit.d_v(), NAN);
                    }
                }
            }
        }
    }
}

} // namespace tgr
