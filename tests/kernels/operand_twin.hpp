// Operands of GEMMs that exist on the CPU and on the device.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>

#include "emulation/cpu/operations.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "tests/kernels/device_test.hpp"

namespace fp8lab::test {

/// An operand on both sides. The rows of a tile and the tiles differ in magnitude, so that a wrong
/// scale cannot pass.
class OperandTwin {
 public:
  OperandTwin(const QuantSpec& spec, std::int64_t rows, std::int64_t k, std::uint32_t seed)
      : codes_(spec.is_quantized() ? DType::u8 : DType::bf16, rows, k, Fill::ordinary, seed) {
    Matrix source = Matrix::random(DType::bf16, rows, k, seed);
    for (std::int64_t i = 0; i < rows * k; ++i) {
      const std::int64_t row = i / k, tile = i % k / 128;
      source.set(i, std::ldexp(source.at(i), static_cast<int>((3 * row + 5 * tile) % 7) - 3));
    }
    host_ = {spec, rows, k, codes_.host(), {}};
    if (spec.has_scale()) {
      scales_ = std::make_unique<Twin>(DType::f32, spec.tile_rows(rows), spec.tile_cols(k),
                                       Fill::ordinary, seed, Layout{2, 0});
      host_.scales = scales_->host();
    }
    cpu::run(ops::Quantize{.source = source.view(), .operand = host_});
    device_ = host_;
    codes_.upload();
    device_.codes = codes_.device();
    if (scales_) {
      scales_->upload();
      device_.scales = scales_->device();
    }
  }
  const QuantizedOperand& host() const { return host_; }
  const QuantizedOperand& device() const { return device_; }

 private:
  Twin codes_;
  std::unique_ptr<Twin> scales_;
  QuantizedOperand host_, device_;
};

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
