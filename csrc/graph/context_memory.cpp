#include "graph/context_memory.h"

#include "llama-context.h"
#include "llama-cpp.h"
#include "llama-memory.h"
#include "llama-model.h"

#include <algorithm>
#include <vector>

namespace tgr {

// The device that a buffer's memory is of; host memory that a GPU can reach is the CPU's.
static ggml_backend_dev_t device_of(ggml_backend_buffer_type_t type) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    return !device || ggml_backend_buft_is_host(type) ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : device;
}

static void add_own(DeviceBytes & bytes, const llama_model & model, uint64_t n_rows, uint64_t n_outputs) {
    const auto & hparams = model.hparams;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        bytes[device_of(model.select_buft(int(il)))] += n_rows * hparams.n_embd * sizeof(float);
    }
    const uint64_t width = uint64_t(model.vocab.n_tokens()) + hparams.n_embd;
    bytes[ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)] += n_outputs * width * sizeof(float);
}

// While this lives, a new context plans its buffers and takes none. Recurrent states are the exception.
class Planning {
public:
    explicit Planning(llama_model & model) : no_alloc_(model.hparams.no_alloc), before_(no_alloc_) { no_alloc_ = true; }
    ~Planning() { no_alloc_ = before_; }
    Planning(const Planning &) = delete;

private:
    bool & no_alloc_;
    bool   before_;
};

static void add_cache(DeviceBytes & bytes, const llama_context & ctx) {
    if (ctx.get_memory()) {
        for (const auto & [type, n_bytes] : ctx.get_memory()->memory_breakdown()) {
            bytes[device_of(type)] += n_bytes;
        }
    }
}

// What a context that took nothing would compute in: the larger one of the graphs that llama.cpp reserves for.
static void add_planned_buffers(DeviceBytes & bytes, llama_context & ctx) {
    const auto     sched      = ctx.get_sched();
    const int      n_backends = ggml_backend_sched_get_n_backends(sched);
    const uint32_t n_seqs     = ctx.get_cparams().n_seq_max;
    const uint32_t n_prompt   = std::min(ctx.get_cparams().n_ctx, ctx.n_ubatch());
    const auto     full       = ctx.get_memory() ? ctx.get_memory()->init_full() : nullptr;

    std::vector<size_t> most(n_backends, 0);
    for (const uint32_t n_tokens : { n_prompt, n_seqs }) {
        std::vector<size_t> sizes(n_backends, 0);
        const uint32_t      n_outputs = std::min(n_tokens, ctx.get_cparams().n_outputs_max);
        ctx.graph_reserve(n_tokens, n_seqs, n_outputs, full.get(), /*split_only =*/true, sizes.data());
        for (int i = 0; i < n_backends; ++i) {
            most[i] = std::max(most[i], sizes[i]);
        }
    }
    for (int i = 0; i < n_backends; ++i) {
        bytes[device_of(ggml_backend_sched_get_buffer_type(sched, ggml_backend_sched_get_backend(sched, i)))] +=
            most[i];
    }
}

DeviceBytes planned_bytes(llama_model * model, const llama_context_params & params, int32_t n_rows,
                          const Adapters & adapters) {
    const auto & hparams = model->hparams;
    DeviceBytes  bytes;
    auto         planned_params = params;
    uint64_t     n_states       = 0; // in addition to the planned one
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
        planned_params.n_seq_max     = 1;
        planned_params.n_outputs_max = 1;
        n_states                     = params.n_seq_max - 1;
    }
    const Planning    planning(*model);
    llama_context_ptr planned(llama_init_from_model(model, planned_params));
    if (!planned) {
        return bytes;
    }
    adapters.apply(planned.get());
    add_cache(bytes, *planned);
    add_planned_buffers(bytes, *planned);
    for (uint32_t il = 0; n_states > 0 && il < hparams.n_layer(); ++il) {
        if (hparams.is_recr(il)) {
            bytes[device_of(model->select_buft(int(il)))] +=
                n_states * (hparams.n_embd_r() + hparams.n_embd_s()) * sizeof(float);
        }
    }
    add_own(bytes, *model, uint64_t(n_rows), params.n_outputs_max);
    planned.reset(); // still planning
    return bytes;
}

DeviceBytes compute_bytes(llama_context * ctx) {
    DeviceBytes bytes;
    const auto  sched = ctx->get_sched();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        const auto backend = ggml_backend_sched_get_backend(sched, i);
        bytes[device_of(ggml_backend_sched_get_buffer_type(sched, backend))] +=
            ggml_backend_sched_get_buffer_size(sched, backend);
    }
    return bytes;
}

DeviceBytes taken_bytes(llama_context * ctx) {
    DeviceBytes bytes = compute_bytes(ctx);
    add_cache(bytes, *ctx);
    add_own(bytes, ctx->get_model(), llama_n_seq_max(ctx) + 1, llama_n_seq_max(ctx));
    return bytes;
}

DeviceBytes weight_bytes(const llama_model * model) {
    DeviceBytes bytes;
    for (const auto & [type, n_bytes] : model->memory_breakdown()) {
        bytes[device_of(type)] += n_bytes;
    }
    return bytes;
}

int32_t n_layers(const llama_model * model) {
    return int32_t(model->hparams.n_layer_all);
}

bool has_experts(const llama_model * model) {
    return model->hparams.n_expert > 0;
}

} // namespace tgr
