// Products of Q8_0 weights without an engine, for tests.
#include "q8_0.h"
#include "bindings.h"

namespace tgr {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Of rows [first, n_rows) of weights, as a file holds them, with tokens [n_tokens, n]: [n_tokens, n_rows], zero for the
// others.
static py::array_t<float> products(const std::string & weights, int64_t n_rows, const Floats & tokens, int64_t first) {
    if (!has_q8_0_products()) {
        throw Error("this processor has no products of Q8_0 weights, or TGR_PRODUCTS turned them off");
    }
    const int64_t n_tokens = tokens.shape(0), n = tokens.shape(1);
    if (n % Q8_0_BLOCK != 0 || int64_t(weights.size()) != n_rows * n / Q8_0_BLOCK * (Q8_0_BLOCK + 2) || first < 0 ||
        first > n_rows) {
        throw std::invalid_argument("the weights are no rows of that length");
    }
    const size_t         bytes = q8_0_token_bytes(n);
    std::vector<uint8_t> packed(bytes * size_t(n_tokens));
    for (int64_t t = 0; t < n_tokens; ++t) {
        q8_0_pack(tokens.data(t, 0), n, packed.data() + bytes * size_t(t));
    }
    py::array_t<float> all({ n_tokens, n_rows });
    std::fill_n(all.mutable_data(), all.size(), 0.0f);
    q8_0_multiply(weights.data(), n, first, n_rows, packed.data(), n_tokens, all.mutable_data(), n_rows);
    return all;
}

void bind_q8_0(py::module_ & m) {
    m.def("has_q8_0_products", &has_q8_0_products);
    m.def("use_q8_0_products", &use_q8_0_products, py::arg("name"));
    m.def("q8_0_products", &products, py::arg("weights"), py::arg("n_rows"), py::arg("tokens"), py::arg("first") = 0);
}

} // namespace tgr
