#include "bindings.h"

namespace tgr {

void bind_job(py::module_ & m) {
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
        .def("outputs", [](JobHandle & h) {
            h.engine->check_here();
            return h.job->outputs();
        });
}

} // namespace tgr
