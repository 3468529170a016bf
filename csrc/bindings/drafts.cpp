// Drafts without an engine, for tests.
#include "drafts.h"
#include "bindings.h"

namespace tgr {

static std::pair<Tokens, size_t> look_up_in(const Tokens & own, llama_token next, const std::vector<Tokens> & others,
                                            size_t most, size_t n_read) {
    std::vector<const Tokens *> texts;
    for (const Tokens & other : others) {
        texts.push_back(&other);
    }
    const Draft draft = look_up(own, next, texts, most, n_read);
    return { draft.tokens, draft.n_matched };
}

// How many tokens are decoded along with each of several texts, which a draft of n_tokens after n_matched follows, when
// steps of some widths took so many seconds; nothing measured = by the curve.
static std::vector<size_t> rows_of(const std::vector<std::pair<size_t, size_t>> & drafts,
                                   const std::vector<std::pair<size_t, double>> & measured, size_t widest,
                                   double slowest) {
    std::vector<Draft> made;
    for (const auto & [n_tokens, n_matched] : drafts) {
        made.push_back({ Tokens(n_tokens), n_matched });
    }
    const Acceptance   acceptance;
    std::vector<Guess> guesses;
    for (const Draft & draft : made) {
        guesses.push_back({ &draft, &acceptance });
    }
    StepTimes times;
    for (const auto & [width, seconds] : measured) {
        times.note(width, seconds);
    }
    return choose_rows(guesses, measured.empty() ? nullptr : &times, widest, slowest);
}

void bind_drafts(py::module_ & m) {
    m.def("look_up", &look_up_in, py::arg("own"), py::arg("next"), py::arg("others"), py::arg("most"),
          py::arg("n_read"));
    m.def("draft_rows", &rows_of, py::arg("drafts"), py::arg("measured"), py::arg("widest"), py::arg("slowest"));
}

} // namespace tgr
