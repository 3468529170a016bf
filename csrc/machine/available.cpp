#include "machine/available.h"

#if defined(__linux__)
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>
#elif defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN // else it includes an rpc.h, and finds ours
#include <windows.h>
#endif

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

namespace tgr {

namespace fs = std::filesystem;

std::vector<ggml_backend_dev_t> devices_of_type(enum ggml_backend_dev_type type) {
    std::vector<ggml_backend_dev_t> found;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == type) {
            found.push_back(ggml_backend_dev_get(i));
        }
    }
    return found;
}

std::vector<ggml_backend_dev_t> gpus() {
    const auto found = devices_of_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    return found.empty() ? devices_of_type(GGML_BACKEND_DEVICE_TYPE_IGPU) : found;
}

//
// memory
//

static std::atomic<uint64_t> pretended{ UINT64_MAX }; // nothing

void pretend_available(std::optional<uint64_t> bytes) {
    pretended = bytes.value_or(UINT64_MAX);
}

static std::optional<uint64_t> pretended_now() {
    const uint64_t bytes = pretended;
    return bytes == UINT64_MAX ? std::nullopt : std::optional(bytes);
}

// The number behind a name in a file of lines "name number"; without a name the first number of the file.
static std::optional<uint64_t> number_in(const fs::path & path, const std::string & name) {
    std::ifstream file(path);
    std::string   word;
    while (!name.empty() && file >> word && word != name) {
    }
    uint64_t number = 0;
    return file >> number ? std::optional(number) : std::nullopt; // "max" is not a number
}

// The names of one version of control groups for the limit, the use, and the cached file pages, which are freed when
// memory is short.
struct GroupFiles {
    const char *root, *limit, *used, *cached;
};

// What a control group and those above it leave.
static std::optional<uint64_t> available_in(const GroupFiles & files, const std::string & group) {
    std::optional<uint64_t> least;
    const fs::path          root = files.root;
    fs::path                at   = (root / fs::path(group).relative_path()).lexically_normal();
    while (true) {
        const auto limit = number_in(at / files.limit, "");
        const auto used  = number_in(at / files.used, "");
        if (limit && used) {
            const uint64_t held = *used - std::min(*used, number_in(at / "memory.stat", files.cached).value_or(0));
            const uint64_t left = *limit - std::min(*limit, held);
            least               = std::min(least.value_or(left), left);
        }
        if (at == root || !at.has_relative_path()) {
            return least;
        }
        at = at.parent_path();
    }
}

static std::optional<uint64_t> available_in_groups() {
    static const GroupFiles v2 = { "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file" };
    static const GroupFiles v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file" };
    std::optional<uint64_t> least;
    std::ifstream           groups("/proc/self/cgroup"); // lines "number:controllers:group"
    std::string             line;
    while (std::getline(groups, line)) {
        const size_t first  = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) {
            continue;
        }
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool        is_v1       = controllers.find(",memory,") != std::string::npos;
        if (!is_v1 && controllers != ",,") {
            continue;
        }
        if (const auto left = available_in(is_v1 ? v1 : v2, line.substr(second + 1))) {
            least = std::min(least.value_or(*left), *left);
        }
    }
    return least;
}

//
// address space
//

static constexpr uint64_t reserve = 64 << 20; // bytes: some stacks of threads, and what running requests still take

// What a limit leaves; nothing without a limit.
static std::optional<uint64_t> address_space_left() {
#if defined(__linux__)
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        if (const auto pages = number_in("/proc/self/statm", "")) {
            const uint64_t used = *pages * uint64_t(sysconf(_SC_PAGESIZE));
            return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
        }
    }
#endif
    return std::nullopt;
}

void save_address_space() {
#if defined(__GLIBC__)
    if (address_space_left()) {
        mallopt(M_ARENA_MAX, 1);
    }
#endif
}

void require_address_space() {
    if (const auto left = address_space_left(); left && *left < reserve) {
        throw std::bad_alloc();
    }
}

std::optional<uint64_t> available_ram() {
    if (const auto bytes = pretended_now()) {
        return bytes;
    }
#if defined(_WIN32)
    MEMORYSTATUSEX status{};
    status.dwLength = sizeof(status);
    return GlobalMemoryStatusEx(&status) ? std::optional<uint64_t>(status.ullAvailPhys) : std::nullopt;
#endif
    auto least = number_in("/proc/meminfo", "MemAvailable:");
    if (least) {
        *least *= 1024;
    }
    if (const auto left = available_in_groups()) {
        least = std::min(least.value_or(*left), *left);
    }
    if (auto left = address_space_left()) {
        *left -= std::min(*left, reserve);
        least = std::min(least.value_or(*left), *left);
    }
    return least;
}

std::optional<uint64_t> available_on(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    if (type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_ACCEL) {
        return available_ram();
    }
    if (const auto bytes = pretended_now()) {
        return bytes;
    }
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    return total > 0 ? std::optional<uint64_t>(free) : std::nullopt; // a backend may not know
}

} // namespace tgr
