#include "machine/rpc.h"

#include "base/errors.h"
#include "base/log.h"
#include "machine/available.h"
#include "machine/rpc_hooks.h"

#include "ggml-rpc.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#ifndef _WIN32
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#endif

namespace tgr {

#ifndef _WIN32
// The system ends this connection when the other machine is gone, and its calls when the other side does nothing for
// `answer_seconds`; 0 = they wait. Where an option cannot be set, the system's own times count. TCP_USER_TIMEOUT would
// also end a connection whose other side computes for so long that what is sent meanwhile fills its buffers.
static void watch(int socket, int answer_seconds) {
    const auto set = [socket](int level, int option, const auto & value) {
        setsockopt(socket, level, option, &value, sizeof(value));
    };
    constexpr int idle_seconds = 20, probe_seconds = 5, n_probes = 4;
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set(IPPROTO_TCP, TCP_KEEPIDLE, idle_seconds);
#else
    set(IPPROTO_TCP, TCP_KEEPALIVE, idle_seconds);
#endif
    set(IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
    set(IPPROTO_TCP, TCP_KEEPCNT, n_probes);
    set(SOL_SOCKET, SO_RCVTIMEO, timeval{ answer_seconds, 0 });
    set(SOL_SOCKET, SO_SNDTIMEO, timeval{ answer_seconds, 0 });
}

#else
static void watch(int, int) {}
#endif

// A prompt's batch on a slow machine takes minutes.
static int answer_seconds() {
    const char * seconds = std::getenv("TGR_RPC_SECONDS");
    return seconds && std::atoi(seconds) > 0 ? std::atoi(seconds) : 600;
}

struct Connection {
    std::string endpoint;
    int         socket;
};

// Connections live as long as the process at most, and a new one may have the address of one that is gone.
static std::mutex                         connections_mutex;
static std::map<const void *, Connection> connections;
static std::map<std::string, bool>        is_lost;            // the newest connection there
static thread_local int                   newest_socket = -1; // of watch_server, for connected

void watch_server(int socket) {
    watch(socket, answer_seconds());
    newest_socket = socket;
}

void watch_client(int socket) {
    watch(socket, 0);
}

void connected(const void * connection, const std::string & endpoint) {
    std::lock_guard lock(connections_mutex);
    connections[connection] = { endpoint, newest_socket };
    is_lost[endpoint]       = false;
}

bool lost(const void * connection, void * output, size_t size) {
    if (output) {
        std::memset(output, 0, size);
    }
    std::lock_guard lock(connections_mutex);
    const auto & [endpoint, socket] = connections[connection];
    if (!is_lost[endpoint]) {
        is_lost[endpoint] = true;
#ifndef _WIN32
        // a late answer would be taken for that of another message, and each further message would wait as long
        shutdown(socket, SHUT_RDWR);
#endif
    }
    return true;
}

std::vector<ggml_backend_dev_t> devices_of(const std::vector<std::string> & endpoints) {
    const AssertGuard               guard;
    std::vector<ggml_backend_dev_t> devices;
    try {
        for (const auto & endpoint : endpoints) {
            const auto server = ggml_backend_rpc_add_server(endpoint.c_str());
            if (!server) {
                throw ModelError("the RPC server at ", endpoint, " has no device; start it again");
            }
            for (size_t i = 0; i < ggml_backend_reg_dev_count(server); ++i) {
                devices.push_back(ggml_backend_reg_dev_get(server, i));
                size_t free = 0, total = 0;
                ggml_backend_dev_memory(devices.back(), &free, &total); // connects, also where ggml knows the devices
            }
        }
    } catch (const ModelError & error) {
        blame_server(error.what());
        throw;
    }
    require_servers(endpoints);
    return devices;
}

void blame_server(const std::string & reason) {
    if (reason.find("ggml-rpc.cpp") != std::string::npos) {
        throw ModelError("an RPC server is lost (", reason.substr(0, reason.find_last_not_of(" \n") + 1),
                         "); start it again, close every model that used it, then load the model again");
    }
}

void require_servers(const std::vector<std::string> & endpoints) {
    if (endpoints.empty()) {
        return;
    }
    std::lock_guard lock(connections_mutex);
    for (const auto & endpoint : endpoints) {
        const auto found = is_lost.find(endpoint);
        if (found != is_lost.end() && found->second) {
            throw Error("the RPC server at ", endpoint,
                        " is lost, with its part of the model; start it again, close "
                        "every model that used it, then load the model again");
        }
    }
}

void serve_devices(const std::string & endpoint, const std::string & cache, int32_t n_threads) {
    auto devices = gpus();
    if (devices.empty()) {
        devices = devices_of_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    ggml_backend_rpc_start_server(endpoint.c_str(), cache.empty() ? nullptr : cache.c_str(), size_t(n_threads),
                                  devices.size(), devices.data());
}

std::tuple<int, int> rpc_version() {
    return { RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION };
}

} // namespace tgr
