#include "bindings/bindings.h"

namespace tgr {

template <class T> static auto numpy(Array<T> Output::* array) {
    return [array](const Output & output) { return to_numpy(output.*array); };
}

static const char * finish_of(const Output & output) {
    static constexpr const char * names[] = { "", "length", "stop", "cancelled" };
    return names[size_t(output.finish)];
}

void bind_output(py::module_ & m) {
    py::class_<Output> output(m, "Output", "The result of a task.");
    Output::each_token_array([&](const char * name, auto array) { output.def_property_readonly(name, numpy(array)); });
    output.def_property_readonly("feed_states", numpy(&Output::feed_states))
        .def_property_readonly("feed_logprobs", numpy(&Output::feed_logprobs))
        .def_property_readonly("norms", numpy(&Output::norms))
        .def_readonly("n_decoded", &Output::n_decoded)
        .def_readonly("n_reused", &Output::n_reused)
        .def_readonly("n_refused", &Output::n_refused)
        .def_property_readonly("finish", &finish_of)
        .def("__repr__",
             [](const Output & output) {
                 return "Output(" + std::to_string(output.tokens.values->size()) + " tokens, finish=\"" +
                        finish_of(output) + "\")";
             })
        .def("joined", &Output::joined, "This generation and the one that continued it, as one.", py::arg("more"))
        .def("beginning", &Output::beginning, "The first n tokens of a longer generation.", py::arg("n"));
}

} // namespace tgr
