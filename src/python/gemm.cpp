// Python: gemm.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/library_gemm.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/inputs/matrices.hpp"
#include "src/config/reading/library_call.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/python/arrays.hpp"
#include "src/python/bindings.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;

/// One operand of the call.
struct Argument {
  std::string name;
  Input input;
  std::optional<NpyArray> scales;
  QuantSpec spec;

  cli::MatrixOperand operand(Backend& backend, std::uint64_t seed) {
    return cli::make_operand(backend, input.matrix, name, scales, "scale_" + name, spec, seed);
  }
};

/// Reads one operand. If `spec` is None, its quantizer is `implied`, with the format of the array's
/// type if the type has one.
Argument read_argument(const char* name, const py::object& values, const py::object& scales,
                       const py::object& spec, const QuantSpec& implied) {
  Argument argument{name, copy_matrix(values, name), std::nullopt, implied};
  const std::optional<numerics::FormatSpec>& codes = argument.input.codes;
  if (!spec.is_none()) {
    argument.spec = spec.cast<QuantSpec>();
  } else if (codes) {
    argument.spec.format = *codes;
  }
  check_codes_are(name, codes, argument.spec.format);
  if (!scales.is_none()) {
    argument.scales = copy_matrix(scales, std::string("scale_") + name).matrix;
  }
  return argument;
}

void check_same_k(const Argument& a, const Argument& b) {
  const NpyArray &left = a.input.matrix, &right = b.input.matrix;
  if (left.cols == right.cols) return;
  throw Error(
      fmt::format("a is ({}, {}) and b is ({}, {}); a (M, K) and b (N, K) must have the same K",
                  left.rows, left.cols, right.rows, right.cols));
}

/// Reads an optional FP32 input: the addend of an accumulating GEMM, C of a library call, or a
/// bias.
std::optional<NpyArray> read_floats(const py::object& object, const char* name, std::int64_t rows,
                                    std::int64_t cols) {
  if (object.is_none()) return std::nullopt;
  Input input = copy_array(object, name);
  const bool vector = rows == 1 && input.shape.size() == 1;
  const bool matrix = input.shape.size() == 2 && input.shape[0] == rows;
  if (input.matrix.dtype != DType::f32 || !(vector || matrix) || input.shape.back() != cols) {
    throw Error(vector || rows == 1
                    ? fmt::format("{}: accepted: float32 of shape ({},)", name, cols)
                    : fmt::format("{}: accepted: float32 of shape ({}, {})", name, rows, cols));
  }
  input.matrix.rows = rows;
  input.matrix.cols = cols;
  return input.matrix;
}

py::array gemm(const py::object& a_values, const py::object& b_values, const std::string& words,
               const py::object& spec_a, const py::object& spec_b, const py::object& scale_a,
               const py::object& scale_b, const py::object& bias_values, const py::object& start,
               std::uint64_t seed, int threads) {
  const GemmRequest request = parse_gemm_problem(words);
  Argument a = read_argument("a", a_values, scale_a, spec_a, request.a);
  Argument b = read_argument("b", b_values, scale_b, spec_b, request.b);
  const std::int64_t m = a.input.matrix.rows, n = b.input.matrix.rows;
  check_same_k(a, b);
  std::optional<NpyArray> bias = read_floats(bias_values, "bias", 1, n);
  std::optional<NpyArray> addend = read_floats(start, "accumulate", m, n);
  if (addend && request.gemm.output != DType::f32) {
    throw Error("accumulate: accepted with an fp32 output only");
  }
  const std::unique_ptr<Backend> backend = make_backend("cpu", threads);
  const std::int64_t k = a.input.matrix.cols;
  const Support support =
      backend->supports(ops::Gemm{.spec = request.gemm,
                                  .a = QuantizedOperand::without_memory(a.spec, m, k),
                                  .b = QuantizedOperand::without_memory(b.spec, n, k),
                                  .bias = {},
                                  .accumulate = addend.has_value(),
                                  .d = TensorView::without_memory(request.gemm.output, m, n)});
  if (!support) throw Error(support.reason);
  NpyArray result;
  {
    const py::gil_scoped_release unlocked;
    const cli::MatrixOperand left = a.operand(*backend, seed);
    const cli::MatrixOperand right = b.operand(*backend, seed);
    const TensorView d = backend->allocate(request.gemm.output, m, n);
    if (addend) backend->upload(d, addend->data.data());
    const TensorView bias_view = bias ? bias->view() : TensorView{};
    cli::multiply(*backend, request.gemm, left, right, bias_view, addend.has_value(), d);
    result = cli::read_back(*backend, d);
  }
  return to_numpy(result);
}

/// Returns D of a library call; uint8 codes if the output is FP8.
py::array library_gemm(const py::object& a_values, const py::object& b_values,
                       const std::string& words, const py::object& spec_a, const py::object& spec_b,
                       const py::object& scale_a, const py::object& scale_b,
                       const py::object& bias_values, float alpha, float beta,
                       const py::object& addend, float d_scale, std::uint64_t seed, int threads) {
  LibraryCall call = parse_library_call(words);
  Argument a = read_argument("a", a_values, scale_a, spec_a, call.a);
  Argument b = read_argument("b", b_values, scale_b, spec_b, call.b);
  check_same_k(a, b);
  call.a = a.spec;
  call.b = b.spec;
  const std::int64_t m = a.input.matrix.rows, n = b.input.matrix.rows;
  check_library_call(call, m, n, a.input.matrix.cols);
  std::optional<NpyArray> bias = read_floats(bias_values, "bias", 1, m);
  std::optional<NpyArray> c = read_floats(addend, "c", m, n);
  if (c.has_value() != (beta != 0.0f)) throw Error("c and a beta other than 0 need each other");
  if (d_scale != 1.0f && call.output.bits() > 8) {
    throw Error("d_scale: accepted with an e4m3fn or e5m2 output only");
  }
  const std::unique_ptr<Backend> backend = make_backend("cpu", threads);
  cpu::LibraryEpilogue epilogue{alpha, beta, {}, {}, call.output, d_scale};
  NpyArray result;
  {
    const py::gil_scoped_release unlocked;
    if (bias) epilogue.bias = bias->view();
    if (c) epilogue.c = c->view();
    const cli::MatrixOperand left = a.operand(*backend, seed);
    const cli::MatrixOperand right = b.operand(*backend, seed);
    const TensorView d = backend->allocate(cpu::library_storage(call.output), m, n);
    cpu::library_gemm(call.gemm, left.operand, right.operand, epilogue, d);
    result = cli::read_back(*backend, d);
  }
  return to_numpy(result);
}

}  // namespace

void bind_gemm(py::module_& module) {
  module.def("gemm", &gemm);
  module.def("library_gemm", &library_gemm);
  module.def("is_library_call", &is_library_call);
}

}  // namespace fp8lab::python
