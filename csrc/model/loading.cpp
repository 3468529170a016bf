#include "model/loading.h"

#include "base/errors.h"
#include "base/log.h"
#include "machine/available.h"
#include "machine/rpc.h"
#include "model/model_file.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <exception>
#include <iterator>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tgr {

namespace {

// Asks a LoadCheck at intervals, and keeps what it throws: llama.cpp's callback only says whether to go on.
class Watch {
public:
    explicit Watch(const LoadCheck & check) : check_(check) {}

    bool goes_on() {
        const auto now = std::chrono::steady_clock::now();
        if (!thrown_ && check_ && now - last_ >= std::chrono::milliseconds(100)) {
            try {
                check_();
            } catch (...) {
                thrown_ = std::current_exception();
            }
            last_ = now;
        }
        return !thrown_;
    }

    void rethrow() const {
        if (thrown_) {
            std::rethrow_exception(thrown_);
        }
    }

private:
    const LoadCheck &                     check_;
    std::chrono::steady_clock::time_point last_; // long ago: the first question comes at once
    std::exception_ptr                    thrown_;
};

} // namespace

static ggml_backend_dev_t gpu_number(int32_t number) {
    const auto  found = gpus();
    std::string names;
    for (size_t i = 0; i < found.size(); ++i) {
        names += concat(i ? ", " : ": ", i, " is ", ggml_backend_dev_name(found[i]));
    }
    if (size_t(number) >= found.size()) {
        throw ArgumentError("device is ", number, ", but ggml sees ",
                            found.empty() ? "no GPU; leave device out, or set n_gpu_layers to 0"
                                          : concat(found.size(), " GPUs", names, "; choose one of them"));
    }
    return found[number];
}

// llama.cpp maps a file in one call that reads all of it and cannot be ended. So it is read here before, in parts,
// where it fits into memory; what the system has read already costs little.
static void read_ahead(const std::vector<std::string> & paths, uint64_t n_bytes, Watch & watch) {
#ifdef MADV_POPULATE_READ // where the kernel is older, the call fails and llama.cpp reads
    if (n_bytes > available_ram().value_or(0)) {
        return;
    }
    constexpr size_t part = 32 << 20;
    for (const auto & path : paths) {
        const int   file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        const off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
        void *      map  = size > 0 ? mmap(nullptr, size_t(size), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
        if (file >= 0) {
            close(file);
        }
        if (map == MAP_FAILED) {
            return;
        }
        madvise(map, size_t(size), MADV_HUGEPAGE); // where the file system can: huge pages in the page cache
        char * at = static_cast<char *>(map);
        for (size_t done = 0; done < size_t(size) && watch.goes_on(); done += part) {
            if (madvise(at + done, std::min(part, size_t(size) - done), MADV_POPULATE_READ) != 0) {
                break;
            }
        }
        munmap(map, size_t(size));
    }
#else
    (void)paths, (void)n_bytes, (void)watch;
#endif
}

void refuse_load(const EngineParams & params, uint64_t n_bytes, const std::string & reason) {
    require_servers(params.rpc);
    blame_server(reason);
    if (!is_out_of_memory(reason)) {
        refuse(params.path, "cannot be loaded (", reason, ")");
    }
    auto devices = params.n_gpu_layers == 0 ? std::vector<ggml_backend_dev_t>() : gpus();
    if (params.main_gpu >= 0 && size_t(params.main_gpu) < devices.size()) {
        devices = { devices[params.main_gpu] };
    }
    std::string free;
    for (const auto device : devices) {
        if (const auto bytes = available_on(device)) {
            free += concat(ggml_backend_dev_name(device), " has ", *bytes >> 20, " MiB free, ");
        }
    }
    if (const auto bytes = available_ram()) {
        free += concat("RAM ", *bytes >> 20, " MiB, ");
    }
    throw MemoryError("there is not enough memory for ", params.path, " (", reason, "): its weights take ",
                      n_bytes >> 20, " MiB; ", free,
                      devices.empty() ? "so close other programs or use a smaller quantization"
                                      : "so lower n_gpu_layers, or use a smaller quantization");
}

bool has_gpus(const EngineParams & params) {
    return params.n_gpu_layers != 0 && (!params.rpc.empty() || !gpus().empty());
}

LoadParams load_params(const EngineParams & params) {
    LoadParams load;
    auto &     model_params   = load.params;
    model_params              = llama_model_default_params();
    model_params.n_gpu_layers = params.n_gpu_layers < 0 ? 1 << 20 : params.n_gpu_layers;
    if (params.n_gpu_layers != 0 && (params.main_gpu >= 0 || !params.rpc.empty())) {
        load.devices     = devices_of(params.rpc); // first, as in llama.cpp: what they compute passes the network once
        const auto local = params.main_gpu >= 0 ? std::vector{ gpu_number(params.main_gpu) } : gpus();
        load.devices.insert(load.devices.end(), local.begin(), local.end());
        load.devices.push_back(nullptr);
        model_params.devices    = load.devices.data();
        model_params.split_mode = params.rpc.empty() ? LLAMA_SPLIT_MODE_NONE : LLAMA_SPLIT_MODE_LAYER;
        model_params.main_gpu   = 0; // of these devices
    }
    if (!params.tensor_split.empty()) {
        load.split = params.tensor_split;
        load.split.resize(llama_max_devices(), 0.0f);
        model_params.tensor_split = load.split.data();
    }
    if (params.n_cpu_moe > 0 && has_gpus(params)) {
        load.experts = "blk\\.(0";
        for (int32_t layer = 1; layer < params.n_cpu_moe; ++layer) {
            load.experts += "|" + std::to_string(layer);
        }
        load.experts += ")\\.ffn_(up|down|gate|gate_up)_(ch|)exps"; // as llama.cpp's common/common.h
        load.in_ram = { { load.experts.c_str(), ggml_backend_cpu_buffer_type() }, { nullptr, nullptr } };
        model_params.tensor_buft_overrides = load.in_ram.data();
    }
    return load;
}

std::shared_ptr<llama_model> load_weights(const EngineParams & params, const LoadCheck & check) {
    install_log();
    const auto paths = check_file(params.path);
    uint64_t   size  = 0;
    for (const auto & path : paths) {
        size += file_size(path);
    }
    LoadParams load       = load_params(params);
    load.params.load_mode = params.use_mlock  ? params.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK
                            : params.use_mmap ? LLAMA_LOAD_MODE_MMAP
                                              : LLAMA_LOAD_MODE_NONE;
    Watch watch(check);
    load.params.progress_callback           = [](float, void * w) { return static_cast<Watch *>(w)->goes_on(); };
    load.params.progress_callback_user_data = &watch;
    if (params.use_mmap) {
        read_ahead(paths, size, watch);
        watch.rethrow();
    }
    take_log_error();
    const AssertGuard            guard;
    std::shared_ptr<llama_model> weights(llama_model_load_from_file(params.path.c_str(), load.params),
                                         llama_model_free);
    watch.rethrow();
    if (!weights) {
        refuse_load(params, size, take_log_error());
    }
    return weights;
}

} // namespace tgr
