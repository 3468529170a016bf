#include "base/log.h"

#include "base/errors.h"

#include "llama.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <regex>
#include <utility>

namespace tgr {

std::string printable(std::string text) {
    for (char & c : text) {
        c = c >= ' ' && c <= '~' ? c : '?';
    }
    return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

// llama.cpp says why it refuses a file only in its log: keep the first error, which is the cause of the others, without
// the names of the functions that it passed through.
static thread_local std::string log_error;

static void on_log(ggml_log_level level, const char * text, void *) {
    static const bool       verbose = std::getenv("TGR_LOG") != nullptr;
    static const std::regex noise("^(([a-z_0-9]+|error loading model[a-z ]*): )+|\\s+$|\\s+(?=\\s)");
    if (verbose) {
        std::fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR && log_error.empty()) {
        log_error = printable(std::regex_replace(std::string(text).substr(0, 400), noise, ""));
    }
}

std::string take_log_error() {
    return std::exchange(log_error, std::string());
}

bool is_out_of_memory(const std::string & reason) {
    std::string text = reason;
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    static constexpr const char * signs[] = { "failed to allocate", "unable to allocate",  "cannot allocate",
                                              "out of memory",      "insufficient memory", "memory allocation of size",
                                              "outofdevicememory",  "outofhostmemory",     "bad_alloc",
                                              "malloc failed" };
    return std::any_of(std::begin(signs), std::end(signs),
                       [&](const char * sign) { return text.find(sign) != std::string::npos; });
}

thread_local int AssertGuard::depth = 0;

static void on_assert(const char * message) {
    if (AssertGuard::depth > 0) {
        const std::string text = message; // "/path/file.cpp:12: GGML_ASSERT(x) failed"
        throw ModelError(text.substr(text.rfind('/', text.find(": ")) + 1));
    }
    std::fprintf(stderr, "%s\n", message);
}

void install_log() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_assert);
        llama_backend_init();
    });
}

} // namespace tgr
