#include "kernels/plan/fusion.hpp"

#include <algorithm>
#include <array>

#include "emulation/numerics/tree_sum.hpp"
#include "kernels/plan/limits.hpp"
#include "kernels/plan/statistics_plan.hpp"

namespace fp8lab::cuda {
namespace {

// clang-format off
constexpr std::array kFusions = {
    Fusion{ops::AddRmsNormForward::kName,  FusedWork::alone,          FusedTypes::bf16,        FusedKernel::rows},
    Fusion{ops::RmsNormBackwardAdd::kName, FusedWork::alone,          FusedTypes::bf16,        FusedKernel::row_columns},
    Fusion{ops::QuantizeBoth::kName,       FusedWork::alone,          FusedTypes::any,         FusedKernel::one_reading},
    Fusion{ops::MeasureBoth::kName,        FusedWork::alone,          FusedTypes::any,         FusedKernel::one_reading},
    Fusion{ops::RmsNormForward::kName,     FusedWork::quantized,      FusedTypes::bf16_or_f32, FusedKernel::rows},
    Fusion{ops::AddRmsNormForward::kName,  FusedWork::quantized,      FusedTypes::bf16,        FusedKernel::rows},
    Fusion{ops::GatedForward::kName,       FusedWork::quantized,      FusedTypes::bf16_or_f32, FusedKernel::rows},
    Fusion{ops::RmsNormForward::kName,     FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::norm_blocks},
    Fusion{ops::AddRmsNormForward::kName,  FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::norm_blocks},
    Fusion{ops::GatedForward::kName,       FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::elements},
    Fusion{ops::GatedBackward::kName,      FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::elements, 2},
    Fusion{ops::ActivationForward::kName,  FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::elements},
    Fusion{ops::ActivationBackward::kName, FusedWork::quantized_both, FusedTypes::bf16,        FusedKernel::elements},
};
// clang-format on

const Fusion* find(std::string_view producer, FusedWork work) {
  const auto* const found = std::find_if(
      kFusions.begin(), kFusions.end(),
      [&](const Fusion& fusion) { return fusion.producer == producer && fusion.work == work; });
  return found == kFusions.end() ? nullptr : found;
}

const Fusion& row_of(std::string_view producer) { return *find(producer, FusedWork::alone); }

bool takes(FusedTypes types, DType type) {
  if (types == FusedTypes::any) return true;
  return type == DType::bf16 || (type == DType::f32 && types == FusedTypes::bf16_or_f32);
}

template <class... View>
bool have_type(DType type, const View&... views) {
  return ((views.dtype == type) && ...);
}

// The conditions of the fused producers: fits(op, fusion) looks at types and shapes.

bool fits(const ops::RmsNormForward& norm, const Fusion& fusion) {
  return takes(fusion.types, norm.x.dtype) && has_held_rows(norm, norm.x.dtype);
}

bool fits(const ops::AddRmsNormForward& op, const Fusion& fusion) {
  return takes(fusion.types, op.norm.x.dtype) && has_held_rows(op, op.norm.x.dtype);
}

// A fused kernel of a gate is SwiGLU.

bool fits(const ops::GatedForward& op, const Fusion& fusion) {
  if (op.gate != Gate::silu) return false;
  if (!takes(fusion.types, op.out.dtype) || !have_type(op.out.dtype, op.gate_up)) return false;
  return op.out.size() > 0 && (fusion.kernel != FusedKernel::rows || op.out.cols <= kLongestRow);
}

bool fits(const ops::GatedBackward& op, const Fusion& fusion) {
  return op.gate == Gate::silu && takes(fusion.types, op.dout.dtype) &&
         have_type(op.dout.dtype, op.gate_up, op.dgate_up) && op.dout.size() > 0;
}

bool fits(const ops::ActivationForward& op, const Fusion& fusion) {
  return takes(fusion.types, op.out.dtype) && have_type(op.out.dtype, op.x) && op.x.size() > 0;
}

bool fits(const ops::ActivationBackward& op, const Fusion& fusion) {
  return takes(fusion.types, op.dx.dtype) && have_type(op.dx.dtype, op.x, op.dout) &&
         op.x.size() > 0;
}

template <class LayerNorm>
bool fits(const LayerNorm&, const Fusion&) {
  return false;
}

/// Returns true if a block finds the scales without other blocks, and no tile of `tile_cols`
/// columns of the source reaches from one part of the result, `width` columns, into the next.
bool stays_in_block(const QuantizePlan& plan, std::int64_t tile_cols, std::int64_t width,
                    int parts) {
  if (plan.scales == ScaleStep::known) return true;
  return plan.scales == ScaleStep::in_kernel && (parts == 1 || width % tile_cols == 0);
}

std::optional<ProducePlan> plan_both(const ops::ProduceQuantize& op, const Fusion& fusion) {
  if (op.keeps_output && !fusion.can_keep_output()) return std::nullopt;
  const QuantSpec &first = op.first.spec, &second = op.second->spec;
  const std::optional<QuantizeBothPlan> plan = plan_quantize_both(first, second);
  const std::int64_t width = ops::output_of(op.producer).cols / fusion.parts;
  if (!plan || (fusion.parts > 1 && width % kGroup != 0) ||
      !stays_in_block(plan->first, first.tile.cols, width, fusion.parts) ||
      !stays_in_block(plan->second, second.tile.rows, width, fusion.parts)) {
    return std::nullopt;
  }
  return ProducePlan{&fusion, plan->first, plan->second};
}

}  // namespace

std::string_view Fusion::name() const {
  switch (kernel) {
    case FusedKernel::rows: return "rows in registers";
    case FusedKernel::elements: return "blocks computed in registers";
    case FusedKernel::norm_blocks: return "a pass for rstd, then blocks computed in registers";
    case FusedKernel::row_columns: return "rows with sums of columns in registers";
    case FusedKernel::one_reading: return "one reading for both orientations";
  }
  return "?";
}

std::span<const Fusion> fusions() { return kFusions; }

std::optional<ProducePlan> plan_fusion(const ops::ProduceQuantize& op) {
  const FusedWork work = op.second == nullptr ? FusedWork::quantized : FusedWork::quantized_both;
  const Fusion* const fusion =
      std::visit([&](const auto& producer) { return find(producer.kName, work); }, op.producer);
  if (fusion == nullptr) return std::nullopt;
  const bool is_fit =
      std::visit([&](const auto& producer) { return fits(producer, *fusion); }, op.producer);
  if (!is_fit) return std::nullopt;
  if (op.second != nullptr) return plan_both(op, *fusion);
  const std::optional<QuantizePlan> plan = plan_rows(op.first.spec);
  if (!plan) return std::nullopt;
  return ProducePlan{fusion, *plan};
}

std::string describe(const ProducePlan& plan) {
  const std::string quantizers =
      plan.second ? describe(QuantizeBothPlan{plan.first, *plan.second}) : describe(plan.first);
  return std::string(plan.fusion->name()) + ": " + quantizers;
}

const Fusion* fusion_of(const ops::ProduceQuantize& op) {
  const std::optional<ProducePlan> plan = plan_fusion(op);
  return plan ? plan->fusion : nullptr;
}

const Fusion* fusion_of(const ops::AddRmsNormForward& op) {
  const Fusion& fusion = row_of(op.kName);
  return fits(op, fusion) ? &fusion : nullptr;
}

const Fusion* fusion_of(const ops::RmsNormBackwardAdd& op) {
  const Fusion& fusion = row_of(op.kName);
  // dx is rounded but not stored; its type is that of the sum.
  const bool is_fit = takes(fusion.types, op.norm.dx.dtype) && has_whole_rows(op.norm, op.gradient);
  return is_fit ? &fusion : nullptr;
}

const Fusion* fusion_of(const ops::QuantizeBoth& op) {
  return plan_quantize_both(op.first.spec, op.second.spec) ? &row_of(op.kName) : nullptr;
}

const Fusion* fusion_of(const ops::MeasureBoth& op) {
  return is_one_pass(op) ? &row_of(op.kName) : nullptr;
}

bool has_held_rows(const ops::RmsNormForward& norm, DType type) {
  const auto size = static_cast<std::int64_t>(size_of(type));
  const std::int64_t held = (norm.x.cols + kGroup - 1) / kGroup * kGroup * size;
  return (type == DType::bf16 || type == DType::f32) &&
         have_type(type, norm.x, norm.y, norm.weight) && norm.x.size() > 0 &&
         norm.weight.cols == norm.x.cols && norm.x.cols <= kLongestRow && held <= kMostHeldBytes;
}

bool has_held_rows(const ops::AddRmsNormForward& op, DType type) {
  return have_type(type, op.a, op.b) && has_held_rows(op.norm, type);
}

bool has_whole_rows(const ops::RmsNormBackward& op, const TensorView& result) {
  constexpr std::int64_t kQuad = 4;
  return op.weight.cols == op.x.cols && op.x.size() > 0 && op.x.cols % kQuad == 0 &&
         op.x.cols <= numerics::kSumChunk && have_type(DType::bf16, op.dy, op.x, result) &&
         has_aligned_rows(op.dy) && has_aligned_rows(op.x) && has_aligned_rows(result);
}

}  // namespace fp8lab::cuda
