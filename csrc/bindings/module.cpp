// The module: its classes, its functions, and the exceptions of tgr_local.system.errors.
#include "base/log.h"
#include "bindings/bindings.h"
#include "machine/available.h"
#include "machine/rpc.h"
#include "model/loading.h"
#include "quantized/products.h"

#include "ggml-backend.h"

#ifndef TGR_GGML
#define TGR_GGML "installed"
#endif

using namespace tgr;

// Bad arguments are ArgumentError, a std::invalid_argument, which pybind11 makes ValueError.
static void translate(std::exception_ptr error) {
    const auto raise = [](const char * type, const std::exception & e) {
        in_python([&] { py::set_error(py::module_::import("tgr_local.system.errors").attr(type), e.what()); });
    };
    try {
        if (error) {
            std::rethrow_exception(error);
        }
    } catch (const ModelError & e) {
        raise("ModelError", e);
    } catch (const CapacityError & e) {
        raise("CapacityError", e);
    } catch (const CancelledError & e) {
        raise("CancelledError", e);
    } catch (const Error & e) {
        raise("TgrError", e);
    }
}

static py::list ggml_devices() {
    use_devices();
    py::list list;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        size_t             free = 0, total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        const char * kinds[] = { "cpu", "gpu", "igpu", "accelerator" };
        const auto   type    = size_t(ggml_backend_dev_type(device));
        list.append(py::make_tuple(ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                                   type < 4 ? kinds[type] : "other", total, free));
    }
    return list;
}

static void load_backends(const std::string & folder) {
    install_log(); // without it ggml prints what it loads
    ggml_backend_load_all_from_path(folder.c_str());
}

PYBIND11_MODULE(_engine, m) {
    m.doc() = "The native engine. Use tgr_local.engine, which checks arguments and frees handles.";
    m.attr("llama_cpp_python_version") = LLAMA_CPP_PYTHON_VERSION;
    m.attr("ggml")                     = TGR_GGML;
    py::register_exception_translator(&translate);
    save_address_space();
    bind_records(m);
    bind_output(m);
    bind_job(m);
    bind_session_request(m);
    py::class_<LockstepGroup, std::shared_ptr<LockstepGroup>>(m, "LockstepGroup", "Sessions that advance in lockstep.");
    bind_engine(m);
    m.def("forked", &forked, "To be called in the child after a fork: engines made before cannot be used there.");
    m.def("available_memory", &available_ram, "Bytes of RAM that are available without swapping; None = unknown.");
    m.def("require_address_space", &require_address_space,
          "MemoryError where a limit on address space leaves too little for another thread or request.");
    m.def("pretend_available", &pretend_available, "For tests: the memory that every device has from now on.",
          py::arg("bytes"));
    m.def("use_products", &use_products, "For tests: as if TGR_PRODUCTS had this value when the program began.",
          py::arg("name"));
    m.def("products_name", &products_name, "The instructions that multiply quantized weights, or ggml.");
    m.def("refuse_load", &refuse_load, "Raises the error of a load that failed for this reason.", py::arg("params"),
          py::arg("n_bytes"), py::arg("reason"));
    m.def("load_backends", &load_backends, "Loads the best of ggml's libraries in a folder.", py::arg("folder"));
    m.def("system_info", &llama_print_system_info, "What ggml's CPU code was built for, as llama.cpp prints it.");
    m.def("serve_devices", &serve_devices, release(),
          "Serves this machine's devices at HOST:PORT; returns where it cannot listen there.", py::arg("endpoint"),
          py::arg("cache"), py::arg("n_threads"));
    m.def("rpc_version", &rpc_version, "(major, minor) of the protocol between machines.");
    m.def("devices", &ggml_devices, "(name, description, kind, total bytes, free bytes) of every device of ggml.");
}
