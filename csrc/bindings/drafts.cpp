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

// How many tokens are decoded along with each of several texts, of which (n_left, n_alike) are given, after runs of
// right tokens (n_matched, n_right) that ended with a wrong one.
static std::vector<size_t> rows_of(const std::vector<std::pair<size_t, size_t>> & drafts,
                                   const std::vector<std::pair<size_t, size_t>> & runs, size_t widest, double slowest) {
    Hits hits;
    for (const auto & [n_matched, n_right] : runs) {
        for (size_t n = 1; n <= n_right; ++n) {
            hits.note(n_matched, n, false);
        }
        hits.note(n_matched, n_right, true);
    }
    std::vector<Guess> guesses;
    for (const auto & [n_left, n_alike] : drafts) {
        guesses.push_back({ n_left, {} });
        for (size_t k = 0; k < Hits::LENGTHS.size(); ++k) {
            guesses.back().right.push_back(hits.expected(n_alike, k));
        }
    }
    const std::vector<size_t> lengths(Hits::LENGTHS.begin(), Hits::LENGTHS.end());
    return choose_rows(guesses, lengths, StepTimes(Kernels::ggml, 1), 0.0, widest, slowest);
}

// The same for texts that a draft model follows, which can have n_left more tokens each, after guesses that were right
// or wrong; `price` is the time of a guess.
static std::vector<size_t> asked_rows(const std::vector<size_t> & n_left, const std::vector<bool> & guesses,
                                      double price, const std::string & kernels, int32_t n_threads, size_t widest,
                                      double slowest) {
    const Kernels times = kernels == "gpu" ? Kernels::gpu : kernels == "own" ? Kernels::own : Kernels::ggml;
    Trust         trust;
    for (const bool right : guesses) {
        trust.note(right);
    }
    std::vector<Guess> texts;
    for (const size_t n : n_left) {
        texts.push_back({ n, {} });
        for (const size_t length : ASKED_LENGTHS) {
            texts.back().right.push_back(trust.expected(length));
        }
    }
    return choose_rows(texts, ASKED_LENGTHS, StepTimes(times, n_threads), price, widest, slowest);
}

void bind_drafts(py::module_ & m) {
    m.def("look_up", &look_up_in, py::arg("own"), py::arg("next"), py::arg("others"), py::arg("most"),
          py::arg("n_read"));
    m.def("draft_rows", &rows_of, py::arg("drafts"), py::arg("runs"), py::arg("widest"), py::arg("slowest"));
    m.def("asked_rows", &asked_rows, py::arg("n_left"), py::arg("guesses"), py::arg("price"), py::arg("kernels"),
          py::arg("n_threads"), py::arg("widest"), py::arg("slowest"));
}

} // namespace tgr
