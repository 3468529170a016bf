// Quantized weights of a model whose rows are interleaved while it is in use: a step of one token then reads memory in
// one run, and puts no words side by side. They are a copy, made part by part between steps; what it replaces of the
// mapped file is given back to the system, so the model takes as much memory as before. Products have the same bits
// either way.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace tgr {

// Used by the thread that decodes, and by those of a graph while it waits for them.
class InterleavedWeights {
public:
    struct Weights {
        const ggml_tensor * tensor;
        uint8_t *           rows   = nullptr; // as many bytes as the tensor has; null before the first part
        int64_t             n_done = 0;       // rows, from the first one on, a multiple of GROUP_ROWS
    };

    // Weights that a graph multiplies, which are interleaved from now on; null for those that stay as they are: not
    // mapped from a file, or with rows beside whole groups. TGR_INTERLEAVE=0 leaves all as they are.
    const Weights * add(const ggml_tensor * tensor);

    // Bytes of the weights that the next part begins; 0 where it goes on with some, nothing where all are done.
    std::optional<size_t> needed() const;

    // Interleaves the next part, some hundred kilobytes. Throws std::bad_alloc.
    void go_on();

    // Bytes of those that are done.
    size_t n_bytes() const { return n_bytes_; }

    // Leaves the others as they are.
    void stop() { n_next_ = order_.size(); }

private:
    void allocate();

    std::map<const ggml_tensor *, Weights>  all_;
    std::vector<Weights *>                  order_;
    size_t                                  n_next_  = 0; // those before it are done, or left as they are
    size_t                                  n_bytes_ = 0;
    std::vector<std::unique_ptr<uint8_t[]>> memory_;
};

} // namespace tgr
