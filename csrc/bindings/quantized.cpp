// Products of quantized weights without an engine, for tests.
#include "bindings.h"
#include "quantized/products.h"

namespace tgr {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Of rows [first, n_rows) of weights, as a file holds them, with tokens [n_tokens, n]: [n_tokens, n_rows], zero for the
// others.
static py::array_t<float> products(int type, const std::string_view & weights, int64_t n_rows, const Floats & tokens,
                                   int64_t first) {
    const auto kind = ggml_type(type);
    if (type < 0 || type >= GGML_TYPE_COUNT || !has_products(kind)) {
        throw Error("this processor has no products of weights of this type, or TGR_PRODUCTS turned them off");
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

void bind_quantized(py::module_ & m) {
    m.def("has_products", [](int type) { return has_products(ggml_type(type)); }, py::arg("type"));
    m.def("use_products", &use_products, py::arg("name"));
    m.def("products", &products, py::arg("type"), py::arg("weights"), py::arg("n_rows"), py::arg("tokens"),
          py::arg("first") = 0);
}

} // namespace tgr
