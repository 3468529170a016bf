#include "graph/interleaved_weights.h"

#include "graph/context_memory.h"
#include "quantized/products.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tgr {

static constexpr int64_t PART  = 512 << 10; // bytes, which take a fraction of a millisecond
static constexpr size_t  CHUNK = 64 << 20;  // bytes of small weights that are allocated together, for huge pages

static bool is_wanted() {
#ifdef __linux__
    static const char * const chosen = std::getenv("TGR_INTERLEAVE");
    return !chosen || std::strcmp(chosen, "0") != 0;
#else
    return false;
#endif
}

const InterleavedWeights::Weights * InterleavedWeights::add(const ggml_tensor * tensor) {
    if (!is_wanted() || !tensor->buffer || tensor->ne[1] % GROUP_ROWS != 0) {
        return nullptr;
    }
    if (std::strcmp(ggml_backend_buft_name(ggml_backend_buffer_get_type(tensor->buffer)), "CPU_Mapped") != 0) {
        return nullptr;
    }
    const auto [place, is_new] = all_.try_emplace(tensor, Weights{ tensor });
    if (is_new) {
        order_.push_back(&place->second);
    }
    return &place->second;
}

std::pair<size_t, size_t> InterleavedWeights::next_chunk() const {
    size_t end = n_next_, n_bytes = 0;
    for (; end < order_.size(); ++end) {
        const size_t more = ggml_nbytes(order_[end]->tensor);
        if (end > n_next_ && n_bytes + more > CHUNK) {
            break;
        }
        n_bytes += more;
    }
    return { end, n_bytes };
}

std::optional<size_t> InterleavedWeights::needed() const {
    if (stopped_ || n_next_ == order_.size()) {
        return std::nullopt;
    }
    return order_[n_next_]->rows ? 0 : next_chunk().second;
}

void InterleavedWeights::go_on() {
    Weights &           weights = *order_[n_next_];
    const ggml_tensor * tensor  = weights.tensor;
    if (!weights.rows) {
        const auto [end, n_bytes] = next_chunk();
        memory_.emplace_back(new uint8_t[n_bytes]);
        use_huge_pages(memory_.back().get(), n_bytes);
        uint8_t * rows = memory_.back().get();
        for (size_t i = n_next_; i < end; ++i) {
            order_[i]->rows = rows;
            rows += ggml_nbytes(order_[i]->tensor);
        }
    }
    const int64_t part = std::max<int64_t>(1, PART / GROUP_ROWS / int64_t(tensor->nb[1])) * GROUP_ROWS;
    const int64_t end  = std::min(tensor->ne[1], weights.n_done + part);
    interleave_rows(tensor->type, tensor->data, tensor->ne[0], weights.n_done, end, weights.rows);
    weights.n_done = end;
    if (end == tensor->ne[1]) {
        give_back_file_pages(tensor->data, ggml_nbytes(tensor));
        n_bytes_ += ggml_nbytes(tensor);
        ++n_next_;
    }
}

bool InterleavedWeights::drop() {
    if (memory_.empty()) {
        return false;
    }
    stopped_ = true;
    for (Weights * weights : order_) {
        weights->n_done = 0;
        weights->rows   = nullptr;
    }
    memory_.clear();
    n_bytes_ = 0;
    return true;
}

} // namespace tgr
