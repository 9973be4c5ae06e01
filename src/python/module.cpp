// The Python module _fp8lab. Its arguments are positional; the package in src/python/fp8lab is what
// users see and where every function is documented.
#include <fmt/format.h>
#include <omp.h>
#include <pybind11/pybind11.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "emulation/base/error.hpp"
#include "src/python/bindings.hpp"

namespace {

namespace py = pybind11;

/// Before 2.12 pybind11 reads the records of NumPy 1 alone, and memory of others instead of those
/// of NumPy 2.
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

/// The handler of operator new. No exception may leave the threads that share a loop: without
/// memory there, the process ends with one line, as the program does.
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
  // Users know the exceptions by the package that shows them.
  const auto describe = [](py::handle exception, const char* text) {
    exception.attr("__module__") = "fp8lab";
    exception.attr("__doc__") = text;
  };
  describe(py::register_exception<fp8lab::Error>(module, "Error", PyExc_ValueError),
           "Bad input, in one line: what was wrong, where, and what is accepted.");
  describe(
      py::register_exception<fp8lab::RuntimeFailure>(module, "RuntimeFailure", PyExc_RuntimeError),
      "The machine failed: a file could not be read.");
  fp8lab::python::bind_codec(module);
  fp8lab::python::bind_quantization(module);
  fp8lab::python::bind_gemm(module);
  fp8lab::python::bind_model(module);
  fp8lab::python::bind_runs(module);
}
