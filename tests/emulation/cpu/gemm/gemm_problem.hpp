// Random GEMM problems and the comparison of the fast GEMM with the scalar reference: every bit, on
// every SIMD target and for several numbers of threads.
#pragma once

#include <omp.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/spec/current_scaling.hpp"

namespace fp8lab::test {

/// Restores the SIMD target and the number of threads.
struct Restore {
  cpu::SimdTarget target = cpu::active_target();
  int threads = omp_get_max_threads();
  ~Restore() {
    cpu::set_active_target(target);
    omp_set_num_threads(threads);
  }
};

inline std::vector<std::byte> bytes_of(const void* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), data, size);
  return bytes;
}

/// Operand memory with a row stride larger than K, and its scales.
class TestOperand {
 public:
  TestOperand(CaseGenerator& cases, const QuantSpec& spec, std::int64_t rows, std::int64_t k,
              bool specials, float fixed_scale = 0.0f) {
    operand_.spec = spec;
    operand_.rows = rows;
    operand_.k = k;
    const std::int64_t stride = k + 3;
    const DType stored = spec.storage();
    const std::size_t size = size_of(stored);
    codes_.resize(static_cast<std::size_t>(rows * stride) * size, std::byte{0x7F});
    const auto fill = [&](const auto& values) {
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(codes_.data() + static_cast<std::size_t>(r * stride) * size,
                    values.data() + r * k, static_cast<std::size_t>(k) * size);
      }
    };
    if (stored == DType::u8) {
      fill(cases.codes<std::uint8_t>(spec.format, rows, k, 3, 16, specials));
    } else if (stored == DType::bf16) {
      fill(cases.codes<std::uint16_t>(spec.format, rows, k, 3, 16, specials));
    } else {
      std::vector<float> values;
      for (const auto code : cases.codes<std::uint32_t>(spec.format, rows, k, 3, 16, specials)) {
        values.push_back(numerics::decode(spec.format, code));
      }
      fill(values);
    }
    operand_.codes = {codes_.data(), stored, rows, k, stride};
    if (!spec.has_scale()) return;
    const std::int64_t scale_rows = spec.tile_rows(rows);
    const std::int64_t scale_cols = spec.tile_cols(k);
    for (std::int64_t i = 0; i < scale_rows * scale_cols; ++i) {
      scales_.push_back(fixed_scale == 0.0f ? draw_scale(cases, spec) : fixed_scale);
    }
    operand_.scales = {scales_.data(), DType::f32, scale_rows, scale_cols, scale_cols};
  }
  TestOperand(const TestOperand&) = delete;
  TestOperand& operator=(const TestOperand&) = delete;
  const QuantizedOperand& get() const { return operand_; }

 private:
  // Half of the E8M0 scales lie near 1, so that groups of several terms meet; one in 64 is NaN.
  static float draw_scale(CaseGenerator& cases, const QuantSpec& spec) {
    const std::uint32_t bits = cases.bits();
    switch (spec.scale.format) {
      case numerics::ScaleFormat::e8m0:
        if (bits % 64 == 0) return numerics::decode(numerics::kE8M0, 255);
        return numerics::decode(numerics::kE8M0,
                                bits % 2 == 0 ? 120 + (bits >> 8) % 15 : (bits >> 8) % 255);
      case numerics::ScaleFormat::e4m3: return numerics::decode(numerics::kE4M3, (bits >> 8) % 128);
      default: return cases.scale();
    }
  }

  QuantizedOperand operand_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
};

/// Rows of contiguous codes or values without scales.
inline QuantizedOperand unscaled(const numerics::FormatSpec& format, const void* codes,
                                 std::int64_t rows, std::int64_t k) {
  QuantizedOperand operand;
  operand.spec.format = format;
  operand.rows = rows;
  operand.k = k;
  operand.codes = {const_cast<void*>(codes), operand.spec.storage(), rows, k, k};
  return operand;
}

struct Problem {
  GemmSpec spec;
  QuantSpec a, b;
  std::int64_t m, n, k;
  bool accumulate = false;
  DType bias = DType::u8;  ///< u8: none
  bool specials = true;
  float fixed_scale = 0.0f;  ///< 0: drawn
};

inline std::string describe(const Problem& p) {
  return label(p.spec) + " " + label(p.a) + " x " + label(p.b) + " " + std::to_string(p.m) + "x" +
         std::to_string(p.n) + "x" + std::to_string(p.k) + (p.accumulate ? " accumulate" : "") +
         " split " + std::to_string(p.spec.split_k) + " order " +
         std::to_string(static_cast<int>(p.spec.scale_order));
}

/// The first element that differs, or an empty string.
inline std::string first_mismatch(const std::vector<std::byte>& got,
                                  const std::vector<std::byte>& want, std::int64_t stride,
                                  std::size_t size) {
  for (std::size_t i = 0; i < want.size(); i += size) {
    if (std::memcmp(&got[i], &want[i], size) == 0) continue;
    std::uint32_t x = 0, y = 0;
    std::memcpy(&x, &got[i], size);
    std::memcpy(&y, &want[i], size);
    const auto element = static_cast<std::int64_t>(i / size);
    char text[128];
    std::snprintf(text, sizeof text, "element (%ld, %ld): %08x, reference %08x",
                  static_cast<long>(element / stride), static_cast<long>(element % stride), x, y);
    return text;
  }
  return {};
}

/// Runs the reference once and the fast GEMM on every target, with other numbers of threads on the
/// fastest; the output has a guarded margin.
inline void check(CaseGenerator& cases, const Problem& p) {
  INFO(describe(p));
  const TestOperand a(cases, p.a, p.m, p.k, p.specials, p.fixed_scale);
  const TestOperand b(cases, p.b, p.n, p.k, p.specials, p.fixed_scale);
  std::vector<float> bias_f32;
  std::vector<std::uint16_t> bias_bf16;
  for (std::int64_t j = 0; j < p.n; ++j) {
    bias_f32.push_back(cases.accumulator());
    bias_bf16.push_back(numerics::to_bf16(bias_f32.back()));
  }
  TensorView bias;
  if (p.bias == DType::f32) bias = {bias_f32.data(), DType::f32, 1, p.n, p.n};
  if (p.bias == DType::bf16) bias = {bias_bf16.data(), DType::bf16, 1, p.n, p.n};

  const std::int64_t stride = p.n + 2;
  const std::size_t size = size_of(p.spec.output);
  std::vector<float> initial;
  for (std::int64_t i = 0; i < p.m * stride; ++i) initial.push_back(cases.accumulator());
  const auto start = bytes_of(initial.data(), static_cast<std::size_t>(p.m * stride) * size);
  auto want = start;
  reference::gemm(ops::Gemm{p.spec,
                            a.get(),
                            b.get(),
                            bias,
                            p.accumulate,
                            {want.data(), p.spec.output, p.m, p.n, stride}});
  const Restore restore;
  const auto targets = cpu::available_targets();
  for (const cpu::SimdTarget target : targets) {
    cpu::set_active_target(target);
    for (const int threads : {1, 2, 5}) {
      if (threads > 1 && target != targets.back()) continue;
      omp_set_num_threads(threads);
      auto got = start;
      cpu::run(ops::Gemm{p.spec,
                         a.get(),
                         b.get(),
                         bias,
                         p.accumulate,
                         {got.data(), p.spec.output, p.m, p.n, stride}});
      INFO(name_of(target) << ", " << threads << " threads");
      REQUIRE(first_mismatch(got, want, stride, size) == "");
    }
  }
}

/// The fast GEMM of two operands on every target, FP32 output, against the reference.
inline void check_operands(GemmSpec spec, const QuantizedOperand& a, const QuantizedOperand& b) {
  spec.output = DType::f32;
  std::vector<float> got(static_cast<std::size_t>(a.rows * b.rows)), want(got.size());
  reference::gemm(
      ops::Gemm{spec, a, b, {}, false, {want.data(), DType::f32, a.rows, b.rows, b.rows}});
  const auto want_bytes = bytes_of(want.data(), want.size() * sizeof(float));
  const Restore restore;
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    cpu::set_active_target(target);
    cpu::run(ops::Gemm{spec, a, b, {}, false, {got.data(), DType::f32, a.rows, b.rows, b.rows}});
    INFO(label(spec) << " " << name_of(target));
    REQUIRE(first_mismatch(bytes_of(got.data(), got.size() * sizeof(float)), want_bytes, b.rows,
                           sizeof(float)) == "");
  }
}

/// Uniform in [first, last].
inline std::int64_t draw(CaseGenerator& cases, std::int64_t first, std::int64_t last) {
  return first + cases.bits() % (last - first + 1);
}

/// Shape, output, bias and accumulation at random.
inline Problem random_problem(CaseGenerator& cases, const GemmSpec& spec, const QuantSpec& a,
                              const QuantSpec& b, std::int64_t largest_k) {
  Problem p{spec, a, b, draw(cases, 1, 40), draw(cases, 1, 80), draw(cases, 1, largest_k)};
  p.spec.output = cases.bits() % 2 == 0 ? DType::f32 : DType::bf16;
  p.accumulate = p.spec.output == DType::f32 && cases.bits() % 2 == 0;
  const DType biases[] = {DType::u8, DType::bf16, DType::f32};
  p.bias = biases[cases.bits() % 3];
  p.specials = cases.bits() % 4 == 0;
  return p;
}

inline GemmSpec fp8_spec(Schedule schedule, int interval) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = schedule;
  spec.promote_interval = interval;
  return spec;
}

}  // namespace fp8lab::test
