#include "kernels/plan/quantize_plan.hpp"

#include <fmt/format.h>

#include <bit>
#include <vector>

#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/numerics/stochastic_codec.hpp"
#include "kernels/plan/limits.hpp"
#include "kernels/plan/tile_grid.hpp"

namespace fp8lab::cuda {
namespace {

bool is_block_extent(std::int64_t extent) {
  return extent >= 16 && extent <= 128 && std::has_single_bit(static_cast<std::uint64_t>(extent));
}

/// Returns true if the block and row kernels encode values of `spec` without random bits.
bool is_encoded_in_registers(const QuantSpec& spec) {
  const Encoder encoder = encoder_of(spec);
  return encoder != Encoder::general && encoder != Encoder::stochastic;
}

bool has_two_levels(const QuantSpec& spec) {
  return spec.scale.format == numerics::ScaleFormat::nv_two_level;
}

/// Returns true if two-level scales have a factor of each row.
bool has_row_factors(const QuantSpec& spec) {
  return has_two_levels(spec) && spec.scale.outer == numerics::OuterScale::row;
}

/// Returns true if the whole tiles of `spec` lie in a block, and their amaxes and, for two-level
/// scales, that of the tensor determine the scales.
bool has_block_tiles(const QuantSpec& spec) {
  const TileShape& tile = spec.tile;
  return spec.scale_source == ScaleSource::current && spec.scale.deviations == 0.0f &&
         spec.scale.four_over_six == numerics::FourOverSix::none && !has_row_factors(spec) &&
         is_block_extent(tile.cols) && (tile.rows == 1 || tile.rows == tile.cols);
}

/// Returns true if each row of the operand has a current one-level scale.
bool has_row_scales(const QuantSpec& spec) {
  return spec.scale_source == ScaleSource::current && !has_two_levels(spec) && spec.tile.is_row();
}

/// Returns the plan of an operand whose codes `kernel` writes from registers, with tiles that
/// has_block_tiles() takes.
QuantizePlan plan_tiles(const QuantSpec& spec, CodeKernel kernel) {
  QuantizePlan plan{.codes = kernel, .encoder = encoder_of(spec)};
  plan.scales = has_two_levels(spec) ? ScaleStep::two_level : ScaleStep::in_kernel;
  plan.amaxes.tensor = has_two_levels(spec);
  return plan;
}

/// Returns the plan of an operand with one known scale, whose codes `kernel` writes.
QuantizePlan plan_known(const QuantSpec& spec, CodeKernel kernel) {
  QuantizePlan plan{.scales = ScaleStep::known, .codes = kernel, .encoder = encoder_of(spec)};
  plan.raises_amax = spec.scale_source == ScaleSource::delayed;
  return plan;
}

/// Returns the plan for scales in memory: of any tiles, or known.
QuantizePlan plan_scales_in_memory(const QuantSpec& spec, const TileGrid& grid, bool transpose) {
  const bool one_a_line = transpose ? grid.has_column_tiles() : grid.has_row_tiles();
  const bool in_blocks = is_encoded_in_registers(spec) && (grid.count() == 1 || one_a_line);
  const CodeKernel kernel = in_blocks ? CodeKernel::block : CodeKernel::element;
  QuantizePlan plan = plan_known(spec, kernel);
  if (spec.scale_source == ScaleSource::current) {
    plan.scales = ScaleStep::from_amaxes;
    const bool is_one = grid.count() == 1;
    plan.amaxes = {.tensor = is_one || has_two_levels(spec),
                   .rows = !is_one && grid.has_row_tiles(),
                   .cols = !is_one && !grid.has_row_tiles() && grid.has_column_tiles()};
    plan.amaxes.tiles = !is_one && !plan.amaxes.rows && !plan.amaxes.cols;
    if (has_row_factors(spec)) plan.amaxes = {.rows = !transpose, .cols = transpose, .tiles = true};
  }
  if (in_blocks) return plan;
  if (plan.raises_amax) plan.amaxes.tensor = true;
  plan.raises_amax = false;
  const bool by_instruction =
      plan.encoder == Encoder::e4m3_instruction || plan.encoder == Encoder::e5m2_instruction;
  if (!by_instruction) plan.encoder = Encoder::general;
  return plan;
}

TransformStep transform_step(const Transform& transform) {
  if (transform.is<Hadamard>()) return TransformStep::hadamard;
  if (transform.is<Smoothing>()) return TransformStep::smoothing;
  return transform.is<Clamp>() ? TransformStep::clamp : TransformStep::none;
}

QuantizePlan plan_untransformed(const QuantSpec& spec, std::int64_t rows, std::int64_t cols,
                                bool transpose) {
  if (!spec.is_quantized()) return {.codes = CodeKernel::cast};
  if (spec.has_codebooks()) return {.scales = ScaleStep::in_kernel, .codes = CodeKernel::codebook};
  const bool draws = encoder_of(spec) == Encoder::stochastic && cols % 4 == 0;
  if (has_block_tiles(spec) && (is_encoded_in_registers(spec) || draws)) {
    return plan_tiles(spec, CodeKernel::block);
  }
  if (!transpose && has_row_scales(spec) && is_encoded_in_registers(spec) && cols <= kLongestRow) {
    return {.scales = ScaleStep::in_kernel, .codes = CodeKernel::row, .encoder = encoder_of(spec)};
  }
  return plan_scales_in_memory(spec, tile_grid(rows, cols, spec.scale_tile(), transpose),
                               transpose);
}

/// Returns the plan of one of two operands of plan_quantize_both; empty if it has none.
std::optional<QuantizePlan> plan_one_of_both(const QuantSpec& spec, bool transpose) {
  if (spec.transform || !is_encoded_in_registers(spec)) return std::nullopt;
  if (has_block_tiles(spec)) return plan_tiles(spec, CodeKernel::block);
  const bool of_rows = has_row_scales(spec);
  if (!of_rows && !spec.scale_tile().is_tensor()) return std::nullopt;
  QuantizePlan plan = plan_known(spec, CodeKernel::block);
  if (spec.scale_source != ScaleSource::current) return plan;
  plan.scales = ScaleStep::from_amaxes;
  plan.amaxes = {.tensor = !of_rows, .rows = of_rows && !transpose, .cols = of_rows && transpose};
  return plan;
}

std::string_view name_of(CodeKernel kernel) {
  switch (kernel) {
    case CodeKernel::cast: return "cast_kernel";
    case CodeKernel::codebook: return "codebook_kernel";
    case CodeKernel::block: return "block_kernel";
    case CodeKernel::row: return "row_kernel";
    case CodeKernel::element: return "encode_kernel";
  }
  return "?";
}

std::string_view name_of(Encoder encoder) {
  switch (encoder) {
    case Encoder::e4m3_instruction: return "the e4m3 instruction";
    case Encoder::e5m2_instruction: return "the e5m2 instruction";
    case Encoder::e2m1: return "e2m1 by additions";
    case Encoder::int8: return "int8 by an addition";
    case Encoder::nearest: return "NearestCodec";
    case Encoder::stochastic: return "StochasticCodec";
    case Encoder::general: return "the general codec";
  }
  return "?";
}

using Steps = std::vector<std::string>;

void add_transform(Steps& steps, TransformStep transform) {
  switch (transform) {
    case TransformStep::none: return;
    case TransformStep::hadamard: steps.push_back("Hadamard transform"); return;
    case TransformStep::smoothing: steps.push_back("smoothing"); return;
    case TransformStep::clamp:
      steps.push_back("bounds of the clamp");
      steps.push_back("clamp");
      return;
  }
}

void add_amaxes(Steps& steps, const AmaxPasses& amaxes) {
  if (amaxes.tensor) steps.push_back("amax of the tensor");
  if (amaxes.rows || amaxes.cols) {
    steps.push_back(fmt::format("amaxes of {}", !amaxes.cols   ? "rows"
                                                : !amaxes.rows ? "columns"
                                                               : "rows and columns"));
  }
  if (amaxes.tiles) steps.push_back("amaxes of tiles");
}

void add_scales(Steps& steps, ScaleStep scales) {
  if (scales == ScaleStep::two_level) steps.push_back("two_level_kernel");
  if (scales == ScaleStep::from_amaxes) steps.push_back("scale_kernel");
  if (scales == ScaleStep::known) steps.push_back("known_scale_kernel");
}

std::string codes_of(const QuantizePlan& plan, bool raises_amax) {
  std::string text(name_of(plan.codes));
  const bool has_encoder = plan.codes != CodeKernel::cast && plan.codes != CodeKernel::codebook;
  if (has_encoder) text += fmt::format(" with {}", name_of(plan.encoder));
  return raises_amax ? text + ", which raises the delayed amax" : text;
}

}  // namespace

AmaxPasses QuantizeBothPlan::amaxes() const {
  const AmaxPasses &a = first.amaxes, &b = second.amaxes;
  return {.tensor = a.tensor || b.tensor,
          .rows = a.rows || b.rows,
          .cols = a.cols || b.cols,
          .tiles = a.tiles || b.tiles};
}

Encoder encoder_of(const QuantSpec& spec) {
  if (!spec.cast().is_direct()) return Encoder::general;
  if (spec.rounding == numerics::Rounding::stochastic) {
    const bool applies = numerics::StochasticCodec::applies(spec.format);
    return applies ? Encoder::stochastic : Encoder::general;
  }
  if (spec.rounding != numerics::Rounding::nearest) return Encoder::general;
  const bool saturates = spec.overflow == numerics::Overflow::saturate;
  if (saturates && spec.format == numerics::kE4M3) return Encoder::e4m3_instruction;
  if (saturates && spec.format == numerics::kE5M2) return Encoder::e5m2_instruction;
  if (!numerics::NearestCodec::applies(spec.format)) return Encoder::general;
  const bool is_plain = saturates && !divides(spec);
  if (is_plain && spec.format == numerics::kE2M1) return Encoder::e2m1;
  return is_plain && spec.format == numerics::kInt8 ? Encoder::int8 : Encoder::nearest;
}

QuantizePlan plan_quantize(const QuantSpec& spec, std::int64_t rows, std::int64_t cols,
                           bool transpose) {
  QuantizePlan plan = plan_untransformed(spec, rows, cols, transpose);
  plan.transform = transform_step(spec.transform);
  return plan;
}

std::optional<QuantizeBothPlan> plan_quantize_both(const QuantSpec& first,
                                                   const QuantSpec& second) {
  const bool share_encoder = first.format == second.format && first.overflow == second.overflow &&
                             divides(first) == divides(second);
  const std::optional<QuantizePlan> a = plan_one_of_both(first, false);
  const std::optional<QuantizePlan> b = plan_one_of_both(second, true);
  if (!share_encoder || !a || !b) return std::nullopt;
  return QuantizeBothPlan{*a, *b};
}

std::optional<QuantizePlan> plan_rows(const QuantSpec& spec) {
  if (spec.transform || !is_encoded_in_registers(spec)) return std::nullopt;
  if (spec.scale_source != ScaleSource::current) {
    if (!spec.scale_tile().is_tensor()) return std::nullopt;
    return plan_known(spec, CodeKernel::row);
  }
  const bool has_parts = has_block_tiles(spec) && !has_two_levels(spec) && spec.tile.rows == 1;
  if (!has_row_scales(spec) && !has_parts) return std::nullopt;
  return plan_tiles(spec, CodeKernel::row);
}

std::string describe(const QuantizePlan& plan) {
  Steps steps;
  add_transform(steps, plan.transform);
  add_amaxes(steps, plan.amaxes);
  add_scales(steps, plan.scales);
  steps.push_back(codes_of(plan, plan.raises_amax));
  return fmt::format("{}", fmt::join(steps, ", "));
}

std::string describe(const QuantizeBothPlan& plan) {
  Steps steps;
  add_amaxes(steps, plan.amaxes());
  add_scales(steps, plan.first.scales);
  add_scales(steps, plan.second.scales);
  steps.push_back(codes_of(plan.first, plan.raises_amax()) + ", both orientations");
  return fmt::format("{}", fmt::join(steps, ", "));
}

}  // namespace fp8lab::cuda
