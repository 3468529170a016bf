#include "bindings.h"

namespace tgr {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Freed without the GIL: the destructor waits for the worker, which may wait for a thread that needs the GIL. In a
// forked child it is not freed at all.
static std::shared_ptr<Engine> make_engine(const EngineParams & params) {
    auto * engine = without_gil([&] { return new Engine(params); });
    return { engine, [](Engine * e) {
                if (!e->here()) {
                    return;
                }
                if (PyGILState_Check()) {
                    without_gil([&] {
                        delete e;
                        return 0;
                    });
                } else {
                    delete e;
                }
            } };
}

static std::unique_ptr<SessionRequest> open(const std::shared_ptr<Engine> & engine, uint32_t n_cells, uint32_t n_seqs,
                                            const std::shared_ptr<LockstepGroup> & group, uint32_t index) {
    auto request      = std::make_unique<SessionRequest>();
    request->engine   = engine;
    request->admitted = without_gil([&] { return engine->open(n_cells, n_seqs, group, index, request->ticket); });
    return request;
}

static int32_t injection(Engine & engine, uint64_t session, const Floats & vectors) {
    std::vector<float> values(vectors.data(), vectors.data() + vectors.size());
    return without_gil([&] { return engine.injection(session, std::move(values)); });
}

static JobHandle submit(const std::shared_ptr<Engine> & engine, uint64_t session, const py::sequence & tasks,
                        const std::vector<int32_t> & sequences, const std::vector<int32_t> & injections) {
    auto given = tasks_of(tasks, sequences, injections);
    auto job   = without_gil([&] { return engine->submit(session, std::move(given)); });
    return { engine, std::move(job) };
}

void bind_engine(py::module_ & m) {
    py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
        .def(py::init(&make_engine))
        .def("close", &Engine::close, release())
        .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
        .def("stats", &Engine::stats, release())
        .def("tokenize", &Engine::tokenize, release())
        .def("check_grammar", &Engine::check_grammar, release())
        .def("detokenize", [](const Engine & e, const py::object & tokens,
                              bool special) { return py::bytes(e.detokenize(tokens_of(tokens), special)); })
        .def("grow_cache", &Engine::grow_cache, release())
        .def("group", &Engine::group, release())
        .def("leave", &Engine::leave)
        .def("open", &open)
        .def("close_session", &Engine::close_session)
        .def("session_peak", &Engine::session_peak, release())
        .def("sequence", &Engine::sequence, release())
        .def("fork", &Engine::fork, release())
        .def("truncate", &Engine::truncate, release())
        .def("shift", &Engine::shift, release())
        .def("drop", &Engine::drop)
        .def("length", &Engine::length, release())
        .def("injection", &injection)
        .def("drop_injection", &Engine::drop_injection)
        .def("submit", &submit);
}

} // namespace tgr
