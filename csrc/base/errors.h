// The errors of the engine. A constructor takes the parts of the message: texts and numbers.
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tgr {

template <class... Parts> std::string concat(const Parts &... parts) {
    std::ostringstream text;
    text.imbue(std::locale::classic()); // the host program's locale may write numbers with separators
    (text << ... << parts);
    return text.str();
}

struct ArgumentError : std::invalid_argument { // a bad argument; Python's ValueError
    template <class... Parts> explicit ArgumentError(const Parts &... parts) :
        std::invalid_argument(concat(parts...)) {}
};
struct Error : std::runtime_error {
    template <class... Parts> explicit Error(const Parts &... parts) : std::runtime_error(concat(parts...)) {}
};
struct ModelError : Error { // a file that is missing, damaged, or of a kind that cannot be used
    using Error::Error;
};
struct MemoryError : ModelError { // a model for which there is not enough memory
    using ModelError::ModelError;
};
struct CapacityError : Error { // more cells, sequences or injections than there can be
    using Error::Error;
};
struct CancelledError : Error {
    using Error::Error;
};

} // namespace tgr
