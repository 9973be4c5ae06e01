// Parameters of a GEMM: accumulation, scales and rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulation/base/tensor_view.hpp"
#include "emulation/spec/accumulator.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Combination of partial sums along K.
enum class Schedule : std::uint8_t {
  fast,     ///< one tensor-core chain over all of K
  promote,  ///< every `promote_interval` of K the chain restarts and its sum is added in FP32
};

using numerics::ScaleOrder;

struct GemmSpec {
  Accumulator accumulator = Accumulator::sm90_bf16;
  Schedule schedule = Schedule::fast;
  int promote_interval = 128;  ///< elements of K, for Schedule::promote
  ScaleOrder scale_order = ScaleOrder::automatic;
  int split_k = 1;             ///< number of contiguous K ranges summed left to right
  DType output = DType::bf16;  ///< bf16 or f32
  /// Factor of the product, before a bias or an accumulator is added. It belongs to the function of
  /// a model (ModelConfig::linear_alpha): recipes do not set it.
  float alpha = 1.0f;

  bool operator==(const GemmSpec&) const = default;
};

/// Returns "fast" or "promote:128", as in recipes.
std::string schedule_name(const GemmSpec& spec);

/// The schedule and promotion interval of a name; "fast" keeps the default interval.
struct ScheduleChoice {
  Schedule schedule = Schedule::fast;
  int promote_interval = GemmSpec{}.promote_interval;
  bool operator==(const ScheduleChoice&) const = default;
};

/// Inverse of schedule_name: "fast", "promote" (every 128) or "promote:G" with G >= 1; empty for
/// other names.
std::optional<ScheduleChoice> schedule_from_name(std::string_view name);

/// Returns the form in which a GEMM multiplies an operand quantized by `operand`. This is the
/// operand's own form, except for values of a tile's own codebook: these are dequantized first,
/// rounded to bf16 for sm90_bf16, in fp32 for the ideal sums.
QuantSpec multiplied_form(const Accumulator& accumulator, const QuantSpec& operand);

/// Returns the words that parse_gemm_spec parses, for example "sm90_wgmma_fp8/promote:128/bf16"; a
/// scale order other than automatic and "/split_k:N" follow. An alpha other than 1, which recipes
/// do not have, follows as " times A".
std::string label(const GemmSpec& spec);

}  // namespace fp8lab
