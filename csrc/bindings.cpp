// Python's view of the engine: conversions only. Arguments are converted under the GIL, a C++ call that waits runs
// without it, arrays are built after it. Calls that only hand the worker a command keep the GIL.

#include "engine.h"

#include "ggml-backend.h"

#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace py = pybind11;
using namespace tgr;

// Calls Python, which may want the GIL again. Where the interpreter ends, Python before 3.14 ends every other thread at
// that point by unwinding its stack, and a destructor on the way would end the process: the thread sleeps instead.
template <class F> static auto in_python(F && f) {
    try {
        return f();
    } catch (const std::exception &) {
        throw;
    } catch (...) { // no C++ exception
        while (true) {
            std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
}

// The GIL is released while this lives.
class Released {
public:
    Released() : state_(PyEval_SaveThread()) {}
    ~Released() {
        in_python([&] { PyEval_RestoreThread(state_); });
    }
    Released(const Released &) = delete;

private:
    PyThreadState * state_;
};

template <class F> static auto without_gil(F && f) {
    const Released released;
    return f();
}

// Hands a vector to numpy without a copy; the array may outlive the engine. shape {-1, n} infers the first length.
template <class T> static py::array_t<T> to_numpy(std::vector<T> && values, py::ssize_t width = 0) {
    auto *                   heap = new std::vector<T>(std::move(values));
    py::capsule              owner(heap, [](void * p) { delete static_cast<std::vector<T> *>(p); });
    const auto               n = py::ssize_t(heap->size());
    std::vector<py::ssize_t> shape{ n };
    if (width > 0) {
        shape = { n / width, width };
    }
    return py::array_t<T>(shape, heap->data(), owner);
}

static std::vector<llama_token> tokens_of(const py::object & values) {
    using Wide        = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
    const auto given  = in_python([&] { return py::array::ensure(values); });
    const auto refuse = [] { throw py::value_error("tokens must be one sequence of whole numbers, each below 2^31"); };
    if (!given || given.ndim() != 1 ||
        (given.size() > 0 && given.dtype().kind() != 'i' && given.dtype().kind() != 'u')) {
        refuse();
    }
    const auto wide = in_python([&] { return Wide(given); });
    const auto fits = [](int64_t token) { return token == int64_t(llama_token(token)); };
    if (!std::all_of(wide.data(), wide.data() + wide.size(), fits)) {
        refuse();
    }
    return std::vector<llama_token>(wide.data(), wide.data() + wide.size());
}

static py::dict output_to_dict(Output & output, int32_t n_embd, int32_t n_top) {
    py::dict d;
    d["tokens"]           = to_numpy(std::move(output.tokens));
    d["logprobs"]         = to_numpy(std::move(output.logprobs));
    d["sampled_logprobs"] = to_numpy(std::move(output.sampled_logprobs));
    d["entropies"]        = to_numpy(std::move(output.entropies));
    d["states"]           = to_numpy(std::move(output.states), n_embd);
    d["feed_states"]      = to_numpy(std::move(output.feed_states), n_embd);
    d["feed_logprobs"]    = to_numpy(std::move(output.feed_logprobs));
    d["norm_sums"]        = to_numpy(std::move(output.norm_sums));
    d["norm_counts"]      = to_numpy(std::move(output.norm_counts));
    d["top_ids"]          = to_numpy(std::move(output.top_ids), n_top);
    d["top_logprobs"]     = to_numpy(std::move(output.top_logprobs), n_top);
    d["n_decoded"]        = output.n_decoded;
    d["finish"]           = output.finish;
    return d;
}

// A job with its engine, which it keeps alive, and the widths that its arrays need.
struct JobHandle {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Job>    job;
    std::vector<int32_t>    n_top;
};

static JobHandle submit(const std::shared_ptr<Engine> & engine, uint64_t session, const std::vector<Task> & tasks) {
    std::vector<int32_t> n_top;
    for (const Task & task : tasks) {
        n_top.push_back(task.n_top);
    }
    auto job = without_gil([&] { return engine->submit(session, tasks); });
    return { engine, std::move(job), std::move(n_top) };
}

static py::list outputs(JobHandle & handle) {
    handle.engine->check_here();
    std::vector<Output> & done = handle.job->outputs();
    py::list              list;
    for (size_t i = 0; i < done.size(); ++i) {
        list.append(output_to_dict(done[i], handle.engine->info().n_embd, handle.n_top[i]));
    }
    return list;
}

// A session that was asked for. wait() returns its id, or None when there was no room yet. Given up when it is garbage
// before that.
struct SessionRequest {
    std::shared_ptr<Engine> engine;
    std::future<uint64_t>   granted;
    uint64_t                ticket = 0;
    bool                    taken  = false;

    ~SessionRequest() {
        if (!taken && ticket != 0) {
            engine->give_up(ticket);
        }
    }

    std::optional<uint64_t> wait(double seconds) {
        engine->check_here();
        const auto status = without_gil([&] { return granted.wait_for(std::chrono::duration<double>(seconds)); });
        if (status != std::future_status::ready) {
            return std::nullopt;
        }
        taken = true;
        return granted.get();
    }
};

// The exception types live in tgr_local.errors. Bad arguments are std::invalid_argument, which pybind11 makes
// ValueError.
static void translate(std::exception_ptr error) {
    const auto raise = [](const char * type, const std::exception & e) {
        py::set_error(py::module_::import("tgr_local.errors").attr(type), e.what());
    };
    try {
        if (error) {
            std::rethrow_exception(error);
        }
    } catch (const ModelError & e) {
        raise("ModelError", e);
    } catch (const CapacityError & e) {
        raise("CapacityError", e);
    } catch (const CancelledError & e) {
        raise("CancelledError", e);
    } catch (const Error & e) {
        raise("TgrError", e);
    }
}

static void bind_parameters(py::module_ & m) {
    py::native_enum<Keep>(m, "Keep", "enum.Enum")
        .value("none", Keep::none)
        .value("last", Keep::last)
        .value("all", Keep::all)
        .finalize();

    py::class_<EngineParams>(m, "EngineParams")
        .def(py::init<>())
        .def_readwrite("path", &EngineParams::path)
        .def_readwrite("n_ctx", &EngineParams::n_ctx)
        .def_readwrite("n_batch", &EngineParams::n_batch)
        .def_readwrite("n_ubatch", &EngineParams::n_ubatch)
        .def_readwrite("n_seq_max", &EngineParams::n_seq_max)
        .def_readwrite("n_threads", &EngineParams::n_threads)
        .def_readwrite("n_gpu_layers", &EngineParams::n_gpu_layers)
        .def_readwrite("main_gpu", &EngineParams::main_gpu)
        .def_readwrite("tensor_split", &EngineParams::tensor_split)
        .def_readwrite("flash_attn", &EngineParams::flash_attn)
        .def_property(
            "type_k", [](const EngineParams & p) { return int(p.type_k); },
            [](EngineParams & p, int type) { p.type_k = ggml_type(type); })
        .def_property(
            "type_v", [](const EngineParams & p) { return int(p.type_v); },
            [](EngineParams & p, int type) { p.type_v = ggml_type(type); })
        .def_readwrite("use_mmap", &EngineParams::use_mmap)
        .def_readwrite("use_mlock", &EngineParams::use_mlock);

    py::class_<SamplingParams>(m, "SamplingParams")
        .def(py::init<>())
        .def_readwrite("temperature", &SamplingParams::temperature)
        .def_readwrite("top_k", &SamplingParams::top_k)
        .def_readwrite("top_p", &SamplingParams::top_p)
        .def_readwrite("min_p", &SamplingParams::min_p)
        .def_readwrite("repeat_penalty", &SamplingParams::repeat_penalty)
        .def_readwrite("frequency_penalty", &SamplingParams::frequency_penalty)
        .def_readwrite("presence_penalty", &SamplingParams::presence_penalty)
        .def_readwrite("penalty_last_n", &SamplingParams::penalty_last_n)
        .def_readwrite("grammar", &SamplingParams::grammar)
        .def_readwrite("logit_bias", &SamplingParams::logit_bias);

    py::class_<Task>(m, "Task")
        .def(py::init<>())
        .def_readwrite("sequence", &Task::sequence)
        .def_property(
            "feed", [](const Task & t) { return t.feed; },
            [](Task & t, const py::object & tokens) { t.feed = tokens_of(tokens); })
        .def_property(
            "history", [](const Task & t) { return t.history; },
            [](Task & t, const py::object & tokens) { t.history = tokens_of(tokens); })
        .def_property(
            "grammar_history", [](const Task & t) { return t.grammar_history; },
            [](Task & t, const py::object & tokens) { t.grammar_history = tokens_of(tokens); })
        .def_property(
            "tail", [](const Task & t) { return py::bytes(t.tail); },
            [](Task & t, const std::string & text) { t.tail = text; })
        .def_readwrite("direction", &Task::direction)
        .def_readwrite("n_generate", &Task::n_generate)
        .def_readwrite("sampling", &Task::sampling)
        .def_readwrite("seed", &Task::seed)
        .def_readwrite("stop", &Task::stop)
        .def_readwrite("ignore_eog", &Task::ignore_eog)
        .def_readwrite("states", &Task::states)
        .def_readwrite("feed_states", &Task::feed_states)
        .def_readwrite("feed_logprobs", &Task::feed_logprobs)
        .def_readwrite("norms", &Task::norms)
        .def_readwrite("n_top", &Task::n_top);
}

static void bind_results(py::module_ & m) {
    py::class_<ModelInfo>(m, "ModelInfo")
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
        .def_readonly("devices", &ModelInfo::devices)
        // text of a model file need not be UTF-8: it leaves as bytes
        .def_property_readonly("description", [](const ModelInfo & i) { return py::bytes(i.description); })
        .def_property_readonly("chat_template", [](const ModelInfo & i) { return py::bytes(i.chat_template); })
        .def_property_readonly("metadata", [](const ModelInfo & i) {
            py::list pairs;
            for (const auto & [key, value] : i.metadata) {
                pairs.append(py::make_tuple(py::bytes(key), py::bytes(value)));
            }
            return pairs;
        });

    py::class_<EngineStats>(m, "EngineStats")
        .def_readonly("n_positions", &EngineStats::n_positions)
        .def_readonly("n_decodes", &EngineStats::n_decodes)
        .def_readonly("decode_seconds", &EngineStats::decode_seconds)
        .def_readonly("sample_seconds", &EngineStats::sample_seconds)
        .def_readonly("n_ctx", &EngineStats::n_ctx)
        .def_readonly("n_seq_max", &EngineStats::n_seq_max)
        .def_readonly("cells_used", &EngineStats::cells_used)
        .def_readonly("cells_peak", &EngineStats::cells_peak)
        .def_readonly("cells_reserved", &EngineStats::cells_reserved)
        .def_readonly("n_sequences", &EngineStats::n_sequences)
        .def_readonly("n_sessions", &EngineStats::n_sessions)
        .def_readonly("n_waiting", &EngineStats::n_waiting)
        .def_readonly("n_jobs", &EngineStats::n_jobs);

    py::class_<JobHandle>(m, "Job")
        .def("wait",
             [](JobHandle & h, double seconds) {
                 h.engine->check_here();
                 return without_gil([&] { return h.job->wait(seconds); });
             })
        .def("take",
             [](JobHandle & h, double seconds) {
                 h.engine->check_here();
                 return without_gil([&] { return h.job->take(seconds); });
             })
        .def("cancel", [](JobHandle & h) { h.engine->cancel(h.job); })
        .def("outputs", &outputs);

    py::class_<SessionRequest>(m, "SessionRequest")
        .def("wait", &SessionRequest::wait)
        .def("in_the_way",
             [](SessionRequest & r) { return without_gil([&] { return r.engine->in_the_way(r.ticket); }); })
        .def("give_up", [](SessionRequest & r) { r.engine->give_up(r.ticket); });
}

static std::vector<float> pushes_of(const py::array_t<float, py::array::c_style | py::array::forcecast> & pushes) {
    return { pushes.data(), pushes.data() + pushes.size() };
}

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

static void bind_engine(py::module_ & m) {
    using release = py::call_guard<Released>; // only where C++ values come back, which need no GIL

    py::class_<Crew, std::shared_ptr<Crew>>(m, "Crew");

    py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
        .def(py::init(&make_engine))
        .def("close", &Engine::close, release())
        .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
        .def("stats", &Engine::stats, release())
        .def("tokenize", &Engine::tokenize, release())
        .def("check_grammar", &Engine::check_grammar, release())
        .def("detokenize", [](const Engine & e, const py::object & tokens,
                              bool special) { return py::bytes(e.detokenize(tokens_of(tokens), special)); })
        .def("reserve", &Engine::reserve, release())
        .def("crew", &Engine::crew, release())
        .def("leave", &Engine::leave)
        .def("open",
             [](const std::shared_ptr<Engine> & e, uint32_t n_cells, uint32_t n_seqs,
                const std::shared_ptr<Crew> & crew, uint32_t rank) {
                 auto request     = std::make_unique<SessionRequest>();
                 request->engine  = e;
                 request->granted = without_gil([&] { return e->open(n_cells, n_seqs, crew, rank, request->ticket); });
                 return request;
             })
        .def("close_session", &Engine::close_session)
        .def("session_peak", &Engine::session_peak, release())
        .def("sequence", &Engine::sequence, release())
        .def("fork", &Engine::fork, release())
        .def("truncate", &Engine::truncate, release())
        .def("shift", &Engine::shift, release())
        .def("drop", &Engine::drop)
        .def("length", &Engine::length, release())
        .def("direction",
             [](Engine & e, uint64_t session,
                const py::array_t<float, py::array::c_style | py::array::forcecast> & pushes) {
                 auto values = pushes_of(pushes);
                 return without_gil([&] { return e.direction(session, std::move(values)); });
             })
        .def("drop_direction", &Engine::drop_direction)
        .def("submit", &submit);
}

static py::list ggml_devices() {
    py::list list;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        size_t             free = 0, total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        const char * kinds[] = { "cpu", "gpu", "igpu", "accelerator" };
        const auto   type    = size_t(ggml_backend_dev_type(device));
        list.append(py::make_tuple(ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                                   type < 4 ? kinds[type] : "other", total, free));
    }
    return list;
}

PYBIND11_MODULE(_engine, m) {
    m.doc() = "The native engine. Use tgr_local.engine, which checks arguments and frees what it holds.";
    m.attr("llama_cpp_python_version") = LLAMA_CPP_PYTHON_VERSION;
    py::register_exception_translator(&translate);
    bind_parameters(m);
    bind_results(m);
    bind_engine(m);
    m.def("forked", &forked, "To be called in the child after a fork: engines made before are of no use there.");
    m.def("devices", &ggml_devices, "(name, description, kind, total bytes, free bytes) of every device of ggml.");
}
