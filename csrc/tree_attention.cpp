#include "tree_attention.h"

#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// one machine code for each kind of processor, chosen when the library is loaded
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                           \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if __GNUC__ >= 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define FOR_EACH_PROCESSOR
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_F16C 1
#endif
#define INLINE static inline __attribute__((always_inline))

namespace tgr {

void tree_t::add(const std::vector<extent> & cells, uint32_t first, const std::vector<seen_t> & tokens) {
    uint32_t n_columns = 0;
    for (const extent & run : cells) {
        n_columns += run.n;
    }
    sequences.push_back({ uint32_t(rows.size()), uint32_t(tokens.size()), n_columns });
    for (const seen_t & token : tokens) {
        rows.push_back({ token.token, token.first - first, token.end - first });
    }
    cells_.push_back(cells);
}

void tree_t::finish() {
    std::vector<uint32_t> cuts; // a stretch lies between two of them
    for (const auto & cells : cells_) {
        for (const extent & run : cells) {
            cuts.push_back(run.begin);
            cuts.push_back(run.begin + run.n);
        }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

    const auto each = [&](auto && visit) { // every use, by ascending sequence
        for (uint32_t s = 0; s < cells_.size(); ++s) {
            uint32_t column = 0;
            for (const extent & run : cells_[s]) {
                size_t at = std::lower_bound(cuts.begin(), cuts.end(), run.begin) - cuts.begin();
                for (; cuts[at] < run.begin + run.n; ++at) {
                    visit(at, use_t{ s, column });
                    column += cuts[at + 1] - cuts[at];
                }
            }
        }
    };
    std::vector<uint32_t> n_uses(cuts.size());
    each([&](size_t at, const use_t &) { ++n_uses[at]; });
    std::vector<uint32_t> next(cuts.size());
    uint32_t              n = 0;
    for (size_t at = 0; at < cuts.size(); ++at) {
        next[at] = n;
        if (n_uses[at] > 0) {
            stretches.push_back({ { cuts[at], cuts[at + 1] - cuts[at] }, n, n_uses[at] });
        }
        n += n_uses[at];
    }
    uses.resize(n);
    each([&](size_t at, const use_t & use) { uses[next[at]++] = use; });
    cells_.clear();
}

//
// arithmetic, in vectors of LANES numbers
//

static constexpr size_t LANES = 8, ROWS = 4, AHEAD = 8;
static constexpr size_t TILE = 32, LONG = 1024; // cells of a stretch at a time

typedef float    floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t  ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

static size_t whole(size_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

INLINE floats load(const float * from) {
    return *reinterpret_cast<const floats *>(from);
}

INLINE void store(float * to, floats values) {
    *reinterpret_cast<floats *>(to) = values;
}

template <class To, class From> INLINE To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

INLINE float sum(floats v) {
    typedef float quad __attribute__((vector_size(16), aligned(4)));
    struct pair_t {
        quad a, b;
    };
    const pair_t pair = bits<pair_t>(v);
    const quad   half = pair.a + pair.b;
    return (half[0] + half[2]) + (half[1] + half[3]);
}

// NA rows of a times NB rows of b.
template <int NA, int NB>
INLINE void tile(const float * a, size_t lda, const float * const * b, size_t n, float * const * out, size_t at) {
    floats sums[NA][NB] = {};
    for (size_t i = 0; i < n; i += LANES) {
        floats rows[NA];
        for (int x = 0; x < NA; ++x) {
            rows[x] = load(a + x * lda + i);
        }
        for (int y = 0; y < NB; ++y) {
            const floats row = load(b[y] + i);
            for (int x = 0; x < NA; ++x) {
                sums[x][y] += rows[x] * row;
            }
        }
    }
    for (int y = 0; y < NB; ++y) {
        for (int x = 0; x < NA; ++x) {
            out[y][at + x] += sum(sums[x][y]);
        }
    }
}

// out[y][x] += a[x] · b[y], where a has na rows at the distance lda and b has nb rows, all of n numbers, whole vectors.
FOR_EACH_PROCESSOR
static void add_products(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                         float * const * out) {
    for (size_t y = 0; y < nb;) {
        const size_t ny = std::min<size_t>(nb - y, 2);
        size_t       x  = 0;
        for (; x + ROWS <= na; x += ROWS) {
            if (ny == 2) {
                tile<ROWS, 2>(a + x * lda, lda, b + y, n, out + y, x);
            } else {
                tile<ROWS, 1>(a + x * lda, lda, b + y, n, out + y, x);
            }
        }
        for (; x < na; ++x) {
            for (size_t i = 0; i < ny; ++i) {
                tile<1, 1>(a + x * lda, lda, b + y + i, n, out + y + i, x);
            }
        }
        y += ny;
    }
}

// LANES numbers of F16.
INLINE floats from_halves(halves raw) {
    const words  wide     = __builtin_convertvector(raw, words);
    const floats absolute = bits<floats>((wide & 0x7fff) << 13) * 0x1p112f;
    const words  endless  = bits<words>((wide & 0x7c00) == 0x7c00) & 0x7f800000; // infinite, or no number
    return bits<floats>(bits<words>(absolute) | endless | ((wide & 0x8000) << 16));
}

#if defined(HAS_F16C)
__attribute__((target("avx,f16c"))) static inline floats from_halves_f16c(halves raw) {
    return bits<floats>(_mm256_cvtph_ps(bits<__m128i>(raw)));
}
#endif

template <floats (*Convert)(halves)> INLINE void convert(float * to, const uint16_t * from, size_t n) {
    const size_t rest = n % LANES;
    for (size_t i = 0; i < n - rest; i += LANES) {
        store(to + i, Convert(*reinterpret_cast<const halves *>(from + i)));
    }
    if (rest > 0) {
        halves raw = {};
        for (size_t i = 0; i < rest; ++i) {
            raw[i] = from[n - rest + i];
        }
        store(to + n - rest, Convert(raw));
    }
}

#if defined(HAS_F16C)
__attribute__((target("avx,f16c"))) static void convert_f16c(float * to, const uint16_t * from, size_t n) {
    convert<from_halves_f16c>(to, from, n);
}
#endif

// n numbers of F16; `to` has room for whole vectors, and gets zeros there.
static void from_f16(float * to, const uint16_t * from, size_t n) {
#if defined(HAS_F16C)
    static const bool has_f16c = __builtin_cpu_supports("f16c");
    if (has_f16c) {
        return convert_f16c(to, from, n);
    }
#endif
    convert<from_halves>(to, from, n);
}

// Rounds n numbers to the mantissa of a type, to the nearest even one, as ggml does with what it multiplies by numbers
// of that type.
FOR_EACH_PROCESSOR
static void round_to(ggml_type type, float * x, size_t n) {
    const uint32_t n_bits = type == GGML_TYPE_F16 ? 13 : type == GGML_TYPE_BF16 ? 16 : 0; // that go
    if (n_bits == 0) {
        return;
    }
    const uint32_t most = (1u << n_bits) - 1;
    for (size_t i = 0; i < n; i += LANES) {
        const words raw = bits<words>(load(x + i));
        store(x + i, bits<floats>((raw + most / 2 + ((raw >> n_bits) & 1)) & ~most));
    }
}

// x <- exp(x - most), with an error of 2e-7; returns the sum.
FOR_EACH_PROCESSOR
static float exponentials(float * x, size_t n, float most) {
    floats total = {};
    for (size_t i = 0; i < n; i += LANES) {
        floats     at        = load(x + i) - most;
        const ints is_small  = at < -87.0f;
        at                   = bits<floats>((bits<ints>(at) & ~is_small) | (bits<ints>(floats{} - 87.0f) & is_small));
        const floats shifted = at * 1.44269504f + 12582912.0f; // rounds to a whole number in the lowest bits
        const floats power   = shifted - 12582912.0f;
        const floats rest    = at - power * 0.693145752f - power * 1.42860677e-6f;
        floats       p       = rest * 1.9875691500e-4f + 1.3981999507e-3f;
        p                    = p * rest + 8.3334519073e-3f;
        p                    = p * rest + 4.1665795894e-2f;
        p                    = p * rest + 1.6666665459e-1f;
        p                    = p * rest + 5.0000001201e-1f;
        p                    = p * rest * rest + rest + 1.0f;
        p                    = bits<floats>(bits<words>(p) + (bits<words>(shifted) << 23));
        store(x + i, p);
        total += p;
    }
    return sum(total);
}

//
// the operation
//

static void to_float(float * to, const void * from, ggml_type type, size_t n) {
    if (type == GGML_TYPE_F32) {
        std::memcpy(to, from, n * sizeof(float));
    } else if (type == GGML_TYPE_F16) {
        from_f16(to, static_cast<const uint16_t *>(from), n);
        return;
    } else {
        ggml_get_type_traits(type)->to_float(from, to, int64_t(n));
    }
    std::fill(to + n, to + whole(n), 0.0f);
}

// Rows lie far from each other, so that no processor prefetches them.
static void prefetch(const char * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(from + i);
    }
}

namespace {
// What one thread computes at a time: some rows, and some of the query heads of one head of keys. A query is a row and
// such a head.
struct unit_t {
    const tree_t &        tree;
    const tree_scores_t & scores;
    const ggml_tensor *   q, *k, *v, *sinks;
    uint32_t              first_row, end_row;
    size_t                head;    // of keys
    size_t                q_head;  // the first one
    size_t                n_heads; // query heads

    bool   transposed() const { return v->nb[1] > v->nb[2]; }
    size_t d_k() const { return size_t(q->ne[0]); }
    size_t d_v() const { return size_t(transposed() ? v->ne[2] : v->ne[0]); }

    // Numbers that a thread keeps from one operation to the next.
    struct buffers_t {
        std::vector<float>         queries, weights, sums, tile, row;
        std::vector<float *>       weights_of; // a query
        std::vector<const float *> factors;
        std::vector<float *>       results, parts;
    };
    static buffers_t & buffers() {
        static thread_local buffers_t one;
        return one;
    }

    float * result(float * out, size_t query) const {
        const size_t row = first_row + query / n_heads;
        return out + (row * size_t(q->ne[1]) + q_head + query % n_heads) * d_v();
    }

    // The rows of this unit that a sequence has.
    std::pair<uint32_t, uint32_t> rows_of(const tree_t::sequence_t & sequence) const {
        return { std::max(sequence.first_row, first_row), std::min(sequence.first_row + sequence.n_rows, end_row) };
    }

    void compute(float * out) const {
        buffers_t &  b         = buffers();
        const size_t n_queries = (end_row - first_row) * n_heads, width = whole(d_k());

        b.queries.assign(n_queries * width, 0.0f);
        for (size_t i = 0; i < n_queries; ++i) {
            const seen_t & seen = tree.rows[first_row + i / n_heads];
            const char *   from =
                static_cast<const char *>(q->data) + (q_head + i % n_heads) * q->nb[1] + size_t(seen.token) * q->nb[2];
            std::memcpy(b.queries.data() + i * width, from, d_k() * sizeof(float));
        }
        round_to(k->type, b.queries.data(), n_queries * width);

        std::vector<size_t> begins; // of the weights of each query
        size_t              n_weights = 0;
        for (const tree_t::sequence_t & sequence : tree.sequences) {
            const auto [first, end] = rows_of(sequence);
            for (size_t i = 0; first < end && i < (end - first) * n_heads; ++i) {
                begins.push_back(n_weights);
                n_weights += whole(sequence.n_columns) + LANES;
            }
        }
        b.weights.assign(n_weights, 0.0f);
        b.weights_of.clear();
        for (const size_t begin : begins) {
            b.weights_of.push_back(b.weights.data() + begin);
        }
        read_keys(b);
        for (const tree_t::sequence_t & sequence : tree.sequences) {
            const auto [first, end] = rows_of(sequence);
            for (uint32_t row = first; row < end; ++row) {
                for (size_t i = 0; i < n_heads; ++i) {
                    const seen_t & seen    = tree.rows[row];
                    float *        weights = b.weights_of[(row - first_row) * n_heads + i];
                    weigh(weights + seen.first, seen.end - seen.first, q_head + i);
                    std::fill_n(weights, seen.first, 0.0f);
                    std::fill(weights + seen.end, weights + sequence.n_columns, 0.0f);
                }
            }
        }
        if (scores.rounds) {
            round_to(v->type, b.weights.data(), n_weights);
        }
        b.sums.assign(n_queries * d_v(), 0.0f);
        read_values(b);
        for (size_t i = 0; i < n_queries; ++i) {
            std::copy_n(b.sums.data() + i * d_v(), d_v(), result(out, i));
        }
    }

    // Calls visit(cells) for every stretch that these rows look at, and visit_query(query, column of the first cell)
    // for each query before.
    template <class Query, class Cells> void each_stretch(buffers_t & b, Query && visit_query, Cells && visit) const {
        for (const tree_t::stretch_t & stretch : tree.stretches) {
            b.factors.clear();
            b.results.clear();
            for (uint32_t use = stretch.first_use; use < stretch.first_use + stretch.n_uses; ++use) {
                const auto [first, end] = rows_of(tree.sequences[tree.uses[use].sequence]);
                for (size_t i = 0; first < end && i < (end - first) * n_heads; ++i) {
                    visit_query((first - first_row) * n_heads + i, tree.uses[use].column);
                }
            }
            if (!b.factors.empty()) {
                visit(stretch.cells);
            }
        }
    }

    void read_keys(buffers_t & b) const {
        const size_t width = whole(d_k()), n_bytes = ggml_row_size(k->type, int64_t(d_k()));
        const auto   add_query = [&](size_t i, uint32_t column) {
            b.factors.push_back(b.queries.data() + i * width);
            b.results.push_back(b.weights_of[i] + column);
        };
        b.tile.resize(TILE * width);
        each_stretch(b, add_query, [&](const extent & cells) {
            for (size_t at = 0; at < cells.n; at += TILE) {
                const size_t n = std::min<size_t>(TILE, cells.n - at);
                for (size_t i = 0; i < n; ++i) {
                    const char * from =
                        static_cast<const char *>(k->data) + head * k->nb[1] + (cells.begin + at + i) * k->nb[2];
                    prefetch(from + AHEAD * k->nb[2], n_bytes);
                    to_float(b.tile.data() + i * width, from, k->type, d_k());
                }
                add_products(b.tile.data(), width, n, b.factors.data(), b.factors.size(), width, b.results.data());
                for (float *& result : b.results) {
                    result += n;
                }
            }
        });
    }

    // The scores of n columns become weights, whose sum is one, or less by what the sink takes.
    void weigh(float * x, size_t n, size_t q_head) const {
        if (scores.cap != 0.0f) {
            for (size_t i = 0; i < n; ++i) {
                x[i] = scores.cap * std::tanh(x[i] * scores.factor / scores.cap);
            }
        }
        float most = -INFINITY;
        for (size_t i = 0; i < n; ++i) {
            x[i] *= scores.scale;
            most = std::max(most, x[i]);
        }
        float sink = 0.0f;
        if (sinks) {
            const float score = static_cast<const float *>(sinks->data)[q_head];
            most              = std::max(most, score);
            sink              = std::exp(score - most);
        }
        const size_t rest  = n % LANES;
        float        total = exponentials(x, n - rest, most);
        for (size_t i = n - rest; i < n; ++i) {
            x[i] = std::exp(x[i] - most);
            total += x[i];
        }
        const float share = 1.0f / (total + sink);
        for (size_t i = 0; i < n; ++i) {
            x[i] *= share;
        }
    }

    void read_values(buffers_t & b) const {
        const size_t most      = transposed() ? LONG : TILE;
        const auto   add_query = [&](size_t i, uint32_t column) {
            b.factors.push_back(b.weights_of[i] + column);
            b.results.push_back(b.sums.data() + i * d_v());
        };
        each_stretch(b, add_query, [&](const extent & cells) {
            for (size_t at = 0; at < cells.n; at += most) {
                const size_t n = std::min<size_t>(most, cells.n - at);
                if (transposed()) {
                    add_rows(b, cells.begin + at, n);
                } else {
                    add_columns(b, cells.begin + at, n);
                }
                for (const float *& factor : b.factors) {
                    factor += n;
                }
            }
        });
    }

    // n cells of transposed values: a few rows at a time, each as long as it is, because rows are far from each other.
    void add_rows(buffers_t & b, size_t cell, size_t n) const {
        const char * from    = static_cast<const char *>(v->data) + head * v->nb[1] + cell * v->nb[0];
        const size_t n_bytes = std::min<size_t>(ggml_row_size(v->type, int64_t(n)), 512);
        b.tile.resize(ROWS * LONG);
        b.parts = b.results;
        for (size_t i = 0; i < d_v(); i += ROWS) {
            const size_t n_rows = std::min(ROWS, d_v() - i);
            for (size_t j = 0; j < n_rows; ++j) {
                prefetch(from + (i + j + ROWS) * v->nb[2], n_bytes);
                to_float(b.tile.data() + j * LONG, from + (i + j) * v->nb[2], v->type, n);
            }
            add_products(b.tile.data(), LONG, n_rows, b.factors.data(), b.factors.size(), whole(n), b.parts.data());
            for (float *& part : b.parts) {
                part += n_rows;
            }
        }
    }

    // n cells, a tile at most, of values that are not transposed.
    void add_columns(buffers_t & b, size_t cell, size_t n) const {
        const char * from = static_cast<const char *>(v->data) + head * v->nb[1] + cell * v->nb[2];
        b.tile.assign(TILE * d_v(), 0.0f);
        b.row.resize(whole(d_v()));
        for (size_t i = 0; i < n; ++i) {
            to_float(b.row.data(), from + i * v->nb[2], v->type, d_v());
            for (size_t j = 0; j < d_v(); ++j) {
                b.tile[j * TILE + i] = b.row[j];
            }
        }
        add_products(b.tile.data(), TILE, d_v(), b.factors.data(), b.factors.size(), whole(n), b.results.data());
    }
};

// The rows and the query heads of a unit, at most.
struct shares_t {
    size_t n_rows, n_heads;
};
} // namespace

// So many that all threads have something to do, and that no unit takes too much memory.
static shares_t shares_of(const tree_t & tree, size_t n_kv_heads, size_t gqa, size_t n_threads) {
    constexpr size_t most_weights = 1 << 20;
    size_t           n_columns    = 1;
    for (const tree_t::sequence_t & sequence : tree.sequences) {
        n_columns = std::max<size_t>(n_columns, sequence.n_columns);
    }
    shares_t   shares{ tree.rows.size(), gqa };
    const auto parts = [](size_t n, size_t of) { return (of + n - 1) / n; };
    while (shares.n_rows * shares.n_heads > 1) {
        const size_t n      = parts(shares.n_rows, tree.rows.size()) * parts(shares.n_heads, gqa) * n_kv_heads;
        const bool   unfair = n * 10 < parts(n_threads, n) * n_threads * 9; // a tenth of the time is lost
        if (!unfair && shares.n_rows * shares.n_heads * n_columns <= most_weights) {
            break;
        }
        size_t & share = shares.n_rows > 1 ? shares.n_rows : shares.n_heads;
        share          = (share + 1) / 2;
    }
    return shares;
}

void attend_tree(float * out, const tree_t & tree, const tree_scores_t & scores, const ggml_tensor * q,
                 const ggml_tensor * k, const ggml_tensor * v, const ggml_tensor * sinks, int thread, int n_threads) {
    const size_t   n_kv_heads = size_t(k->ne[1]), gqa = size_t(q->ne[1]) / n_kv_heads, n_rows = tree.rows.size();
    const shares_t shares = shares_of(tree, n_kv_heads, gqa, size_t(n_threads));
    size_t         number = 0;
    for (size_t row = 0; row < n_rows; row += shares.n_rows) {
        for (size_t head = 0; head < n_kv_heads; ++head) {
            for (size_t i = 0; i < gqa; i += shares.n_heads) {
                if (number++ % size_t(n_threads) != size_t(thread)) {
                    continue;
                }
                const size_t n = std::min(shares.n_heads, gqa - i), end = std::min(row + shares.n_rows, n_rows);
                const unit_t unit{
                    tree, scores, q, k, v, sinks, uint32_t(row), uint32_t(end), head, head * gqa + i, n
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
