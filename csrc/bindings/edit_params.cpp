#include "bindings.h"

#include "edits.h"

#include <cmath>

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

// An answer of edits over a vocabulary of given texts, for tests.
struct EditText {
    TokenTexts                        texts;
    std::shared_ptr<const EditParams> params;
    Edits                             edits;

    EditText(std::shared_ptr<const EditParams> given, std::vector<std::string> tokens, uint32_t limit) :
        texts(std::move(tokens)),
        params(std::move(given)),
        edits(*params, texts, limit) {}

    std::vector<llama_token> allowed() {
        std::vector<float> logits(size_t(texts.n_tokens()), 0.0f);
        edits.mask(logits.data());
        std::vector<llama_token> tokens;
        for (llama_token token = 0; token < texts.n_tokens(); ++token) {
            if (!std::isinf(logits[token])) {
                tokens.push_back(token);
            }
        }
        return tokens;
    }

    bool accept(llama_token token) {
        check_token("token", token, texts.n_tokens());
        return edits.accept(token);
    }
};

void bind_edit_params(py::module_ & m) {
    py::class_<EditParams, std::shared_ptr<EditParams>>(m, "EditParams").def(py::init(&make), release());
    py::class_<EditText>(m, "EditText")
        .def(py::init<std::shared_ptr<const EditParams>, std::vector<std::string>, uint32_t>())
        .def("allowed", &EditText::allowed)
        .def("accept", &EditText::accept)
        .def("cost", [](EditText & text) { return text.edits.cost(); });
}

} // namespace tgr
