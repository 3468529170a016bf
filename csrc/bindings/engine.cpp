#include "bindings/bindings.h"

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
                if (e->here()) {
                    without_gil_if_held([&] { delete e; });
                }
            } };
}

static std::unique_ptr<SessionRequest> open(const std::shared_ptr<Engine> & engine, uint32_t n_cells, uint32_t n_seqs,
                                            const std::shared_ptr<LockstepGroup> & group, uint32_t index,
                                            const py::object & prompt, const std::string & digest, bool norms,
                                            bool preemptible) {
    auto   request    = std::make_unique<SessionRequest>();
    Prompt known      = { tokens_of(prompt), digest, 0 };
    known.norm_stride = norms ? norm_stride(known.tokens.size()) : 0;
    request->engine   = engine;
    request->admitted = without_gil(
        [&] { return engine->open(n_cells, n_seqs, preemptible, std::move(known), group, index, request->ticket); });
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

static std::vector<std::pair<std::vector<llama_token>, py::bytes>> prefixes(Engine & engine) {
    const auto all = without_gil([&] { return engine.prefixes(); });
    return { all.begin(), all.end() };
}

template <class T> static py::bytes bytes_of(const std::vector<T> & numbers) {
    return py::bytes(reinterpret_cast<const char *>(numbers.data()), numbers.size() * sizeof(T));
}

static py::tuple read_prefix(Engine & engine, const py::object & tokens, const std::string & digest) {
    const Prompt     prompt{ tokens_of(tokens), digest, 0 };
    const PrefixData data   = without_gil([&] { return engine.read_prefix(prompt); });
    const Prefix &   prefix = data.prefix;
    return py::make_tuple(prefix.tokens, bytes_of(prefix.norms), bytes_of(prefix.state), bytes_of(data.cells));
}

static bool add_prefix(Engine & engine, const py::object & tokens, const std::string & digest,
                       const std::string & norms, const std::string & state, const std::string & cells) {
    PrefixData data;
    Prefix &   prefix = data.prefix;
    prefix.tokens     = tokens_of(tokens);
    prefix.digest     = digest;
    prefix.norms.resize(norms.size() / sizeof(float));
    std::copy_n(norms.data(), prefix.norms.size() * sizeof(float), reinterpret_cast<char *>(prefix.norms.data()));
    prefix.state.assign(state.begin(), state.end());
    data.cells.assign(cells.begin(), cells.end());
    return without_gil([&] { return engine.add_prefix(std::move(data)); });
}

static py::dict stats(Engine & engine) {
    const EngineStats now = without_gil([&] { return engine.stats(); });
    py::dict          by_name;
#define TGR_ITEM(type, name, about) by_name[#name] = now.name;
    TGR_ENGINE_STATS(TGR_ITEM)
#undef TGR_ITEM
    return by_name;
}

void bind_engine(py::module_ & m) {
    py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine",
                                                "One model, one KV cache, one worker thread: csrc/engine.h.")
        .def(py::init(&make_engine), "Loads a model; `check` is called now and then, and what it raises ends the load.",
             py::arg("params"), py::arg("check"))
        .def("close", &Engine::close, release(),
             "Ends all work with CancelledError and frees the model. May be called again.")
        .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
        .def("stats", &stats,
             "Counts by name, those of csrc/job/records.h; what commands change is not in them while "
             "a step takes longer than a second.")
        .def("tokenize", &Engine::tokenize, release(), py::arg("text"), py::arg("add_special"),
             py::arg("parse_special"))
        .def("check_grammar", &Engine::check_grammar, release(),
             "ValueError for a text that is no GBNF, or refuses the prefix.", py::arg("grammar"), py::arg("prefix"))
        .def(
            "detokenize",
            [](const Engine & e, const py::object & tokens, bool special, const py::object & shown) {
                return py::bytes(e.detokenize(tokens_of(tokens), special, tokens_of(shown)));
            },
            "Their text; of control tokens only where `special`, and those that are `shown`.", py::arg("tokens"),
            py::arg("special"), py::arg("shown"))
        .def("grow_cache", &Engine::grow_cache, release(),
             "Makes room for n_sessions of n_cells each, if the cache grows and no session is open or it is bounded.",
             py::arg("n_cells"), py::arg("n_sessions"))
        .def("shrink_cache", &Engine::shrink_cache, release(),
             "Makes the cache as small as n_cells again, if no session is open; remembered prefixes stay.",
             py::arg("n_cells"))
        .def("set_scales", &Engine::set_scales, release(),
             "Sets the scales of the LoRA adapters, if no session is open, and forgets remembered prefixes.",
             py::arg("scales"))
        .def("bound_cache", &Engine::bound_cache, release(),
             "Bounds a cache that grows, which then does so while sessions are open too.", py::arg("n_cells"))
        .def("n_cells_possible", &Engine::n_cells_possible, release(),
             "The most cells that the cache may have, an estimate.")
        .def("memory", &Engine::memory, release(),
             "Bytes of the context on all devices, and of these what decoding computes in.")
        .def("group", &Engine::group, release(), "A group of n participants.", py::arg("n"))
        .def("leave", &Engine::leave, release(), "Ends the part of a participant in its group.", py::arg("group"),
             py::arg("index"))
        .def("open", &open, "Asks for a session; `prompt` is what it will read first.", py::arg("n_cells"),
             py::arg("n_seqs"), py::arg("group"), py::arg("index"), py::arg("prompt"), py::arg("digest"),
             py::arg("norms"), py::arg("preemptible") = false)
        .def("close_session", &Engine::close_session, release(), py::arg("session"))
        .def("session_peak", &Engine::session_peak, release(), "Cells used at most since the last reset.",
             py::arg("session"), py::arg("reset"))
        .def("sequence", &Engine::sequence, release(), "A new, empty sequence.", py::arg("session"))
        .def("fork", &Engine::fork, release(), "A sequence with the cells of this one.", py::arg("session"),
             py::arg("sequence"))
        .def("truncate", &Engine::truncate, release(), "Removes all but the first n_tokens.", py::arg("session"),
             py::arg("sequence"), py::arg("n_tokens"))
        .def("shift", &Engine::shift, release(), "Removes [start, end) and moves what follows.", py::arg("session"),
             py::arg("sequence"), py::arg("start"), py::arg("end"))
        .def("drop", &Engine::drop, release(), "Frees a sequence.", py::arg("session"), py::arg("sequence"))
        .def("length", &Engine::length, release(), "Its number of tokens.", py::arg("session"), py::arg("sequence"))
        .def("remember", &Engine::remember, release(), "Keeps its cells as a prefix.", py::arg("session"),
             py::arg("sequence"))
        .def("prefixes", &prefixes, "(tokens, digest) of the remembered prefixes, the latest first.")
        .def("read_prefix", &read_prefix,
             "The longest prefix of the tokens that is remembered: tokens, and as bytes: float32 norms [n, n_layer], "
             "recurrent state, keys and values.",
             py::arg("tokens"), py::arg("digest"))
        .def("add_prefix", &add_prefix,
             "Remembers what read_prefix gave, here or elsewhere; False where there is no room.", py::arg("tokens"),
             py::arg("digest"), py::arg("norms"), py::arg("state"), py::arg("cells"))
        .def("memory_layout", &Engine::memory_layout, release(), "What the bytes of a prefix depend on.")
        .def("injection", &injection, "Adds vectors [n_layer, n_embd] to the session.", py::arg("session"),
             py::arg("vectors"), py::arg("digest"))
        .def("drop_injection", &Engine::drop_injection, release(), py::arg("session"), py::arg("injection"))
        .def("submit", &submit,
             "Starts tasks as one job; `plain` is the injection of tokens that get none of their own.",
             py::arg("session"), py::arg("tasks"), py::arg("sequences"), py::arg("injections"), py::arg("plain"));
}

} // namespace tgr
