// Places the layers of a model when the options leave it open: as many on the GPUs as they have memory for, beside a
// cache of the size that was asked for.
#pragma once

#include "job/records.h"
#include "model/fitting.h"
#include "model/loading.h"

#include <cstdint>

namespace tgr {

class LayerFit {
public:
    // Measures, where n_gpu_layers is `auto_layers` and there is a GPU or a server. Throws what `check` throws.
    LayerFit(const EngineParams & params, const LoadCheck & check);

    bool     was_needed() const { return all_.size() > 0; } // false: the options stay as they are
    bool     is_lowered() const { return lowered_; }
    uint32_t n_cells() const { return n_cells_; } // cells of the cache that there is place for

    // Takes a quarter of what the GPUs have from them; the second time, all. False where they have nothing.
    bool lower();

    // Sets n_gpu_layers and n_cpu_moe.
    void apply(EngineParams & params) const;

private:
    Placements all_;
    uint32_t   at_      = 0;
    uint32_t   n_cells_ = 0;
    bool       lowered_ = false;
};

} // namespace tgr
