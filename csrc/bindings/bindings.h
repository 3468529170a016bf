// Python's view of the engine: one file for each class with methods, conversions only.
//
// Arguments are converted under the GIL, a C++ call that takes the engine's lock runs without it, arrays are built
// after it: the lock may be held while the cache grows.
#pragma once

#include "engine.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace py = pybind11;

namespace tgr {

// Calls Python, which may want the GIL again. Where the interpreter ends, Python before 3.14 ends every other thread at
// that point by unwinding its stack, and a destructor on the way, or the handler of an exception, would end the
// process: the thread sleeps instead. A destructor notices it, since `catch (...)` may not be entered from such a
// handler.
template <class F> auto in_python(F && f) {
    struct Sleep {
        int  n_exceptions = std::uncaught_exceptions();
        bool returned     = false;

        ~Sleep() {
            while (!returned && std::uncaught_exceptions() == n_exceptions) { // unwound by no C++ exception
                std::this_thread::sleep_for(std::chrono::hours(1));
            }
        }
    } sleep;
    if constexpr (std::is_void_v<decltype(f())>) {
        f();
        sleep.returned = true;
    } else {
        auto value     = f();
        sleep.returned = true;
        return value;
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

using release = py::call_guard<Released>; // suits calls that return C++ values, which need no GIL

template <class F> auto without_gil(F && f) {
    const Released released;
    return f();
}

// The same for destructors, which also run in threads without the GIL.
template <class F> void without_gil_if_held(F && f) {
    if (PyGILState_Check()) {
        without_gil(f);
    } else {
        f();
    }
}

// Hands numbers to numpy without a copy; the array may outlive the engine. With a width of n: [-1, n].
template <class T> py::array_t<T> to_numpy(const Array<T> & array) {
    auto *                   shared = new std::shared_ptr<std::vector<T>>(array.values);
    py::capsule              owner(shared, [](void * p) { delete static_cast<std::shared_ptr<std::vector<T>> *>(p); });
    const auto               n = py::ssize_t(array.values->size());
    std::vector<py::ssize_t> shape{ n };
    if (array.width > 0) {
        shape = { n / array.width, array.width };
    }
    return py::array_t<T>(shape, array.values->data(), owner);
}

// Converts a sequence of whole numbers below 2^31. ValueError for anything else.
std::vector<llama_token> tokens_of(const py::object & values);

// The tasks of Python's Task records. They name handles of Python, so the ids of their sequences and injections are
// separate arguments; `plain` is the injection of tokens that get none of the task's own.
std::vector<Task> tasks_of(const py::sequence & tasks, const std::vector<int32_t> & sequences,
                           const std::vector<int32_t> & injections, int32_t plain);

// A job with its engine, which it keeps alive.
struct JobHandle {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Job>    job;
};

// A request for a session, withdrawn when it is destroyed before its session was taken.
struct SessionRequest {
    std::shared_ptr<Engine> engine;
    std::future<uint64_t>   admitted;
    uint64_t                ticket = 0;
    bool                    taken  = false;

    ~SessionRequest() {
        if (!taken && ticket != 0) {
            without_gil_if_held([&] { engine->withdraw(ticket); });
        }
    }
};

void bind_records(py::module_ & m);
void bind_output(py::module_ & m);
void bind_job(py::module_ & m);
void bind_session_request(py::module_ & m);
void bind_engine(py::module_ & m);

} // namespace tgr
