// Quantized weights of a model whose rows are interleaved while it is in use: a step of one token then reads memory in
// one run, and puts no words side by side. They are a copy, made part by part between steps; what it replaces of the
// mapped file is given back to the system, so both are not held at a time. Products have the same bits either way.
#pragma once

#include "ggml.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tgr {

// Used by the thread that decodes, and by those of a graph while it waits for them.
class InterleavedWeights {
public:
    struct Weights {
        const ggml_tensor * tensor;
        uint8_t *           rows   = nullptr; // as many bytes as the tensor has; null = no memory yet
        int64_t             n_done = 0;       // rows, from the first one on, a multiple of GROUP_ROWS
    };

    // Weights that a graph multiplies, which are interleaved from now on; null for those that stay as they are: not
    // mapped from a file, or with rows beside whole groups. Elsewhere than on Linux, which takes the pages of the file
    // back, and with TGR_INTERLEAVE=0 all stay.
    const Weights * add(const ggml_tensor * tensor);

    // Bytes that the next part allocates; nothing where there is nothing left to do.
    std::optional<size_t> needed() const;

    // Interleaves the next part, some hundred kilobytes. Throws std::bad_alloc.
    void go_on();

    // Bytes of the weights that are done; any thread.
    size_t n_bytes() const { return n_bytes_; }

    // Leaves the rest as it is from now on.
    void stop() { stopped_ = true; }

    // Frees the copies: the weights are read from the file again, from now on. False where there are none.
    bool drop();

private:
    // The weights from n_next_ on that get memory together: the number of the one behind them, and their bytes.
    std::pair<size_t, size_t> next_chunk() const;

    std::map<const ggml_tensor *, Weights>  all_;
    std::vector<Weights *>                  order_;
    size_t                                  n_next_  = 0; // those before it are done
    bool                                    stopped_ = false;
    std::vector<std::unique_ptr<uint8_t[]>> memory_;
    std::atomic<size_t>                     n_bytes_{ 0 };
};

} // namespace tgr
