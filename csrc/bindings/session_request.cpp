#include "bindings.h"

#include <optional>

namespace tgr {

// The session's id, or None when it is not admitted yet.
static std::optional<uint64_t> wait(SessionRequest & request, double seconds) {
    request.engine->check_here();
    const auto status = without_gil([&] { return request.admitted.wait_for(std::chrono::duration<double>(seconds)); });
    if (status != std::future_status::ready) {
        return std::nullopt;
    }
    request.taken = true;
    return request.admitted.get();
}

void bind_session_request(py::module_ & m) {
    py::class_<SessionRequest>(m, "SessionRequest")
        .def("wait", &wait)
        .def("in_the_way",
             [](SessionRequest & r) { return without_gil([&] { return r.engine->in_the_way(r.ticket); }); })
        .def("withdraw", [](SessionRequest & r) { r.engine->withdraw(r.ticket); })
        .def("give_up", [](SessionRequest & r) { r.engine->give_up(r.ticket); });
}

} // namespace tgr
