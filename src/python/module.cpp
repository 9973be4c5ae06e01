// The Python module _fp8lab. Its arguments are positional; the package in src/python/fp8lab is what
// users see and where every function is documented.
#include <pybind11/pybind11.h>

#include "emulation/api/error.hpp"
#include "src/python/bindings.hpp"

PYBIND11_MODULE(_fp8lab, module) {
  namespace py = pybind11;
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
  fp8lab::python::bind_runs(module);
}
