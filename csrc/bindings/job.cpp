#include "bindings.h"

namespace tgr {

// New tokens of each task with their text, and whether the job is done.
static py::tuple take(JobHandle & h, double seconds, size_t least) {
    std::vector<std::string> texts;
    const Job::News          news = without_gil([&] {
        Job::News taken = h.job->take(seconds, least);
        for (size_t i = 0; i < taken.tokens.size(); ++i) {
            const auto & tokens = taken.tokens[i];
            texts.push_back(tokens.empty() ? "" : h.engine->detokenize(tokens, false, h.job->tasks[i].shown));
        }
        return taken;
    });
    py::list                 pieces;
    for (size_t i = 0; i < texts.size(); ++i) {
        pieces.append(py::make_tuple(news.tokens[i], py::bytes(texts[i])));
    }
    return py::make_tuple(pieces, news.done);
}

void bind_job(py::module_ & m) {
    py::class_<JobHandle>(m, "Job")
        .def("wait",
             [](JobHandle & h, double seconds) {
                 h.engine->check_here();
                 return without_gil([&] { return h.job->wait(seconds); });
             })
        .def("take",
             [](JobHandle & h, double seconds, size_t least) {
                 h.engine->check_here();
                 return take(h, seconds, least);
             })
        .def("take_part",
             [](JobHandle & h, size_t task, size_t n) {
                 h.engine->check_here();
                 return h.job->take_part(task, n);
             })
        .def("cancel", [](JobHandle & h) { h.engine->cancel(h.job); })
        .def("outputs", [](JobHandle & h) {
            h.engine->check_here();
            return h.job->outputs();
        });
}

} // namespace tgr
