// How much more memory can be taken: RAM of this machine or container, and that of a device.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <optional>

namespace tgr {

// Bytes of RAM that are available without swapping, to the machine and to every control group above this process;
// nothing where the system does not say.
std::optional<uint64_t> available_ram();

// The same for the memory of a device, which for the CPU is RAM.
std::optional<uint64_t> available_on(ggml_backend_dev_t device);

// For tests: what both return from now on; nothing = the truth again.
void pretend_available(std::optional<uint64_t> bytes);

} // namespace tgr
