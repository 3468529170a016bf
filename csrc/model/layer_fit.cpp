#include "model/layer_fit.h"

#include "base/errors.h"
#include "base/log.h"
#include "graph/context_memory.h"
#include "machine/available.h"
#include "model/model.h"
#include "model/model_file.h"

#include "llama-cpp.h"

#include <algorithm>

namespace tgr {

static constexpr uint64_t least_left  = 512 << 20; // bytes, for what backends take while they compute
static constexpr uint32_t usual_cells = 8192;      // of a cache that grows

static bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

// A model whose weights are planned, not loaded; null where llama.cpp refuses it: the load will say why.
static llama_model_ptr planned_model(const EngineParams & params) {
    LoadParams load       = load_params(params);
    load.params.no_alloc  = true;
    load.params.load_mode = LLAMA_LOAD_MODE_NONE;
    try {
        llama_model_ptr made(llama_model_load_from_file(params.path.c_str(), load.params));
        take_log_error();
        return made;
    } catch (const ModelError &) { // of AssertGuard
        return nullptr;
    }
}

// What a model takes of each device, with a cache of n_cells; empty where that cannot be said.
static DeviceBytes taken(llama_model * model, EngineParams params, uint32_t n_cells) {
    params.n_seq_max = n_sequences(model, params);
    DeviceBytes context;
    try {
        context = planned_bytes(model, context_params(model, params, n_cells), int32_t(params.n_seq_max) + 1, {});
    } catch (const std::exception &) { // the real context will say why
    }
    take_log_error();
    if (!context.empty()) {
        for (const auto & [device, bytes] : weight_bytes(model)) {
            context[device] += bytes;
        }
    }
    return context;
}

// Files that are loaded in addition; where they go is not known, so each device has place for all.
static uint64_t bytes_beside(const EngineParams & params) {
    uint64_t bytes = 0;
    for (const auto & [path, scale] : params.loras) {
        bytes += file_size(path);
    }
    return bytes;
}

static uint64_t most_of(uint64_t available) {
    const uint64_t left = std::min(least_left, available / 4);
    return std::min(uint64_t(most_of_memory * double(available)), available - left);
}

LayerFit::LayerFit(const EngineParams & params, const LoadCheck & check) {
    if (params.n_gpu_layers != auto_layers || !has_gpus(params)) {
        return;
    }
    check_file(params.path);
    const AssertGuard guard;
    EngineParams      tried = params;
    tried.n_gpu_layers      = -1;
    auto model              = planned_model(tried);
    if (!model) {
        return;
    }
    n_cells_ = params.n_ctx ? params.n_ctx : std::min<uint32_t>(usual_cells, llama_model_n_ctx_train(model.get()));
    const DeviceBytes first = taken(model.get(), tried, n_cells_);

    std::vector<ggml_backend_dev_t> devices;
    std::vector<uint64_t>           most;
    const uint64_t                  beside = bytes_beside(params);
    for (const auto & [device, bytes] : first) {
        if (const auto available = is_gpu(device) ? available_on(device) : std::nullopt) {
            devices.push_back(device);
            most.push_back(most_of(*available - std::min(*available, beside)));
        }
    }
    if (devices.empty()) {
        return;
    }
    const auto of_devices = [&](const DeviceBytes & bytes) {
        std::vector<uint64_t> found;
        for (const auto device : devices) {
            found.push_back(bytes_on(bytes, device));
        }
        return found;
    };
    // the experts that the user puts into RAM are there in every placement
    const Placements all(n_layers(model.get()), params.n_cpu_moe == 0 && has_experts(model.get()));
    at_  = first_that_fits(all.size(), most, [&](uint32_t i) {
        if (i > 0) {
            if (check) {
                check();
            }
            tried.n_gpu_layers = all[i].n_gpu_layers;
            tried.n_cpu_moe    = std::max(params.n_cpu_moe, all[i].n_cpu_moe);
            model              = planned_model(tried);
        }
        return of_devices(i > 0 && model ? taken(model.get(), tried, n_cells_) : first);
    });
    all_ = all;
}

bool LayerFit::lower() {
    if (at_ + 1 >= all_.size()) {
        return false;
    }
    at_             = lowered_ ? all_.size() - 1 : at_ + std::max(1u, (all_.size() - 1 - at_) / 4);
    return lowered_ = true;
}

void LayerFit::apply(EngineParams & params) const {
    if (was_needed()) {
        params.n_gpu_layers = all_[at_].n_gpu_layers;
        params.n_cpu_moe    = std::max(params.n_cpu_moe, all_[at_].n_cpu_moe);
    }
}

} // namespace tgr
