// The module tgr_testing, which no wheel has: drafts, grammars, constraints of edits, products of quantized weights,
// numbers of threads and where layers go without an engine, for tests.
#include "drafts.h"
#include "edits.h"
#include "fitting.h"
#include "grammar.h"
#include "quantized/products.h"
#include "thread_count.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace tgr {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

//
// drafts
//

std::pair<Tokens, size_t> look_up_in(const Tokens & own, llama_token next, const std::vector<Tokens> & others,
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
std::vector<size_t> rows_of(const std::vector<std::pair<size_t, size_t>> & drafts,
                            const std::vector<std::pair<size_t, size_t>> & runs, const std::string & kernels,
                            int32_t n_threads, size_t widest, double slowest) {
    const Kernels by = kernels == "gpu" ? Kernels::gpu : kernels == "own" ? Kernels::own : Kernels::ggml;
    Hits          hits;
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
            guesses.back().right[k] = hits.expected(n_alike, k);
        }
    }
    return choose_rows(guesses, StepTimes(by, n_threads), widest, slowest);
}

//
// constraints
//

// The tokens that a mask leaves.
template <class Mask> std::vector<llama_token> unmasked(const TokenTexts & texts, Mask && mask) {
    std::vector<float> logits(size_t(texts.n_tokens()), 0.0f);
    mask(logits.data());
    std::vector<llama_token> tokens;
    for (llama_token token = 0; token < texts.n_tokens(); ++token) {
        if (!std::isinf(logits[size_t(token)])) {
            tokens.push_back(token);
        }
    }
    return tokens;
}

void check_token(const TokenTexts & texts, llama_token token) {
    if (token < 0 || token >= texts.n_tokens()) {
        throw std::invalid_argument("there is no such token");
    }
}

// A text in a grammar, over a vocabulary of given texts.
struct GrammarText {
    TokenTexts texts;
    Grammar    grammar;

    GrammarText(const std::string & rules, std::vector<std::string> tokens) :
        texts(std::move(tokens)),
        grammar(std::make_shared<const GrammarRules>(parse_gbnf(rules, [](const std::string &) { return -1; })),
                GRAMMAR_WORK) {
        texts.prepare();
    }

    std::vector<llama_token> allowed() {
        return unmasked(texts, [&](float * logits) { grammar.mask(texts, logits); });
    }

    // Without the mask: each by itself.
    std::vector<llama_token> readable() const {
        std::vector<llama_token> tokens;
        for (llama_token token = 0; token < texts.n_tokens(); ++token) {
            if (Grammar copy = grammar; copy.accept(texts, token)) {
                tokens.push_back(token);
            }
        }
        return tokens;
    }

    bool accept(llama_token token) {
        check_token(texts, token);
        return grammar.accept(texts, token);
    }
};

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
        return unmasked(texts, [&](float * logits) { edits.mask(logits); });
    }

    bool accept(llama_token token) {
        check_token(texts, token);
        return edits.accept(token);
    }
};

//
// products
//

// Of rows [first, n_rows) of weights, as a file holds them, with tokens [n_tokens, n]: [n_tokens, n_rows], zero for the
// others.
py::array_t<float> products(int type, const std::string_view & weights, int64_t n_rows, const Floats & tokens,
                            int64_t first) {
    const auto kind = ggml_type(type);
    if (type < 0 || type >= GGML_TYPE_COUNT || !has_products(kind)) {
        throw std::runtime_error(
            "this processor has no products of weights of this type, or TGR_PRODUCTS turned them off");
    }
    const int64_t n_tokens = tokens.shape(0), n = tokens.shape(1);
    if (n % ggml_blck_size(kind) != 0 || weights.size() != size_t(n_rows) * ggml_row_size(kind, n) || first < 0 ||
        first > n_rows) {
        throw std::invalid_argument("the weights are no rows of that length");
    }
    const size_t         bytes = packed_token_bytes(n);
    std::vector<uint8_t> packed(bytes * size_t(n_tokens));
    for (int64_t t = 0; t < n_tokens; ++t) {
        pack_token(tokens.data(t, 0), n, packed.data() + bytes * size_t(t));
    }
    py::array_t<float> all({ n_tokens, n_rows });
    std::fill_n(all.mutable_data(), all.size(), 0.0f);
    multiply_rows(kind, weights.data(), n, first, n_rows, packed.data(), n_tokens, all.mutable_data(), n_rows);
    return all;
}

} // namespace

} // namespace tgr

using namespace tgr;

// An EditParams is one of the module _engine, which is to be imported first.
PYBIND11_MODULE(tgr_testing, m) {
    m.doc() = "Parts of the engine without an engine, for tests.";
    m.def("look_up", &look_up_in, "A draft and the number of tokens that were alike.", py::arg("own"), py::arg("next"),
          py::arg("others"), py::arg("most"), py::arg("n_read"));
    m.def("draft_rows", &rows_of,
          "How many tokens of each draft (tokens, tokens alike) a batch gets after runs of right tokens (tokens alike, "
          "right ones) that ended with a wrong one.",
          py::arg("drafts"), py::arg("runs"), py::arg("kernels"), py::arg("n_threads"), py::arg("widest"),
          py::arg("slowest"));
    py::class_<GrammarText>(m, "GrammarText",
                            "A text in a grammar over a vocabulary of given texts; an empty one ends it.")
        .def(py::init<const std::string &, std::vector<std::string>>(), py::arg("rules"), py::arg("tokens"))
        .def("allowed", &GrammarText::allowed, "The tokens that may come next, by the mask.")
        .def("readable", &GrammarText::readable, "The tokens that may come next, by reading each of them.")
        .def("accept", &GrammarText::accept, "Adds a token; whether it was allowed.", py::arg("token"));
    py::class_<EditText>(m, "EditText", "An answer of edits over a vocabulary of given texts; an empty one ends it.")
        .def(py::init<std::shared_ptr<const EditParams>, std::vector<std::string>, uint32_t>(), py::arg("params"),
             py::arg("tokens"), py::arg("limit"))
        .def("allowed", &EditText::allowed, "The tokens that may come next.")
        .def("accept", &EditText::accept, "Adds a token; whether it was allowed.", py::arg("token"))
        .def("cost", [](EditText & text) { return text.edits.cost(); }, "Tokens to the end of the answer at least.");
    py::class_<ThreadCount>(m, "ThreadCount", "How many threads a step takes.")
        .def(py::init<int32_t, bool>(), py::arg("most"), py::arg("adapts"))
        .def("next", &ThreadCount::next, "Of a step of so many tokens.", py::arg("n_tokens"))
        .def("took", &ThreadCount::took, "That step's time, and how often it lost a core.", py::arg("seconds"),
             py::arg("n_lost"))
        .def("now", &ThreadCount::now, "Those of a step while nothing is tried out.");
    m.def(
        "placements",
        [](int n_layers, bool has_experts) {
            const Placements                 all(n_layers, has_experts);
            std::vector<std::pair<int, int>> pairs;
            for (uint32_t i = 0; i < all.size(); ++i) {
                pairs.emplace_back(all[i].n_gpu_layers, all[i].n_cpu_moe);
            }
            return pairs;
        },
        "(layers on GPUs, layers whose experts are in RAM), from all on GPUs to none.", py::arg("n_layers"),
        py::arg("has_experts"));
    m.def("first_that_fits", &first_that_fits,
          "The first of n placements that takes no more of any device than `most`.", py::arg("n"), py::arg("most"),
          py::arg("taken"));
    m.def(
        "has_products", [](int type) { return has_products(ggml_type(type)); },
        "Whether weights of this GGML type are multiplied by our kernels here.", py::arg("type"));
    m.def("use_products", &use_products, "As _engine.use_products, for the products of this module.", py::arg("name"));
    m.def("products", &products,
          "Products [n_tokens, n_rows] of rows of quantized weights from `first` on with tokens [n_tokens, n].",
          py::arg("type"), py::arg("weights"), py::arg("n_rows"), py::arg("tokens"), py::arg("first") = 0);
}
