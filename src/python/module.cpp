// The Python module _fp8lab. Its arguments are positional. The package in src/python/fp8lab is the
// public interface and documents every function.
#include <fmt/format.h>
#include <omp.h>
#include <pybind11/pybind11.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "emulation/base/error.hpp"
#include "src/python/bindings.hpp"

namespace {

namespace py = pybind11;

/// Throws if pybind11 is older than 2.12 and NumPy is 2 or newer: such a pybind11 reads only the
/// record layout of NumPy 1, and would read unrelated memory.
void check_numpy() {
#if PYBIND11_VERSION_HEX < 0x020C0000
  const auto version = py::module_::import("numpy").attr("__version__").cast<std::string>();
  if (version.rfind("1.", 0) == 0) return;
  throw py::import_error(
      fmt::format("fp8lab was built with pybind11 {}.{}, which reads arrays of NumPy 1 alone; this "
                  "is NumPy {}; accepted: numpy<2, or a build with pybind11>=2.12",
                  PYBIND11_VERSION_MAJOR, PYBIND11_VERSION_MINOR, version));
#endif
}

/// Exception classes of the package, which also raises them without this module. They are never
/// released.
PyObject* error_class = nullptr;
PyObject* runtime_failure_class = nullptr;

void register_exceptions(py::module_& module) {
  const py::module_ errors = py::module_::import("fp8lab.errors");
  module.attr("Error") = errors.attr("Error");
  module.attr("RuntimeFailure") = errors.attr("RuntimeFailure");
  error_class = py::object(errors.attr("Error")).release().ptr();
  runtime_failure_class = py::object(errors.attr("RuntimeFailure")).release().ptr();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const fp8lab::Error& error) {
      PyErr_SetString(error_class, error.what());
    } catch (const fp8lab::RuntimeFailure& failure) {
      PyErr_SetString(runtime_failure_class, failure.what());
    }
  });
}

/// Handler of operator new. No exception may leave a parallel loop, so if memory runs out there,
/// the process prints one line and exits, as the program does.
void refuse_memory() {
  if (omp_get_level() == 0) throw std::bad_alloc();
  std::fputs("fp8lab: out of memory\n", stderr);
  std::_Exit(1);
}

}  // namespace

PYBIND11_MODULE(_fp8lab, module) {
  check_numpy();
  if (std::get_new_handler() == nullptr) std::set_new_handler(refuse_memory);
  module.doc() = "Bindings of the fp8lab emulator; use the package fp8lab.";
  module.attr("__version__") = FP8LAB_VERSION;
  register_exceptions(module);
  fp8lab::python::bind_quantization(module);
  fp8lab::python::bind_gemm(module);
  fp8lab::python::bind_model(module);
}
