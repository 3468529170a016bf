// The products of quantized weights with tokens, in place of ggml's (csrc/quantized), where the CPU alone computes.

#include "quantized/products.h"
#include "graph/graph_state.h"

#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace tgr {

// Operations for each product in addition to ggml's own, which is made but not used.
static constexpr uint32_t NODES = 2, PRODUCTS = 16; // in a layer, at most

uint32_t product_nodes(uint32_t n_layer) {
    return (n_layer + 1) * PRODUCTS * (NODES + 1);
}

void require_weights(const ggml_tensor * weights) {
    GGML_ASSERT(weights && "the file lacks weights that its architecture multiplies with");
}

namespace {

constexpr size_t MOST_ROW_BYTES = size_t(1) << 26;

// What a graph has packed so far: several products take the same tokens.
class graph_input_packed : public llm_graph_input_i {
public:
    void set_input(const llama_ubatch *) override {}

    bool can_reuse(const llm_graph_params &) override { return true; }

    std::map<const ggml_tensor *, ggml_tensor *> packed; // by the tokens
};

// Tokens, or rows of weights, that thread `ith` of `nth` takes of n: a run of whole parts.
std::pair<int64_t, int64_t> share(int64_t n, int64_t part, int ith, int nth) {
    const int64_t n_parts = (n + part - 1) / part;
    return { n_parts * ith / nth * part, std::min(n, n_parts * (ith + 1) / nth * part) };
}

void pack(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * tokens = dst->src[0];
    const auto [first, last]   = share(tokens->ne[1], 1, ith, nth);
    for (int64_t t = first; t < last; ++t) {
        const char * token = static_cast<const char *>(tokens->data) + t * tokens->nb[1];
        pack_token(reinterpret_cast<const float *>(token), tokens->ne[0],
                   static_cast<char *>(dst->data) + t * dst->nb[1]);
    }
}

void multiply(ggml_tensor * dst, int ith, int nth, void * of_weights) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * tokens  = dst->src[1];
    const auto [first, last]    = share(weights->ne[1], rows_together(tokens->ne[1]), ith, nth);
    const auto *  interleaved   = static_cast<const InterleavedWeights::Weights *>(of_weights);
    const int64_t n_done        = interleaved ? std::clamp(interleaved->n_done, first, std::max(first, last)) : first;
    const auto    rows          = [&](auto && multiply, const void * from, int64_t begin, int64_t end) {
        if (begin < end) {
            multiply(weights->type, from, weights->ne[0], begin, end, tokens->data, tokens->ne[1],
                     static_cast<float *>(dst->data), dst->ne[0]);
        }
    };
    rows(multiply_interleaved_rows, interleaved ? interleaved->rows : nullptr, first, n_done);
    rows(multiply_rows, weights->data, n_done, last);
}

// Weights that are as in the file, and not for another kernel or device.
bool is_plain(const ggml_tensor * weights) {
    const ggml_backend_buffer_t buffer = weights->view_src ? weights->view_src->buffer : weights->buffer;
    const size_t row = ggml_row_size(weights->type, weights->ne[0]); // offsets within a tile have 32 bits
    if (!has_products(weights->type) || !buffer || row > MOST_ROW_BYTES || !ggml_is_contiguous(weights) ||
        ggml_n_dims(weights) > 2) {
        return false;
    }
    const char * name = ggml_backend_buft_name(ggml_backend_buffer_get_type(buffer));
    return std::strcmp(name, "CPU") == 0 || std::strcmp(name, "CPU_Mapped") == 0;
}

} // namespace

// Another device, or a library such as BLAS, may take large products.
static bool is_alone(ggml_backend_sched_t sched) {
    return ggml_backend_sched_get_n_backends(sched) == 1;
}

bool has_own_products(llama_context * ctx) {
    size_t n_bytes = 0, n_own = 0;
    for (const auto & [name, weights] : ctx->get_model().tensors_by_name) {
        n_bytes += ggml_nbytes(weights);
        n_own += is_plain(weights) ? ggml_nbytes(weights) : 0;
    }
    return is_alone(ctx->get_sched()) && 2 * n_own > n_bytes;
}

bool is_refused(ggml_backend_buffer_type_t type, const ggml_tensor & weights, ggml_op op,
                const std::vector<std::pair<ggml_backend_dev_t, ggml_backend_buffer_type_t>> & all) {
    const char * name         = ggml_backend_buft_name(type);
    const bool   only_cpu     = std::all_of(all.begin(), all.end(), [](const auto & one) {
        return ggml_backend_dev_type(one.first) == GGML_BACKEND_DEVICE_TYPE_CPU;
    });
    const bool   has_products = op == GGML_OP_MUL_MAT && ggml_n_dims(&weights) == 2 && tgr::has_products(weights.type);
    const bool   is_read      = std::strncmp(weights.name, "cls.", 4) == 0; // by pooling.cpp, as it is in the file
    return std::strcmp(name, "AMX") == 0 ||
           (std::strcmp(name, "CPU_REPACK") == 0 && (is_read || (only_cpu && has_products)));
}

ggml_tensor * product(const llm_graph_context & graph, ggml_tensor * weights, ggml_tensor * tokens) {
    const bool has_own_precision = graph.prec_policy && graph.prec_policy->prec_src1.count(weights);
    if (!is_plain(weights) || has_own_precision || !is_alone(graph.sched) || tokens->type != GGML_TYPE_F32 ||
        tokens->nb[0] != sizeof(float) || ggml_n_dims(tokens) > 2) {
        return nullptr;
    }
    auto * input = find_input<graph_input_packed>(*graph.res);
    if (!input) {
        input = static_cast<graph_input_packed *>(graph.res->add_input(std::make_unique<graph_input_packed>()));
    }
    ggml_tensor *& packed = input->packed[tokens];
    if (!packed) {
        packed = ggml_custom_4d(graph.ctx0, GGML_TYPE_I8, int64_t(packed_token_bytes(tokens->ne[0])), tokens->ne[1], 1,
                                1, &tokens, 1, pack, GGML_N_TASKS_MAX, nullptr);
    }
    const graph_state_t * state       = graph.cvec ? graph.cvec->tgr.get() : nullptr;
    const auto *          interleaved = state && state->weights ? state->weights->add(weights) : nullptr;
    ggml_tensor *         args[]      = { weights, packed };
    return ggml_custom_4d(graph.ctx0, GGML_TYPE_F32, weights->ne[1], tokens->ne[1], 1, 1, args, 2, multiply,
                          GGML_N_TASKS_MAX, const_cast<InterleavedWeights::Weights *>(interleaved));
}

} // namespace tgr
