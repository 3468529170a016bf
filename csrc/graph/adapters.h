// LoRA adapters: low-rank matrices that are added to a model's weights in every decode.
#pragma once

#include "job/records.h"

#include "llama.h"

#include <vector>

namespace tgr {

class Adapters {
public:
    Adapters() = default; // no adapters

    // Loads the files of the parameters. The model owns what they hold. Throws ModelError for a file that does not fit
    // the model.
    Adapters(llama_model * model, const EngineParams & params);

    const std::vector<float> & scales() const { return scales_; } // scale of each adapter, in the parameters' order
    void                       set_scales(const std::vector<float> & scales);

    // Makes a context compute with them from now on.
    void apply(llama_context * ctx) const;

private:
    std::vector<llama_adapter_lora *> loaded_;
    std::vector<float>                scales_;
};

} // namespace tgr
