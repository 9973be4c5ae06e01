// Registers the parts of the Python module; one function per part.
#pragma once

#include <pybind11/pybind11.h>

namespace fp8lab::python {

/// encode, decode.
void bind_codec(pybind11::module_& module);
/// QuantSpec, quantize, dequantize.
void bind_quantization(pybind11::module_& module);
/// gemm.
void bind_gemm(pybind11::module_& module);
/// Model.
void bind_model(pybind11::module_& module);

}  // namespace fp8lab::python
