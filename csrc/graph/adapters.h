// LoRA adapters: what they add to the products of a model's weights, in every decode.
#pragma once

#include "job/records.h"

#include "llama.h"

#include <vector>

namespace tgr {

class Adapters {
public:
    Adapters() = default; // none

    // Loads the files of the parameters. The model owns what they hold. Throws ModelError for a file that does not fit
    // the model.
    Adapters(llama_model * model, const EngineParams & params);

    const std::vector<float> & scales() const { return scales_; } // in the order of the parameters
    void                       set_scales(const std::vector<float> & scales);

    // A context computes with them from now on.
    void apply(llama_context * ctx) const;

private:
    std::vector<llama_adapter_lora *> loaded_;
    std::vector<float>                scales_;
};

} // namespace tgr
