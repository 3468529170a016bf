// The number of a model's layers that fit into the memory of the GPUs. As in llama.cpp's common/fit.cpp, the experts
// are moved to RAM first, layer by layer, then whole layers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tgr {

struct Placement {
    int32_t n_gpu_layers = 0; // the last ones; the output layer counts as one
    int32_t n_cpu_moe    = 0; // layers whose experts are in RAM, from the first one on
};

// Placements, from everything on the GPUs to nothing there. Each needs less GPU memory than the one before.
class Placements {
public:
    Placements() = default; // no placements
    Placements(int32_t n_layers, bool has_experts) : n_layers_(n_layers), n_experts_(has_experts ? n_layers : 0) {}

    uint32_t  size() const { return n_layers_ < 0 ? 0 : uint32_t(n_experts_ + n_layers_ + 2); }
    Placement operator[](uint32_t index) const;

private:
    int32_t n_layers_  = -1;
    int32_t n_experts_ = 0; // layers that have some
};

// The first of n placements in which no device needs more bytes than it may use; the last one where there is none.
// `taken(i)` returns the bytes that placement i needs on each device. It is expensive, so it is called for few
// placements, and never for the last one.
uint32_t first_that_fits(uint32_t n, const std::vector<uint64_t> & most,
                         const std::function<std::vector<uint64_t>(uint32_t)> & taken);

} // namespace tgr
