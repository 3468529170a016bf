// Consecutive cells of the cache.
#pragma once

#include <cstdint>

namespace tgr {

struct extent {
    uint32_t begin = 0, n = 0;
};

} // namespace tgr
