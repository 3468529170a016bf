// llama.cpp's errors: reads its log, and turns failed checks into exceptions.
#pragma once

#include <string>

namespace tgr {

// Installs the log callback and the handler of failed checks. Further calls do nothing.
void install_log();

// The first error that llama.cpp has logged on this thread since the last call; empty = none.
std::string take_log_error();

// Whether the error message says that memory ran out.
bool is_out_of_memory(const std::string & reason);

// Text from a file or a log as part of a one-line message: without line breaks and bytes that no terminal shows.
std::string printable(std::string text);

// A failed check inside ggml or llama.cpp ends the process. While one of these lives, a check that fails on its thread
// throws ModelError instead.
class AssertGuard {
public:
    AssertGuard() { ++depth; }
    ~AssertGuard() { --depth; }
    AssertGuard(const AssertGuard &) = delete;

    static thread_local int depth;
};

} // namespace tgr
