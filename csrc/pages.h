// Memory pages of buffers in RAM.
#pragma once

#include <cstddef>

namespace tgr {

// Gives the pages inside of a part of a buffer that holds zeros back to the system, until something is written there.
void give_back_pages(void * begin, size_t n_bytes);

} // namespace tgr
