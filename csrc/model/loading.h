// Loads the weights of a model, once. Model's constructor (model.cpp) tries again where a GPU's memory runs out.
//
// In: the options of an engine. Out: the weights on their devices, or a ModelError that blames the file or the lack of
// memory. The caller can end a load.
#pragma once

#include "job/records.h"

#include "llama.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tgr {

// Called while a model loads, in the loading thread, at intervals of at least 100 ms. What it throws ends the load.
using LoadCheck = std::function<void()>;

// llama.cpp's parameters of a load, and the data to which they point.
struct LoadParams {
    LoadParams()                   = default;
    LoadParams(const LoadParams &) = delete;
    // Moving is safe: `experts` exceeds the small-string buffer, so its pointer survives.
    LoadParams(LoadParams &&) = default;

    llama_model_params                            params;
    std::vector<ggml_backend_dev_t>               devices;
    std::vector<float>                            split;
    std::string                                   experts; // pattern of the names of weights
    std::vector<llama_model_tensor_buft_override> in_ram;
};

// Does not decide how the file is read (mmap or not). Throws as load_weights does.
LoadParams load_params(const EngineParams & params);

// Whether there are devices other than the CPU that these parameters may use.
bool has_gpus(const EngineParams & params);

// Throws MemoryError for lack of memory, ModelError for other failures, ArgumentError for a main_gpu that does not
// exist.
std::shared_ptr<llama_model> load_weights(const EngineParams & params, const LoadCheck & check);

// Throws the error for a load that failed with `reason`: MemoryError where memory ran out, else ModelError, which
// blames the file. The weights have `n_bytes`.
[[noreturn]] void refuse_load(const EngineParams & params, uint64_t n_bytes, const std::string & reason);

} // namespace tgr
