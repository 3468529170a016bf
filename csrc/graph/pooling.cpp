#include "graph/pooling.h"

#include "llama-model.h"

#include "ggml-backend.h"

#include <cstdint>
#include <cstring>

namespace tgr {

bool looks_ahead(const llama_model * model) {
    return !model->hparams.causal_attn;
}

std::vector<float> classifier_of(const llama_model * model) {
    const ggml_tensor * weights = model->cls_out;
    if (!weights) {
        return {};
    }
    std::vector<uint8_t> bytes(ggml_nbytes(weights));
    ggml_backend_tensor_get(weights, bytes.data(), 0, bytes.size());
    std::vector<float> values(size_t(ggml_nelements(weights)));
    if (weights->type == GGML_TYPE_F32) {
        std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
        ggml_get_type_traits(weights->type)->to_float(bytes.data(), values.data(), int64_t(values.size()));
    }
    return values;
}

} // namespace tgr
