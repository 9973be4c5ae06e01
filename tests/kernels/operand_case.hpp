// Operands of GEMMs, and products as cases.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "emulation/spec/current_scaling.hpp"
#include "tests/kernels/device_test.hpp"

namespace fp8lab::test {

/// An operand that the CPU has quantized. The rows of a tile and the tiles differ in magnitude, so
/// that a wrong scale cannot pass.
struct OperandCase {
  QuantizedOperand form;
  HostTensor codes, scales;  ///< scales without elements if the operand has none

  OperandCase(const QuantSpec& spec, std::int64_t rows, std::int64_t k, std::uint32_t seed)
      : form(QuantizedOperand::without_memory(spec, rows, k)) {
    Matrix source = Matrix::random(DType::bf16, rows, k, seed);
    for (std::int64_t i = 0; i < rows * k; ++i) {
      const std::int64_t row = i / k, tile = i % k / 128;
      source.set(i, std::ldexp(source.at(i), static_cast<int>((3 * row + 5 * tile) % 7) - 3));
    }
    codes = filled(spec.storage(), rows, k, Fill::any_bits, seed);
    scales = spec.has_scale() ? filled(DType::f32, spec.tile_rows(rows), spec.tile_cols(k),
                                       Fill::any_bits, seed, {2, 0})
                              : filled(DType::f32, 1, 0, Fill::any_bits, seed);
    cpu::CpuBackend cpu(0);
    const QuantizedOperand operand = on(cpu);
    cpu.run(ops::Quantize{.source = source.view(), .operand = operand});
    cpu.download(codes.data.data(), operand.codes);
    if (spec.has_scale()) cpu.download(scales.data.data(), operand.scales);
  }

  /// The operand with codes and scales in these tensors.
  QuantizedOperand in(const TensorView& codes_view, const TensorView& scales_view) const {
    QuantizedOperand operand = form;
    operand.codes = codes_view;
    operand.scales = form.spec.has_scale() ? scales_view : TensorView{};
    return operand;
  }
  /// The operand in memory of `backend`.
  QuantizedOperand on(Backend& backend) const {
    return in(uploaded(backend, codes), uploaded(backend, scales));
  }
};

/// Checks a product of both operands, with a bias unless that is without elements.
inline void check_product(const std::string& name, const GemmSpec& spec, const OperandCase& a,
                          const OperandCase& b, const HostTensor& d, const HostTensor& bias,
                          bool accumulate) {
  check_same(
      name, {a.codes, a.scales, b.codes, b.scales, d, bias}, [&](Backend& backend, const Views& t) {
        const QuantizedOperand left = a.in(t[0], t[1]), right = b.in(t[2], t[3]);
        backend.run(
            ops::Gemm{spec, left, right, bias.cols > 0 ? t[5] : TensorView{}, accumulate, t[4]});
      });
}

inline GemmSpec fp8_gemm(Schedule schedule, DType output,
                         ScaleOrder order = ScaleOrder::automatic) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = schedule;
  spec.output = output;
  spec.scale_order = order;
  return spec;
}

}  // namespace fp8lab::test
