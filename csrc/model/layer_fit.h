// Places the layers of a model when the options leave it open: as many on the GPUs as fit there beside a cache of the
// requested size. Model's constructor calls lower() and loads again where a GPU's memory runs out nevertheless.
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
    uint32_t n_cells() const { return n_cells_; } // cells of the cache that fit

    // Moves a quarter of what is on the GPUs to RAM; the second time, all of it. False where nothing is on the GPUs.
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
