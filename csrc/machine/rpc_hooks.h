// The calls that csrc/patches places in ggml's RPC backend; its files and csrc/machine/rpc.cpp include it.
#pragma once

#include <cerrno> // used by the lines in transport.cpp
#include <cstddef>
#include <string>

namespace tgr {

// socket_t::connect: a connection to a server, whose answers get a time limit, since a stopped process or a hung driver
// never answers. connected follows in the same thread.
void watch_server(int socket);

// socket_t::accept: the system is to notice when the other machine is gone, which ggml would await forever.
void watch_client(int socket);

// rpc_dispatcher::start: a connection to a server stands. Any thread.
void connected(const void * connection, const std::string & endpoint);

// rpc_dispatcher::work: a message could not be sent, or had no answer in time. ggml would end the process. Instead the
// connection is shut down and the answer is all zeros, this one and all that follow, and the thread that decodes asks
// require_servers. True. Any thread.
bool lost(const void * connection, void * output, size_t size);

} // namespace tgr
