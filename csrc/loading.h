// Loads the weights of a model.
//
// In: the options of an engine. Out: the weights on their devices, or a ModelError that says what is wrong: the file,
// or the memory. The caller that waits for a load can end it.
#pragma once

#include "records.h"

#include "llama.h"

#include <functional>
#include <memory>
#include <string>

namespace tgr {

// Called while a model loads, in the loading thread, at intervals of at least 100 ms. What it throws ends the load.
using LoadCheck = std::function<void()>;

// Throws ModelError; std::invalid_argument for a main_gpu that does not exist.
std::shared_ptr<llama_model> load_weights(const EngineParams & params, const LoadCheck & check);

// Whether an error in llama.cpp's log is lack of memory.
bool is_out_of_memory(const std::string & reason);

// Throws ModelError: the weights or the context cannot be made for this reason. The file, of `n_bytes`, is blamed only
// where memory is not the cause.
[[noreturn]] void refuse_load(const EngineParams & params, uint64_t n_bytes, const std::string & reason);

} // namespace tgr
