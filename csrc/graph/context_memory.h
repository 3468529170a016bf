// Memory that a context takes on its devices: the cache, the buffers that decoding computes in, the outputs and our
// table of injections; and the memory of a model's weights.
//
// Compiled into our copy of libllama. Call these from the thread that decodes.
#pragma once

#include "graph/adapters.h"

#include "llama.h"

#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>
#include <map>

namespace tgr {

using DeviceBytes = std::map<ggml_backend_dev_t, uint64_t>;

inline uint64_t bytes_on(const DeviceBytes & bytes, ggml_backend_dev_t device) {
    const auto it = bytes.find(device);
    return it == bytes.end() ? 0 : it->second;
}

constexpr double most_of_memory = 0.9; // share of a device's available memory that an engine may take

// Memory that a context would take; none of it is taken. Empty where llama.cpp refuses the parameters; its log says
// why.
DeviceBytes planned_bytes(llama_model * model, const llama_context_params & params, int32_t n_rows,
                          const Adapters & adapters);

// Memory that an existing context takes.
DeviceBytes taken_bytes(llama_context * ctx);

// Memory of the buffers that decoding computes in. They grow when a graph does not fit into them.
DeviceBytes compute_bytes(llama_context * ctx);

// Memory of the weights of a model, which may be planned only (no_alloc).
DeviceBytes weight_bytes(const llama_model * model);

// Returns the pages of a part of a buffer that holds zeros to the system. A later write allocates them again.
void give_back_pages(void * begin, size_t n_bytes);

// The same for memory that is mapped from a file: a later read loads it from the file again. In a control group it no
// longer counts as memory in use.
void give_back_file_pages(void * begin, size_t n_bytes);

// Asks the system for huge pages for memory that is not written yet.
void use_huge_pages(void * begin, size_t n_bytes);

int32_t n_layers(const llama_model * model); // layers without the output layer; those that only guess tokens count
bool    has_experts(const llama_model * model);

} // namespace tgr
