// The model's context: how large it may be, how it is made, how it grows.

#include "model/model.h"

#include "base/errors.h"
#include "base/log.h"
#include "graph/memory.h"
#include "machine/available.h"
#include "machine/rpc.h"
#include "model/model_file.h"

#include <algorithm>
#include <functional>
#include <set>

namespace tgr {

static constexpr uint32_t large_cache = 1 << 15; // which a cell's bytes are measured with

// On a CPU ggml's flash attention takes up to twice the time of the plain one (docs/log.md). llama.cpp always wants it
// for quantised values.
static llama_flash_attn_type flash_attention(const llama_model * model, const EngineParams & params) {
    const bool plain = params.flash_attn < 0 && on_cpu(model) && !ggml_is_quantized(params.type_v);
    return plain ? LLAMA_FLASH_ATTN_TYPE_DISABLED : llama_flash_attn_type(params.flash_attn);
}

llama_context_params context_params(const llama_model * model, const EngineParams & params, uint32_t n_cells) {
    const uint64_t n_ctx = (std::max<uint64_t>(n_cells, 1) + 255) / 256 * 256;
    auto           make  = llama_context_default_params();
    make.n_ctx           = uint32_t(std::min<uint64_t>(n_ctx, UINT32_MAX - 255));
    make.n_batch         = params.n_batch;
    make.n_ubatch        = params.n_ubatch;
    make.n_seq_max       = params.n_seq_max;
    make.n_outputs_max   = std::max(params.n_seq_max, 1u);
    make.n_threads       = params.n_threads;
    make.n_threads_batch = params.n_threads;
    make.flash_attn_type = flash_attention(model, params);
    make.type_k          = params.type_k;
    make.type_v          = params.type_v;
    make.kv_unified      = true; // forks share the cells of their prefix
    make.swa_full        = true; // a sliding-window cache could not be rolled back
    make.no_perf         = true;
    return make;
}

llama_context_params Model::context_params(uint32_t n_cells) const {
    auto make                = tgr::context_params(weights_.get(), params_, n_cells);
    make.abort_callback      = info_.rolls_back ? Interrupt::requested : Interrupt::closed;
    make.abort_callback_data = &interrupt_;
    return make;
}

llama_context_ptr Model::made_context(uint32_t n_cells) {
    take_log_error();
    const AssertGuard guard;
    llama_context_ptr made(llama_init_from_model(weights_.get(), context_params(n_cells)));
    bool              ready = false;
    try {
        if (made) {
            adapters_.apply(made.get());
        }
        ready = made && graph_init(made.get(), int32_t(params_.n_seq_max) + 1,
                                   params_.n_ctx ? 0 : uint32_t(llama_model_n_ctx_train(weights_.get())),
                                   params_.use_mlock ? nullptr : interleaved_.get());
    } catch (const std::exception &) { // its log says why
    }
    if (!ready) {
        const std::string reason = take_log_error();
        if (reason.find("GGML_ASSERT") != std::string::npos) {
            refuse(params_.path, "cannot be run (", reason, ")");
        }
        const std::string what = concat("no context of ", n_cells, " cells could be made: ");
        if (reason.empty() || is_out_of_memory(reason)) {
            throw MemoryError(what, "lower n_gpu_layers, n_ctx or n_batch, or use a smaller cache type such as "
                                    "type_k=q8_0");
        }
        throw ModelError(what, reason);
    }
    if (is_on_cpu()) { // llama.cpp has written zeros into the logits of as many tokens as there can ever be in a batch
        const size_t n_logits = size_t(llama_n_seq_max(made.get())) * size_t(llama_vocab_n_tokens(vocab_));
        if (float * logits = llama_get_logits(made.get())) {
            give_back_pages(logits, n_logits * sizeof(float));
        }
    }
    return made;
}

//
// memory
//

static uint64_t total(const DeviceBytes & bytes) {
    uint64_t sum = 0;
    for (const auto & [device, n] : bytes) {
        sum += n;
    }
    return sum;
}

DeviceBytes Model::planned(uint32_t n_cells) {
    const AssertGuard guard;
    try {
        return planned_bytes(weights_.get(), context_params(n_cells), int32_t(params_.n_seq_max) + 1, adapters_);
    } catch (const std::exception &) { // the real context will say why
        return {};
    }
}

// Why a cache of n_cells that needs that many bytes has no place where others are freed; empty = it has.
static std::string excess(const DeviceBytes & bytes, const DeviceBytes & freed, uint32_t n_cells) {
    for (const auto & [device, needed] : bytes) {
        const auto available = available_on(device);
        if (!available) {
            continue;
        }
        const auto most = uint64_t(most_of_memory * double(*available + bytes_on(freed, device)));
        if (needed > most) {
            const std::string name = ggml_backend_dev_name(device);
            return concat("needs ", n_cells, " cells of the KV cache, which take ", needed >> 20, " MiB of ",
                          name == "CPU" ? "RAM" : name + "'s memory", " with the buffers, but it can have ", most >> 20,
                          " MiB; shorten the query, lower chunk_len, rollout_len, n_candidates or n_ctx, or set a "
                          "smaller type_k and type_v",
                          name == "CPU" ? "" : ", or lower n_gpu_layers");
        }
    }
    return "";
}

// Why there is no memory for a cache of n_cells, in addition to the present one or in its place; empty = there is. A
// plan takes time and memory for every cell, so what a large cache takes at least is computed first, from the bytes of
// a cell. Interleaved weights give way.
std::string Model::obstacle(uint32_t n_cells, bool beside) {
    std::string why = obstacle_now(n_cells, beside);
    if (!why.empty() && interleaved_->drop()) {
        why = obstacle_now(n_cells, beside);
    }
    return why;
}

std::string Model::obstacle_now(uint32_t n_cells, bool beside) {
    const DeviceBytes freed = beside || !context_ ? DeviceBytes() : taken_bytes(context_.get());
    if (n_cells > large_cache) {
        DeviceBytes least = cell_bytes();
        for (auto & [device, bytes] : least) {
            bytes *= n_cells;
        }
        if (std::string why = excess(least, freed, n_cells); !why.empty()) {
            return why;
        }
    }
    return excess(planned(n_cells), freed, n_cells);
}

bool Model::is_known_to_fit(uint32_t n_cells) const {
    return params_.n_ctx != 0 || n_cells <= std::max(n_ctx(), known_to_fit_);
}

void Model::check_memory(uint32_t n_cells) {
    require_servers(params_.rpc); // a lost one says that it has no memory
    if (n_cells > most_cells) {
        throw CapacityError("needs ", n_cells, " cells of the KV cache, but it can have ", most_cells.load(),
                            "; shorten the query, or lower chunk_len, rollout_len or n_candidates");
    }
    if (is_known_to_fit(n_cells)) {
        return;
    }
    if (const std::string why = obstacle(n_cells, /*beside =*/false); !why.empty()) {
        throw CapacityError(why);
    }
    known_to_fit_ = n_cells;
}

// The bytes of a cell are the difference between two large caches: a small one may need less than its prompt does.
const DeviceBytes & Model::cell_bytes() {
    if (cell_bytes_.empty()) {
        const DeviceBytes fewer = planned(large_cache);
        for (const auto & [device, bytes] : planned(2 * large_cache)) {
            cell_bytes_[device] = (bytes - std::min(bytes, bytes_on(fewer, device))) / large_cache;
        }
    }
    return cell_bytes_;
}

uint32_t Model::n_cells_possible() {
    uint64_t most = most_cells;
    if (params_.n_ctx != 0) {
        return n_ctx();
    }
    for (const auto & [device, bytes] : cell_bytes()) {
        if (const auto available = available_on(device); available && bytes > 0) {
            const bool   is_ram = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
            const size_t freed  = is_ram ? interleaved_bytes() : 0; // they would give way
            most = std::min(most, n_ctx() + uint64_t(most_of_memory * double(*available + freed)) / bytes);
        }
    }
    return uint32_t(most);
}

std::pair<uint64_t, uint64_t> Model::memory() const {
    if (!context_) {
        return {};
    }
    return { total(taken_bytes(context_.get())), total(compute_bytes(context_.get())) };
}

//
// size
//

// The new context takes the place of the old one when `fill` has moved there what it needs of that. False, and the old
// one is as it was, where either cannot be.
template <class Fill> bool Model::move_context(uint32_t n_cells, Fill && fill) {
    try {
        llama_context_ptr made = made_context(n_cells);
        if (!fill(context_.get(), made.get())) {
            return false;
        }
        count_graphs(before_);
        context_ = std::move(made);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

static bool copy_all(llama_context * from, llama_context * to) {
    if (!memory_copy(from, to)) {
        return false;
    }
    graph_copy_rows(from, to);
    return true;
}

bool Model::resize(uint32_t n_cells, bool contents) {
    const uint64_t half_more = uint64_t(n_ctx()) + n_ctx() / 2;
    const uint32_t larger    = std::max(n_cells, uint32_t(std::min<uint64_t>(half_more, most_cells)));
    for (const uint32_t size : std::set<uint32_t, std::greater<>>{ larger, n_cells }) {
        if (obstacle(size, /*beside =*/contents).empty() &&
            (contents ? move_context(size, copy_all) : replace_context(size))) {
            return true;
        }
    }
    return false;
}

void Model::set_scales(const std::vector<float> & scales) {
    const std::vector<float> before = adapters_.scales();
    adapters_.set_scales(scales);
    if (!context_) {
        return;
    }
    std::string why = obstacle(n_ctx(), /*beside =*/false);
    if (why.empty()) {
        try {
            const AssertGuard guard;
            adapters_.apply(context_.get());
            graph_reserve(context_.get());
            return;
        } catch (const std::exception & error) {
            why = concat("no buffers could be made for the adapters (", printable(error.what()),
                         "); close other programs, or lower n_batch");
        }
    }
    adapters_.set_scales(before);
    adapters_.apply(context_.get());
    throw CapacityError(why);
}

bool Model::shrink(uint32_t n_cells, const std::vector<extent> & kept) {
    const auto gather = [&](auto * from, auto * to) { return memory_gather(from, to, kept); };
    return obstacle(n_cells, /*beside =*/true).empty() && move_context(n_cells, gather);
}

// The old context goes first. It comes back, empty, where the new one cannot be made although the memory seemed to be
// there.
bool Model::replace_context(uint32_t n_cells) {
    const uint32_t before = n_ctx();
    count_graphs(before_);
    context_.reset();
    for (const uint32_t size : { n_cells, before }) {
        try {
            context_ = made_context(size);
            return size == n_cells;
        } catch (const std::exception &) {
        }
    }
    return false;
}

} // namespace tgr
