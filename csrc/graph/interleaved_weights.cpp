#include "graph/interleaved_weights.h"

#include "graph/context_memory.h"
#include "quantized/products.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tgr {

static constexpr int64_t PART = 512 << 10; // bytes, which take a fraction of a millisecond

static bool is_wanted() {
    static const char * const chosen = std::getenv("TGR_INTERLEAVE");
    return !chosen || std::strcmp(chosen, "0") != 0;
}

const InterleavedWeights::Weights * InterleavedWeights::add(const ggml_tensor * tensor) {
    const char * buffer = ggml_backend_buft_name(ggml_backend_buffer_get_type(tensor->buffer));
    if (!is_wanted() || std::strcmp(buffer, "CPU_Mapped") != 0 || tensor->ne[1] % GROUP_ROWS != 0) {
        return nullptr;
    }
    const auto [place, is_new] = all_.try_emplace(tensor, Weights{ tensor, nullptr });
    if (is_new) {
        order_.push_back(&place->second);
    }
    return &place->second;
}

std::optional<size_t> InterleavedWeights::needed() const {
    if (n_next_ == order_.size()) {
        return std::nullopt;
    }
    return order_[n_next_]->n_done > 0 ? 0 : ggml_nbytes(order_[n_next_]->tensor);
}

// Memory for all weights that have none. It is taken page by page, as it is written.
void InterleavedWeights::allocate() {
    size_t n_bytes = 0;
    for (size_t i = n_next_; i < order_.size(); ++i) {
        n_bytes += ggml_nbytes(order_[i]->tensor);
    }
    memory_.emplace_back(new uint8_t[n_bytes]);
    use_huge_pages(memory_.back().get(), n_bytes);
    uint8_t * next = memory_.back().get();
    for (size_t i = n_next_; i < order_.size(); ++i) {
        order_[i]->rows = next;
        next += ggml_nbytes(order_[i]->tensor);
    }
}

void InterleavedWeights::go_on() {
    Weights &           weights = *order_[n_next_];
    const ggml_tensor * tensor  = weights.tensor;
    if (!weights.rows) {
        allocate();
    }
    const int64_t part = std::max<int64_t>(1, PART / GROUP_ROWS / int64_t(tensor->nb[1])) * GROUP_ROWS;
    const int64_t end  = std::min(tensor->ne[1], weights.n_done + part);
    interleave_rows(tensor->type, tensor->data, tensor->ne[0], weights.n_done, end, weights.rows);
    weights.n_done = end;
    if (end == tensor->ne[1]) {
        give_back_pages(tensor->data, ggml_nbytes(tensor)); // they are read again from the file where they are used
        n_bytes_ += ggml_nbytes(tensor);
        ++n_next_;
    }
}

} // namespace tgr
