// Records without methods: what they hold is in csrc/job/records.h.
#include "bindings/bindings.h"

namespace tgr {

// Text of a model file need not be UTF-8: Python gets bytes.
static std::vector<std::pair<py::bytes, py::bytes>> metadata_of(const ModelInfo & info) {
    return { info.metadata.begin(), info.metadata.end() };
}

void bind_records(py::module_ & m) {
    py::class_<EngineParams>(m, "EngineParams", "How a model is loaded: csrc/job/records.h.")
        .def(py::init<>())
        .def_readwrite("path", &EngineParams::path)
        .def_readwrite("n_ctx", &EngineParams::n_ctx)
        .def_readwrite("n_batch", &EngineParams::n_batch)
        .def_readwrite("n_ubatch", &EngineParams::n_ubatch)
        .def_readwrite("n_seq_max", &EngineParams::n_seq_max)
        .def_readwrite("prefix_cells", &EngineParams::prefix_cells)
        .def_readwrite("reproducible", &EngineParams::reproducible)
        .def_readwrite("step_seconds", &EngineParams::step_seconds)
        .def_readwrite("n_threads", &EngineParams::n_threads)
        .def_readwrite("fixed_threads", &EngineParams::fixed_threads)
        .def_readwrite("n_gpu_layers", &EngineParams::n_gpu_layers)
        .def_readwrite("n_cpu_moe", &EngineParams::n_cpu_moe)
        .def_readwrite("main_gpu", &EngineParams::main_gpu)
        .def_readwrite("rpc", &EngineParams::rpc)
        .def_readwrite("tensor_split", &EngineParams::tensor_split)
        .def_readwrite("flash_attn", &EngineParams::flash_attn)
        .def_property(
            "type_k", [](const EngineParams & p) { return int(p.type_k); },
            [](EngineParams & p, int type) { p.type_k = ggml_type(type); })
        .def_property(
            "type_v", [](const EngineParams & p) { return int(p.type_v); },
            [](EngineParams & p, int type) { p.type_v = ggml_type(type); })
        .def_readwrite("loras", &EngineParams::loras)
        .def_readwrite("use_mmap", &EngineParams::use_mmap)
        .def_readwrite("use_mlock", &EngineParams::use_mlock);

    py::class_<ModelInfo>(m, "ModelInfo", "What a model file says, and where its layers are: csrc/job/records.h.")
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
