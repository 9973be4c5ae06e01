#include "emulation/cpu/gemm/library_gemm.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/gemm/gemm_operand.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/reference/multiplied_operand.hpp"

namespace fp8lab::cpu {
namespace {

void check_addend(const TensorView& view, const char* name, std::int64_t rows, std::int64_t cols) {
  const bool typed = view.dtype == DType::bf16 || view.dtype == DType::f32;
  if (!view.empty() && typed && view.rows == rows && view.cols == cols) return;
  const std::string found =
      view.empty() ? "missing"
                   : fmt::format("({}, {}) {}", view.rows, view.cols, name_of(view.dtype));
  throw Error(fmt::format("GEMM {} is {}, expected ({}, {}) bf16 or f32", name, found, rows, cols));
}

void check_output(const LibraryEpilogue& epilogue, std::int64_t m, std::int64_t n,
                  const TensorView& d) {
  constexpr std::array<numerics::FormatSpec, 5> kOutputs = {
      numerics::kBF16, numerics::kFP32, numerics::kFP16, numerics::kE4M3, numerics::kE5M2};
  bool known = false;
  for (const numerics::FormatSpec& format : kOutputs) known = known || format == epilogue.output;
  if (!known) {
    throw Error(fmt::format("GEMM output {}; accepted: bf16, fp32, fp16, e4m3fn, e5m2",
                            format_name(epilogue.output)));
  }
  if (!d.has_memory() || d.rows != m || d.cols != n ||
      d.dtype != library_storage(epilogue.output)) {
    throw Error(fmt::format("GEMM output is ({}, {}) {}, expected ({}, {}) {}", d.rows, d.cols,
                            name_of(d.dtype), m, n, name_of(library_storage(epilogue.output))));
  }
  if (epilogue.beta != 0.0f) check_addend(epilogue.c, "addend C", m, n);
  if (!epilogue.bias.empty()) check_addend(epilogue.bias, "bias", 1, m);
}

float value_at(const TensorView& view, std::int64_t r, std::int64_t c) {
  return view.dtype == DType::bf16 ? numerics::from_bf16(view.row<const std::uint16_t>(r)[c])
                                   : view.row<const float>(r)[c];
}

/// Throws Error if the product would need a correction or a rotation afterwards: a library
/// multiplies the stored operands and rounds its result once.
void refuse_work_after(const QuantizedOperand& operand) {
  const Transform rows = operand.space_of_rows().transform;
  if (!operand.spec.transform.is_compensated() && !rows) return;
  throw Error(fmt::format(
      "transform {} in a library call or beside alpha, beta or a bias by row; accepted: {}, or a "
      "plain product",
      transform_name(rows ? rows : operand.spec.transform),
      rows ? "a transform along K" : "a clamp without compensation"));
}

void store(const TensorView& d, const numerics::FormatSpec& format, std::int64_t m, std::int64_t n,
           std::uint32_t code) {
  switch (d.dtype) {
    case DType::u8: d.row<std::uint8_t>(m)[n] = static_cast<std::uint8_t>(code); break;
    case DType::bf16: d.row<std::uint16_t>(m)[n] = static_cast<std::uint16_t>(code); break;
    default: d.row<float>(m)[n] = numerics::decode(format, code);
  }
}

}  // namespace

DType library_storage(const numerics::FormatSpec& output) {
  if (output.bits() <= 8) return DType::u8;
  return output == numerics::kBF16 ? DType::bf16 : DType::f32;
}

void library_gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                  const LibraryEpilogue& epilogue, const TensorView& d) {
  refuse_work_after(a);
  refuse_work_after(b);
  if (reference::MultipliedOperand::is_copy(a) || reference::MultipliedOperand::is_copy(b)) {
    const std::string reason = gemm_refusal(spec, a.spec, b.spec);
    if (!reason.empty()) throw Error(reason);
    const reference::MultipliedOperand x(spec.accumulator, a), y(spec.accumulator, b);
    return library_gemm(spec, x.get(), y.get(), epilogue, d);
  }
  const GemmPlan plan = plan_gemm(spec, a.spec, b.spec, a.k);
  std::vector<float> sums(static_cast<std::size_t>(a.rows * b.rows));
  const TensorView accumulators{sums.data(), DType::f32, a.rows, b.rows, b.rows};
  GemmSpec sum_spec = spec;
  sum_spec.output = DType::f32;
  check_gemm_operands(sum_spec, plan, a, b, TensorView{}, false, accumulators);
  check_block_scales(plan, a, b);
  check_output(epilogue, a.rows, b.rows, d);
  gemm_accumulators(plan, a, b, accumulators);

  numerics::Epilogue element = element_epilogue(plan, false, DType::f32);
  element.alpha = epilogue.alpha;
  element.beta = epilogue.beta;
  element.output = epilogue.output;
  element.output_scale = epilogue.output_scale;
#pragma omp parallel for schedule(static)
  for (std::int64_t m = 0; m < a.rows; ++m) {
    const float bias = epilogue.bias.empty() ? 0.0f : value_at(epilogue.bias, 0, m);
    const float* const added = epilogue.bias.empty() ? nullptr : &bias;
    const float scale_a = scale_at(a, m, 0);
    for (std::int64_t n = 0; n < b.rows; ++n) {
      const float c = epilogue.beta == 0.0f ? 0.0f : value_at(epilogue.c, m, n);
      const float acc = accumulators.row<const float>(m)[n];
      store(d, element.output, m, n,
            numerics::finish_element(element, acc, scale_a, scale_at(b, n, 0), c, added));
    }
  }
}

}  // namespace fp8lab::cpu
