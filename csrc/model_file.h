// What a model file must be before llama.cpp reads it.
#pragma once

#include <string>

namespace tgr {

// Throws ModelError, with the reason, for every file that llama.cpp would refuse without one, or would abort or crash
// on.
void check_file(const std::string & path);

// Throws ModelError: the file `what`; download it again, or use another file.
[[noreturn]] void refuse(const std::string & path, const std::string & what);

} // namespace tgr
