#include "bindings.h"

namespace tgr {

// Text of a model file need not be UTF-8: Python gets bytes.
static py::list metadata_of(const ModelInfo & info) {
    py::list pairs;
    for (const auto & [key, value] : info.metadata) {
        pairs.append(py::make_tuple(py::bytes(key), py::bytes(value)));
    }
    return pairs;
}

void bind_model_info(py::module_ & m) {
    py::class_<ModelInfo>(m, "ModelInfo", "What a model file says, and where its layers are: csrc/records.h.")
        .def_readonly("n_vocab", &ModelInfo::n_vocab)
        .def_readonly("n_embd", &ModelInfo::n_embd)
        .def_readonly("n_layer", &ModelInfo::n_layer)
        .def_readonly("n_ctx_train", &ModelInfo::n_ctx_train)
        .def_readonly("bos", &ModelInfo::bos)
        .def_readonly("eos", &ModelInfo::eos)
        .def_readonly("fim_pad", &ModelInfo::fim_pad)
        .def_readonly("eog", &ModelInfo::eog)
        .def_readonly("size_bytes", &ModelInfo::size_bytes)
        .def_readonly("n_params", &ModelInfo::n_params)
        .def_readonly("cell_bytes", &ModelInfo::cell_bytes)
        .def_readonly("state_bytes", &ModelInfo::state_bytes)
        .def_readonly("rolls_back", &ModelInfo::rolls_back)
        .def_readonly("repeats", &ModelInfo::repeats)
        .def_readonly("devices", &ModelInfo::devices)
        .def_readonly("fitted", &ModelInfo::fitted)
        .def_readonly("lowered", &ModelInfo::lowered)
        .def_readonly("fit_cells", &ModelInfo::fit_cells)
        .def_readonly("n_cpu_moe", &ModelInfo::n_cpu_moe)
        .def_property_readonly("classifier",
                               [](const ModelInfo & i) {
                                   const py::ssize_t n = i.n_embd > 0 ? py::ssize_t(i.classifier.size()) / i.n_embd : 0;
                                   return py::array_t<float>({ n, py::ssize_t(i.n_embd) }, i.classifier.data());
                               })
        .def_readonly("without_attention", &ModelInfo::without_attention)
        .def_property_readonly("description", [](const ModelInfo & i) { return py::bytes(i.description); })
        .def_property_readonly("chat_template", [](const ModelInfo & i) { return py::bytes(i.chat_template); })
        .def_property_readonly("metadata", &metadata_of);
}

} // namespace tgr
