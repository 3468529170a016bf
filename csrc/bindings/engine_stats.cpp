#include "bindings.h"

namespace tgr {

void bind_engine_stats(py::module_ & m) {
    py::class_<EngineStats>(m, "EngineStats", "Counts since loading, and what is in use now: csrc/records.h.")
        .def_readonly("n_positions", &EngineStats::n_positions)
        .def_readonly("n_decodes", &EngineStats::n_decodes)
        .def_readonly("n_graphs", &EngineStats::n_graphs)
        .def_readonly("n_whole_graphs", &EngineStats::n_whole_graphs)
        .def_readonly("n_splits", &EngineStats::n_splits)
        .def_readonly("n_drafted", &EngineStats::n_drafted)
        .def_readonly("n_accepted", &EngineStats::n_accepted)
        .def_readonly("decode_seconds", &EngineStats::decode_seconds)
        .def_readonly("sample_seconds", &EngineStats::sample_seconds)
        .def_readonly("n_threads", &EngineStats::n_threads)
        .def_readonly("n_ctx", &EngineStats::n_ctx)
        .def_readonly("n_seq_max", &EngineStats::n_seq_max)
        .def_readonly("cells_used", &EngineStats::cells_used)
        .def_readonly("cells_peak", &EngineStats::cells_peak)
        .def_readonly("cells_reserved", &EngineStats::cells_reserved)
        .def_readonly("cells_remembered", &EngineStats::cells_remembered)
        .def_readonly("n_prefixes", &EngineStats::n_prefixes)
        .def_readonly("n_sequences", &EngineStats::n_sequences)
        .def_readonly("n_sessions", &EngineStats::n_sessions)
        .def_readonly("n_waiting", &EngineStats::n_waiting)
        .def_readonly("n_jobs", &EngineStats::n_jobs);
}

} // namespace tgr
