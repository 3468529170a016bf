// Attention, compared with a plain one in double.
#include "graph/attention.h"

#include "check.h"
#include "draw.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "graph/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

namespace tgr {

namespace {

struct Shape {
    ggml_type type;
    size_t    d_k, d_v, n_kv_heads, gqa;
    bool      transposed, sinks;
    float     cap;
};

// Keys and values of a cache, and queries of some tokens.
struct Drawn {
    static constexpr size_t N_CELLS = 1600;

    Shape              shape;
    size_t             n_tokens;
    ggml_context_ptr   context;
    ggml_tensor *      q, *k, *v, *sinks;
    attention_scores_t scores;

    Drawn(const Shape & shape, size_t n_tokens, test::Draw & draw) : shape(shape), n_tokens(n_tokens) {
        context.reset(ggml_init({ size_t(64) << 20, nullptr, false }));
        const auto n = [](size_t of) { return int64_t(of); };
        q            = tensor(GGML_TYPE_F32, n(shape.d_k), n(shape.n_kv_heads * shape.gqa), n(n_tokens), draw);
        k            = tensor(shape.type, n(shape.d_k), n(shape.n_kv_heads), N_CELLS, draw);
        v            = shape.transposed ? tensor(shape.type, N_CELLS, n(shape.d_v), n(shape.n_kv_heads), draw)
                                        : tensor(shape.type, n(shape.d_v), n(shape.n_kv_heads), N_CELLS, draw);
        if (shape.transposed) { // [cells, n_kv_heads, d_v]
            v = ggml_view_3d(context.get(), v, v->ne[0], v->ne[2], v->ne[1], v->nb[2], v->nb[1], 0);
        }
        sinks         = shape.sinks ? tensor(GGML_TYPE_F32, n(shape.n_kv_heads * shape.gqa), 1, 1, draw) : nullptr;
        scores.scale  = 1 / std::sqrt(float(shape.d_k));
        scores.cap    = shape.cap;
        scores.rounds = false;
    }

    ggml_tensor * tensor(ggml_type type, int64_t a, int64_t b, int64_t c, test::Draw & draw) {
        ggml_tensor *      made = ggml_new_tensor_3d(context.get(), type, a, b, c);
        std::vector<float> values(size_t(a * b * c));
        for (float & value : values) {
            value = float(draw.normal());
        }
        if (type == GGML_TYPE_F32) {
            std::memcpy(made->data, values.data(), ggml_nbytes(made));
        } else {
            ggml_quantize_chunk(type, values.data(), made->data, 0, b * c, a, nullptr);
        }
        return made;
    }

    std::vector<float> attend(const attention_plan_t & plan, int n_threads) const {
        std::vector<float>       out(shape.d_v * shape.n_kv_heads * shape.gqa * n_tokens);
        std::vector<std::thread> threads;
        for (int i = 0; i < n_threads; ++i) {
            threads.emplace_back([&, i] { tgr::attend(out.data(), plan, scores, q, k, v, sinks, i, n_threads); });
        }
        for (auto & thread : threads) {
            thread.join();
        }
        return out;
    }

    // A number of a key or value, as it is in the cache.
    double at(const ggml_tensor * of, size_t i, size_t head, size_t cell) const {
        const bool   across = of == v && shape.transposed;
        const char * row    = static_cast<const char *>(of->data) + head * of->nb[1] + (across ? i : cell) * of->nb[2];
        const size_t place  = across ? cell : i;
        if (of->type == GGML_TYPE_F32) {
            return reinterpret_cast<const float *>(row)[place];
        }
        if (of->type == GGML_TYPE_F16) {
            return ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t *>(row)[place]);
        }
        std::vector<float> values(size_t(of->ne[0]));
        ggml_get_type_traits(of->type)->to_float(row, values.data(), of->ne[0]);
        return values[place];
    }

    double query(size_t i, size_t head, size_t token) const {
        const double value = static_cast<const float *>(q->data)[(token * size_t(q->ne[1]) + head) * shape.d_k + i];
        return shape.type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(ggml_fp32_to_fp16(float(value))) : value;
    }

    // Of one token and head, which sees these cells.
    std::vector<double> plain(size_t token, size_t head, const std::vector<size_t> & cells) const {
        std::vector<double> weights;
        for (const size_t cell : cells) {
            double score = 0;
            for (size_t i = 0; i < shape.d_k; ++i) {
                score += query(i, head, token) * at(k, i, head / shape.gqa, cell);
            }
            score = scores.cap > 0 ? scores.cap * std::tanh(score / scores.cap) : score;
            weights.push_back(score * scores.scale);
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double       sum  = sinks ? std::exp(static_cast<const float *>(sinks->data)[head] - most) : 0;
        for (double & weight : weights) {
            sum += weight = std::exp(weight - most);
        }
        std::vector<double> result(shape.d_v);
        for (size_t c = 0; c < cells.size(); ++c) {
            for (size_t i = 0; i < shape.d_v; ++i) {
                result[i] += weights[c] / sum * at(v, i, head / shape.gqa, cells[c]);
            }
        }
        return result;
    }
};

struct Sequence {
    std::vector<extent> view;
    std::vector<seen_t> tokens;

    std::vector<size_t> cells(const seen_t & seen) const {
        std::vector<size_t> all;
        for (const extent & run : view) {
            for (uint32_t i = 0; i < run.n; ++i) {
                all.push_back(run.begin + i);
            }
        }
        return { all.begin() + seen.first, all.begin() + seen.end };
    }
};

// A prompt, forks of it with texts of their own in pieces, one with tokens of a window, and a text alone.
std::vector<Sequence> sequences(test::Draw & draw, int32_t & n_tokens) {
    std::vector<extent> pieces; // of 20 cells
    for (uint32_t begin = 700; begin < Drawn::N_CELLS; begin += 20) {
        pieces.push_back({ begin, 20 });
    }
    draw.shuffle(pieces);
    const uint32_t        n_prefix = uint32_t(draw.from(200, 600));
    std::vector<Sequence> all;
    for (uint32_t fork = 0; fork < 5; ++fork) {
        Sequence one;
        uint32_t n = 0;
        if (fork > 0) {
            one.view.push_back({ 0, n_prefix });
            n += n_prefix;
        }
        for (size_t i = 0; i < 2 + 2 * fork; ++i) {
            one.view.push_back(pieces.back());
            pieces.pop_back();
            n += 20;
        }
        const uint32_t n_new = fork == 1 ? 70 : uint32_t(draw.from(1, 4)), window = fork == 3 ? 150 : n;
        for (uint32_t end = n - n_new + 1; end <= n; ++end) {
            one.tokens.push_back({ n_tokens++, end > window ? end - window : 0, end });
        }
        all.push_back(one);
    }
    return all;
}

attention_plan_t plan_of(const std::vector<Sequence> & all) {
    attention_plan_t plan;
    for (const Sequence & one : all) {
        plan.add(one.view, one.tokens);
    }
    plan.finish();
    return plan;
}

const std::vector<Shape> SHAPES{
    { GGML_TYPE_F16, 64, 64, 3, 3, true, false, 0 },    { GGML_TYPE_F16, 128, 128, 2, 6, true, false, 0 },
    { GGML_TYPE_F32, 40, 24, 1, 2, true, true, 0 },     { GGML_TYPE_F16, 80, 80, 2, 1, false, false, 0 },
    { GGML_TYPE_Q8_0, 64, 32, 2, 2, false, true, 0 },   { GGML_TYPE_F32, 16, 16, 4, 1, true, false, 3 },
    { GGML_TYPE_F16, 576, 512, 1, 4, false, false, 0 },
};

} // namespace

TEST(attention_is_the_plain_one) {
    for (size_t i = 0; i < SHAPES.size(); ++i) {
        test::Draw   draw(i);
        int32_t      n_tokens = 0;
        const auto   all      = sequences(draw, n_tokens);
        const Drawn  drawn(SHAPES[i], size_t(n_tokens), draw);
        const auto   found   = drawn.attend(plan_of(all), 2);
        const size_t n_heads = SHAPES[i].n_kv_heads * SHAPES[i].gqa, d_v = SHAPES[i].d_v;
        for (const Sequence & one : all) {
            for (const seen_t & seen : one.tokens) {
                const size_t head = draw.below(n_heads), at = (size_t(seen.token) * n_heads + head) * d_v;
                const auto   plain = drawn.plain(size_t(seen.token), head, one.cells(seen));
                for (size_t j = 0; j < d_v; ++j) {
                    CHECK(std::abs(found[at + j] - plain[j]) < 2e-5);
                }
            }
        }
    }
}

TEST(a_token_has_the_same_bits_alone_and_with_others) {
    for (size_t i = 0; i < SHAPES.size(); ++i) {
        test::Draw         draw(100 + i);
        int32_t            n_tokens = 0;
        const auto         all      = sequences(draw, n_tokens);
        const Drawn        drawn(SHAPES[i], size_t(n_tokens), draw);
        std::vector<float> alone(SHAPES[i].d_v * SHAPES[i].n_kv_heads * SHAPES[i].gqa * size_t(n_tokens));
        for (const Sequence & one : all) {
            for (const seen_t & seen : one.tokens) {
                const auto found = drawn.attend(plan_of({ { one.view, { seen } } }), 1);
                for (size_t j = 0; j < alone.size(); ++j) { // zero where no token is computed
                    alone[j] += found[j];
                }
            }
        }
        CHECK(drawn.attend(plan_of(all), 1) == alone);
        CHECK(drawn.attend(plan_of(all), 3) == alone);
    }
}

TEST(products_have_the_same_bits_with_avx_512) {
    test::Draw draw(300);
    for (size_t nb = 1; nb <= 9; ++nb) {
        const size_t       na = 4 * draw.from(1, 6), n = LANES * draw.from(1, 17);
        std::vector<float> a(na * n), b(nb * n);
        for (std::vector<float> * of : { &a, &b }) {
            std::generate(of->begin(), of->end(), [&] { return float(draw.normal()); });
        }
        std::vector<std::vector<float>> found;
        for (const auto multiply : { products, products_of_eights }) {
            std::vector<float>         out(nb * na, 0.5f);
            std::vector<const float *> rows;
            std::vector<float *>       to;
            for (size_t i = 0; i < nb; ++i) {
                rows.push_back(&b[i * n]);
                to.push_back(&out[i * na]);
            }
            multiply(a.data(), n, na, rows.data(), nb, n, to.data(), nb % 2 == 0);
            found.push_back(out);
        }
        CHECK(found[0] == found[1]);
    }
}

TEST(attention_does_not_depend_on_where_the_cells_lie) {
    test::Draw            draw(200);
    const Shape           shape{ GGML_TYPE_F16, 64, 64, 2, 2, false, false, 0 };
    Drawn                 drawn(shape, 3, draw);
    std::vector<extent>   moved;
    std::vector<uint32_t> to(500);
    std::iota(to.begin(), to.end(), 800);
    draw.shuffle(to);
    for (uint32_t i = 0; i < 500; ++i) {
        for (ggml_tensor * of : { drawn.k, drawn.v }) {
            char * data = static_cast<char *>(of->data);
            std::memcpy(data + to[i] * of->nb[2], data + i * of->nb[2], of->nb[2]);
        }
        moved.push_back({ to[i], 1 });
    }
    const std::vector<seen_t> tokens{ { 0, 0, 498 }, { 1, 0, 499 }, { 2, 0, 500 } };
    CHECK(drawn.attend(plan_of({ { { { 0, 500 } }, tokens } }), 1) == drawn.attend(plan_of({ { moved, tokens } }), 1));
}

TEST(forks_share_a_block_of_cells) {
    const std::vector<seen_t> token{ { 0, 0, 600 } };
    const auto                n = attention_plan_t::BLOCK;
    const auto                plan =
        plan_of({ { { { 0, 600 } }, token }, { { { 0, 300 }, { 1000, 300 } }, token }, { { { 0, 600 } }, token } });
    std::vector<uint32_t> begins, users;
    for (const auto & block : plan.blocks) {
        begins.push_back(block.begin);
        users.push_back(block.n_uses);
    }
    CHECK_EQ(begins, (std::vector<uint32_t>{ 0, n, n, 2 * n, 2 * n }));
    CHECK_EQ(users, (std::vector<uint32_t>{ 3, 1, 2, 2, 1 }));
}

} // namespace tgr
