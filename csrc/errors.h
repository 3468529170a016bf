// The errors of the engine. A bad argument is std::invalid_argument.
#pragma once

#include <stdexcept>

namespace tgr {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct ModelError : Error { // a file that is missing, damaged, or of a kind that cannot be used
    using Error::Error;
};
struct MemoryError : ModelError { // … or has no place in the memory
    using ModelError::ModelError;
};
struct CapacityError : Error { // more cells, sequences or injections than there can be
    using Error::Error;
};
struct CancelledError : Error {
    using Error::Error;
};

} // namespace tgr
