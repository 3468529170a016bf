#include "bindings.h"

namespace tgr {

void bind_engine_params(py::module_ & m) {
    py::class_<EngineParams>(m, "EngineParams", "How a model is loaded: csrc/records.h.")
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
}

} // namespace tgr
