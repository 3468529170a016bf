#include "graph/adapters.h"

#include "base/errors.h"
#include "base/log.h"

namespace tgr {

Adapters::Adapters(llama_model * model, const EngineParams & params) {
    const AssertGuard guard;
    for (const auto & [path, scale] : params.loras) {
        take_log_error();
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, path.c_str());
        if (!adapter) {
            const std::string reason = take_log_error();
            throw ModelError("the adapter ", path, " cannot be added to ", params.path, " (", reason, "); ",
                             is_out_of_memory(reason) ? "close other programs"
                                                      : "use one that was made for this model");
        }
        loaded_.push_back(adapter);
        scales_.push_back(scale);
    }
}

void Adapters::set_scales(const std::vector<float> & scales) {
    if (scales.size() != loaded_.size()) {
        throw ArgumentError("there are ", loaded_.size(), " adapters, but ", scales.size(), " scales");
    }
    scales_ = scales;
}

void Adapters::apply(llama_context * ctx) const {
    std::vector<llama_adapter_lora *> adapters = loaded_; // llama.cpp's function takes no const pointers
    std::vector<float>                scales   = scales_;
    if (!adapters.empty()) {
        llama_set_adapters_lora(ctx, adapters.data(), adapters.size(), scales.data());
    }
}

} // namespace tgr
