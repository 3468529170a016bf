#include "bindings.h"

#include "edits.h"

namespace tgr {

using Opening = std::tuple<std::string, uint32_t, uint32_t, uint32_t, bool>;

static std::shared_ptr<EditParams> make(std::vector<std::string> files, const std::vector<Opening> & openings,
                                        std::string again, std::string separator, std::string closing,
                                        const std::string & banned) {
    std::vector<EditOpening> made;
    for (const auto & [text, file, first, end, quotes] : openings) {
        made.push_back({ text, file, first, end, quotes });
    }
    return std::make_shared<EditParams>(std::move(files), std::move(made), std::move(again), std::move(separator),
                                        std::move(closing), banned);
}

void bind_edit_params(py::module_ & m) {
    py::class_<EditParams, std::shared_ptr<EditParams>>(
        m, "EditParams",
        "What an answer of edits may be: csrc/edit_rules.h. An opening is (text, file, first, end, quotes).")
        .def(py::init(&make), release(), py::arg("files"), py::arg("openings"), py::arg("again"), py::arg("separator"),
             py::arg("closing"), py::arg("banned"));
}

} // namespace tgr
