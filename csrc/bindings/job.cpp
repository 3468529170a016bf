#include "bindings/bindings.h"

namespace tgr {

// New tokens of each task with their text, and whether the job is done.
static py::tuple take(JobHandle & h, double seconds, size_t least) {
    h.engine->check_here();
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
    py::class_<JobHandle>(m, "Job", "Tasks that were submitted together.")
        .def(
            "wait",
            [](JobHandle & h, double seconds) {
                h.engine->check_here();
                return h.job->wait(seconds);
            },
            release(), "Waits so long at most; whether the job is done.", py::arg("seconds"))
        .def("take", &take,
             "Waits for `least` new tokens, so long at most: (tokens, text) of each task since the last call, and "
             "whether the job is done.",
             py::arg("seconds"), py::arg("least"))
        .def(
            "take_part",
            [](JobHandle & h, size_t task, size_t n) {
                h.engine->check_here();
                return h.job->take_part(task, n);
            },
            release(), "The next n tokens of a task with parts, which `take` has returned.", py::arg("task"),
            py::arg("n"))
        .def(
            "cancel", [](JobHandle & h) { h.engine->cancel(h.job); }, release(),
            "Ends it at once; what was generated stays.")
        .def(
            "outputs",
            [](JobHandle & h) {
                h.engine->check_here();
                return h.job->outputs();
            },
            "The outputs of a job that is done, one for each task. Raises the error that ended it.");
}

} // namespace tgr
