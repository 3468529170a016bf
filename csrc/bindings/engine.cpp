#include "bindings.h"

#include <optional>

namespace tgr {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Freed without the GIL: the destructor waits for the worker, which may wait for a thread that needs the GIL. In a
// forked child it is not freed at all.
//
// While it loads, `check` is called now and then, and signals are handled if this is the main thread; what they raise
// ends the load.
static std::shared_ptr<Engine> make_engine(const EngineParams & params, const py::function & check) {
    const auto ask = [&] {
        in_python([&] {
            const py::gil_scoped_acquire acquired;
            in_python([&] { // again, so that the thread sleeps before `acquired` is destroyed
                if (PyErr_CheckSignals() != 0) {
                    throw py::error_already_set();
                }
                check();
            });
        });
    };
    auto * engine = without_gil([&] { return new Engine(params, ask); });
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
                                            const std::shared_ptr<LockstepGroup> & group, uint32_t index,
                                            const py::object & prompt, const std::string & digest, bool norms) {
    auto   request    = std::make_unique<SessionRequest>();
    Prompt known      = { tokens_of(prompt), digest, 0 };
    known.norm_stride = norms ? norm_stride(known.tokens.size()) : 0;
    request->engine   = engine;
    request->admitted =
        without_gil([&] { return engine->open(n_cells, n_seqs, std::move(known), group, index, request->ticket); });
    return request;
}

static int32_t injection(Engine & engine, uint64_t session, const Floats & vectors,
                         const std::optional<std::string> & digest) {
    std::vector<float> values(vectors.data(), vectors.data() + vectors.size());
    Injected           injected{ digest.has_value(), digest.value_or("") };
    return without_gil([&] { return engine.injection(session, std::move(values), std::move(injected)); });
}

static JobHandle submit(const std::shared_ptr<Engine> & engine, uint64_t session, const py::sequence & tasks,
                        const std::vector<int32_t> & sequences, const std::vector<int32_t> & injections,
                        int32_t plain) {
    auto given = tasks_of(tasks, sequences, injections, plain);
    auto job   = without_gil([&] { return engine->submit(session, std::move(given)); });
    return { engine, std::move(job) };
}

static py::list prefixes(Engine & engine) {
    const auto all = without_gil([&] { return engine.prefixes(); });
    py::list   list;
    for (const auto & [tokens, digest] : all) {
        list.append(py::make_tuple(tokens, py::bytes(digest)));
    }
    return list;
}

static py::bytes bytes_of(const void * data, size_t n) {
    return py::bytes(static_cast<const char *>(data), n);
}

static py::tuple read_prefix(Engine & engine, const py::object & tokens, const std::string & digest) {
    const Prompt     prompt{ tokens_of(tokens), digest, 0 };
    const PrefixData data = without_gil([&] { return engine.read_prefix(prompt); });
    return py::make_tuple(data.tokens, bytes_of(data.norms.data(), data.norms.size() * sizeof(float)),
                          bytes_of(data.state.data(), data.state.size()),
                          bytes_of(data.cells.data(), data.cells.size()));
}

static bool add_prefix(Engine & engine, const py::object & tokens, const std::string & digest,
                       const std::string & norms, const std::string & state, const std::string & cells) {
    PrefixData data;
    data.tokens = tokens_of(tokens);
    data.digest = digest;
    data.norms.resize(norms.size() / sizeof(float));
    std::copy_n(norms.data(), data.norms.size() * sizeof(float), reinterpret_cast<char *>(data.norms.data()));
    data.state.assign(state.begin(), state.end());
    data.cells.assign(cells.begin(), cells.end());
    return without_gil([&] { return engine.add_prefix(std::move(data)); });
}

void bind_engine(py::module_ & m) {
    py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
        .def(py::init(&make_engine))
        .def("close", &Engine::close, release())
        .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
        .def("stats", &Engine::stats, release())
        .def("tokenize", &Engine::tokenize, release())
        .def("check_grammar", &Engine::check_grammar, release())
        .def("edit_tokens", &Engine::edit_tokens, release())
        .def("detokenize",
             [](const Engine & e, const py::object & tokens, bool special, const py::object & shown) {
                 return py::bytes(e.detokenize(tokens_of(tokens), special, tokens_of(shown)));
             })
        .def("grow_cache", &Engine::grow_cache, release())
        .def("shrink_cache", &Engine::shrink_cache, release())
        .def("bound_cache", &Engine::bound_cache)
        .def("n_cells_possible", &Engine::n_cells_possible, release())
        .def("memory", &Engine::memory, release())
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
        .def("remember", &Engine::remember, release())
        .def("is_busy", &Engine::is_busy, release())
        .def("prefixes", &prefixes)
        .def("read_prefix", &read_prefix)
        .def("add_prefix", &add_prefix)
        .def("memory_layout", &Engine::memory_layout, release())
        .def("injection", &injection)
        .def("drop_injection", &Engine::drop_injection)
        .def("submit", &submit);
}

} // namespace tgr
