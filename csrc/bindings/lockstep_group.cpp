#include "bindings.h"

namespace tgr {

void bind_lockstep_group(py::module_ & m) {
    py::class_<LockstepGroup, std::shared_ptr<LockstepGroup>>(m, "LockstepGroup", "Sessions that advance in lockstep.");
}

} // namespace tgr
