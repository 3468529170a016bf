// The devices of ggml, and how much more memory can be taken: RAM of this machine or container, and that of a device.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tgr {

// Devices of a type, in ggml's order.
std::vector<ggml_backend_dev_t> devices_of_type(enum ggml_backend_dev_type type);

// GPUs; the integrated ones where there is no other.
std::vector<ggml_backend_dev_t> gpus();

// Bytes of RAM that are available without swapping, to the machine and to every control group above this process;
// where the address space of the process is limited (ulimit -v), no more than is left of it after a reserve. Nothing
// where the system does not say.
std::optional<uint64_t> available_ram();

// Takes less address space from now on, where it is limited: all threads share one heap, since glibc otherwise gives
// each its own, of 64 MiB.
void save_address_space();

// Throws std::bad_alloc where a limit on address space leaves less than the reserve. Call it before a thread starts and
// before a request begins: the C library ends a process that has no memory for a thread's variables.
void require_address_space();

// Bytes of a device's memory that are available; for the CPU, available_ram().
std::optional<uint64_t> available_on(ggml_backend_dev_t device);

// Sets what both return from now on, for tests; nothing = the truth again.
void pretend_available(std::optional<uint64_t> bytes);

} // namespace tgr
