// Devices of other machines, over ggml's RPC backend.
//
// In: addresses of servers. Out: their devices for load_weights, and an error once a server is lost. It also runs such
// a server.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace tgr {

// The devices of all servers, in this order. Connects to them. Throws ModelError where one has none or does not answer
// as it should; the caller has made sure that a server listens there, since a connection has no time limit.
std::vector<ggml_backend_dev_t> devices_of(const std::vector<std::string> & endpoints);

// Throws Error, naming it, when the connection to one of these servers is lost. Until the model is loaded again.
void require_servers(const std::vector<std::string> & endpoints);

// Throws ModelError where this reason of a failed load is one of the RPC backend, and not the file's.
void blame_server(const std::string & reason);

// Serves the GPUs of this machine, or without any its processor, to one program after the other. Returns only where it
// cannot go on: it cannot listen there, a device does not work, no more connections can be accepted; ggml prints which.
// `cache` is a folder that keeps large tensors, so that they are sent once; empty = none.
void serve_devices(const std::string & endpoint, const std::string & cache, int32_t n_threads);

// Major and minor version of the protocol; a server must have the same major one and at most this minor one.
std::tuple<int, int> rpc_version();

} // namespace tgr
