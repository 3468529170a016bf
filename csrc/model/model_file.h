// Checks of a model file before llama.cpp reads it.
#pragma once

#include "base/errors.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tgr {

// The files of a model: one, or the parts that it was split into. Throws ModelError, with the reason, for every file
// that llama.cpp would refuse without one, or would abort or crash on.
std::vector<std::string> check_file(const std::string & path);

// Bytes; 0 for a file that is gone.
uint64_t file_size(const std::string & path);

// Throws ModelError: the file `what`; download it again, or use another file.
template <class... What> [[noreturn]] void refuse(const std::string & path, const What &... what) {
    throw ModelError(path, " ", what..., "; download it again, or use another file");
}

// Throws ModelError: the file holds an encoder.
[[noreturn]] void refuse_encoder(const std::string & path);

} // namespace tgr
