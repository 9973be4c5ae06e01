// Registers the parts of the Python module; one function per part.
#pragma once

#include <pybind11/pybind11.h>

namespace fp8lab::python {

/// QuantSpec, quantize, dequantize.
void bind_quantization(pybind11::module_& module);
/// gemm.
void bind_gemm(pybind11::module_& module);
/// Model.
void bind_model(pybind11::module_& module);

}  // namespace fp8lab::python
