// fp8lab.h: GEMM.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "emulation/base/input_error.hpp"
#include "emulation/cpu/gemm/library_gemm.hpp"
#include "src/cli/inputs/matrices.hpp"
#include "src/config/reading/library_call.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/interface/arrays.hpp"
#include "src/interface/guard.hpp"
#include "src/interface/handles.hpp"

struct fp8lab_gemm {
  std::variant<fp8lab::GemmRequest, fp8lab::LibraryCall> product;
};

namespace fp8lab::interface {
namespace {

/// One operand of the call.
struct Operand {
  std::string name;
  Input input;
  std::optional<NpyArray> scales;
  QuantSpec spec;

  std::int64_t rows() const { return input.view.rows; }
  std::int64_t k() const { return input.view.cols; }
  cli::MatrixOperand make(Backend& backend, std::uint64_t seed) const {
    return cli::make_operand(backend, input.view, name, scales, "scale_" + name, spec, seed);
  }
};

/// Reads one operand. Without a quantizer of its own it has the `implied` one, with the format of
/// the array's type if the type has one.
Operand read_operand(const char* name, const fp8lab_operand& given, const QuantSpec& implied) {
  Operand operand{name, read_matrix(given.values, name), std::nullopt, implied};
  const std::optional<numerics::FormatSpec>& codes = operand.input.codes;
  if (given.quantizer != nullptr) {
    operand.spec = given.quantizer->spec;
  } else if (codes) {
    operand.spec.format = *codes;
  }
  check_codes_are(name, codes, operand.spec.format);
  operand.scales = read_scales(given.scales, std::string("scale_") + name);
  return operand;
}

void check_same_k(const Operand& a, const Operand& b) {
  if (a.k() == b.k()) return;
  throw InputError(
      {.reason = fmt::format(
           "a is ({}, {}) and b is ({}, {}); a (M, K) and b (N, K) must have the same K", a.rows(),
           a.k(), b.rows(), b.k())});
}

/// Reads an optional FP32 input: the addend of an accumulating GEMM, C of a library call, or a
/// bias.
std::optional<Input> read_floats(const fp8lab_array* array, const char* name, std::int64_t rows,
                                 std::int64_t cols) {
  if (array == nullptr) return std::nullopt;
  Input input = read_array(array, name);
  const bool vector = rows == 1 && input.shape.size() == 1;
  const bool matrix = input.shape.size() == 2 && input.shape[0] == rows;
  if (input.view.dtype != DType::f32 || !(vector || matrix) || input.shape.back() != cols) {
    throw InputError({.where = name,
                      .accepted = vector || rows == 1
                                      ? fmt::format("float32 of shape ({},)", cols)
                                      : fmt::format("float32 of shape ({}, {})", rows, cols)});
  }
  input.view.rows = rows;
  input.view.cols = input.view.row_stride = cols;
  return input;
}

void write_result(Backend& backend, const TensorView& d, const fp8lab_array* result) {
  const NpyArray values = cli::read_back(backend, d);
  const TensorView memory = result_matrix(result, "d", values.dtype, d.rows, d.cols);
  std::memcpy(memory.data, values.data.data(), values.data.size());
}

void run(Backend& backend, const GemmRequest& request, const fp8lab_gemm_arguments& arguments,
         const fp8lab_array* result) {
  if (arguments.alpha != 1.0f || arguments.beta != 0.0f || arguments.d_scale != 1.0f) {
    throw InputError(
        {.where = "alpha, beta and d_scale", .accepted = "with specs cublaslt_h200:MODE only"});
  }
  const Operand a = read_operand("a", arguments.a, request.a);
  const Operand b = read_operand("b", arguments.b, request.b);
  const std::int64_t m = a.rows(), n = b.rows();
  check_same_k(a, b);
  const std::optional<Input> bias = read_floats(arguments.bias, "bias", 1, n);
  const std::optional<Input> addend = read_floats(arguments.addend, "accumulate", m, n);
  if (addend && request.gemm.output != DType::f32) {
    throw InputError({.where = "accumulate", .accepted = "with an fp32 output only"});
  }
  const Support support =
      backend.supports(ops::Gemm{.spec = request.gemm,
                                 .a = QuantizedOperand::without_memory(a.spec, m, a.k()),
                                 .b = QuantizedOperand::without_memory(b.spec, n, b.k()),
                                 .bias = {},
                                 .accumulate = addend.has_value(),
                                 .d = TensorView::without_memory(request.gemm.output, m, n)});
  if (!support) throw InputError({.reason = support.reason});
  const CallMemory memory(backend);
  const cli::MatrixOperand left = a.make(backend, arguments.seed);
  const cli::MatrixOperand right = b.make(backend, arguments.seed);
  const TensorView d = backend.allocate(request.gemm.output, m, n);
  if (addend) backend.upload(d, addend->view.data);
  const TensorView bias_view = bias ? cli::upload(backend, bias->view) : TensorView{};
  cli::multiply(backend, request.gemm, left, right, bias_view, addend.has_value(), d);
  write_result(backend, d, result);
}

void run(Backend& backend, const LibraryCall& call, const fp8lab_gemm_arguments& arguments,
         const fp8lab_array* result) {
  if (!backend.is_on_host()) {
    throw InputError({.where = "library calls", .accepted = "backend cpu"});
  }
  const Operand a = read_operand("a", arguments.a, call.a);
  const Operand b = read_operand("b", arguments.b, call.b);
  check_same_k(a, b);
  LibraryCall adjusted = call;
  adjusted.a = a.spec;
  adjusted.b = b.spec;
  const std::int64_t m = a.rows(), n = b.rows();
  check_library_call(adjusted, m, n, a.k());
  const std::optional<Input> bias = read_floats(arguments.bias, "bias", 1, m);
  const std::optional<Input> c = read_floats(arguments.addend, "c", m, n);
  if (c.has_value() != (arguments.beta != 0.0f)) {
    throw InputError({.reason = "c and a beta other than 0 need each other"});
  }
  if (arguments.d_scale != 1.0f && call.output.bits() > 8) {
    throw InputError({.where = "d_scale", .accepted = "with an e4m3fn or e5m2 output only"});
  }
  cpu::LibraryEpilogue epilogue{arguments.alpha, arguments.beta,   {}, {},
                                call.output,     arguments.d_scale};
  if (bias) epilogue.bias = bias->view;
  if (c) epilogue.c = c->view;
  const CallMemory memory(backend);
  const cli::MatrixOperand left = a.make(backend, arguments.seed);
  const cli::MatrixOperand right = b.make(backend, arguments.seed);
  const TensorView d = backend.allocate(cpu::library_storage(call.output), m, n);
  cpu::library_gemm(adjusted.gemm, left.operand, right.operand, epilogue, d);
  write_result(backend, d, result);
}

}  // namespace
}  // namespace fp8lab::interface

using namespace fp8lab::interface;

fp8lab_status fp8lab_gemm_new(const char* words, fp8lab_gemm** gemm) {
  return guarded([&] {
    const std::string text = text_of(words, "words");
    auto made = std::make_unique<fp8lab_gemm>();
    if (fp8lab::is_library_call(text)) {
      made->product = fp8lab::parse_library_call(text);
    } else {
      made->product = fp8lab::parse_gemm_problem(text);
    }
    given(gemm, "gemm") = made.release();
  });
}

void fp8lab_gemm_free(fp8lab_gemm* gemm) { delete gemm; }

int32_t fp8lab_gemm_is_library_call(const fp8lab_gemm* gemm) {
  return std::holds_alternative<fp8lab::LibraryCall>(gemm->product) ? 1 : 0;
}

const char* fp8lab_gemm_result_type(const fp8lab_gemm* gemm) {
  const auto* const call = std::get_if<fp8lab::LibraryCall>(&gemm->product);
  return call != nullptr && call->output.bits() <= 8 ? "uint8" : "float32";
}

fp8lab_status fp8lab_gemm_run(fp8lab_backend* backend, const fp8lab_gemm* gemm,
                              const fp8lab_gemm_arguments* arguments, const fp8lab_array* d) {
  return guarded([&] {
    const fp8lab_gemm_arguments& values = given(arguments, "arguments");
    std::visit(
        [&](const auto& product) { run(*given(backend, "backend").backend, product, values, d); },
        given(gemm, "gemm").product);
  });
}
