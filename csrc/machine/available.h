// The devices of ggml, and how much more memory can be taken: RAM of this machine or container, and that of a device.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tgr {

// In ggml's order.
std::vector<ggml_backend_dev_t> devices_of_type(enum ggml_backend_dev_type type);

// The integrated ones where there is no other.
std::vector<ggml_backend_dev_t> gpus();

// Bytes of RAM that are available without swapping, to the machine and to every control group above this process;
// where the address space of the process is limited (ulimit -v), no more than is left of it after a reserve. Nothing
// where the system does not say.
std::optional<uint64_t> available_ram();

// Takes less address space from now on, where it is limited: all threads share one heap, since glibc otherwise gives
// each its own, of 64 MiB.
void save_address_space();

// Throws std::bad_alloc where a limit on address space leaves less than the reserve. To be called before a thread
// starts and before a request begins: the C library ends a process that has no memory for a thread's variables.
void require_address_space();

// The same for the memory of a device, which for the CPU is RAM.
std::optional<uint64_t> available_on(ggml_backend_dev_t device);

// For tests: what both return from now on; nothing = the truth again.
void pretend_available(std::optional<uint64_t> bytes);

} // namespace tgr
