#include "bindings/bindings.h"

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
    py::class_<SessionRequest>(m, "SessionRequest",
                               "A request for a session. Freed before `wait` has returned its id, it is withdrawn.")
        .def("wait", &wait, "Waits so long at most: the session's id, or None when it is not admitted yet.",
             py::arg("seconds"))
        .def(
            "in_the_way", [](SessionRequest & r) { return r.engine->in_the_way(r.ticket); }, release(),
            "The sessions of which at least one must close before it is admitted.")
        .def(
            "withdraw", [](SessionRequest & r) { r.engine->withdraw(r.ticket); }, release(),
            "Ends the request, or the session that was admitted meanwhile.")
        .def(
            "give_up", [](SessionRequest & r) { r.engine->give_up(r.ticket); }, release(),
            "Ends a wait with CancelledError.");
}

} // namespace tgr
