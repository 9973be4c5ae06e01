// Maps recorded operations to model parameters.
#include "src/validate/golden_file.hpp"

namespace fp8lab {
namespace {

using numerics::ElementGemm;
using numerics::GroupModel;
using numerics::OutputKind;
using numerics::ScaleOrder;

constexpr std::int64_t kScaleBlock = 128;

struct MmaOperation {
  std::uint32_t format_a_low, format_a_high;  // accepted format codes of both operands
  bool mma_sync_fp8;
  GroupModel group;
};

constexpr MmaOperation kMmaOperations[] = {
    {0, 1, false, numerics::kSm90WgmmaFp8F32}, {0, 1, false, numerics::kSm90WgmmaFp8F16},
    {0, 1, true, numerics::kSm90Fp16F32},      {0, 1, true, numerics::kSm90Fp16F16},
    {2, 2, false, numerics::kSm90Bf16F32},     {3, 3, false, numerics::kSm90Fp16F32},
    {2, 2, false, numerics::kSm90Bf16F32},     {3, 3, false, numerics::kSm90Fp16F32},
    {3, 3, false, numerics::kSm90Fp16F16},     {3, 3, false, numerics::kSm90Fp16F16},
};

bool is_block_mode(std::uint32_t mode) { return mode == 4 || mode == 5; }

// Scale modes of cuBLASLt on Hopper (emulation/specification.md): equal modes of both operands, or
// one 1x128 and one 128x128; fast accumulation only without block scales.
bool known_fp8_mode(const GemmRecord& record) {
  const std::uint32_t a = record.scale_mode_a;
  const std::uint32_t b = record.scale_mode_b;
  if (is_block_mode(a) && is_block_mode(b)) return record.fast == 0 && !(a == 5 && b == 5);
  return a == b && (a == 0 || a == 3);
}

void set_fp8(const GemmRecord& record, GemmModel& model) {
  ElementGemm& element = model.element;
  element.group = numerics::kSm90WgmmaFp8F32;
  element.promote_interval = record.fast != 0 ? 0 : kScaleBlock;
  if (!is_block_mode(record.scale_mode_a)) {
    element.order = ScaleOrder::epilogue;
    model.epilogue.scales = record.scale_mode_a == 0 ? numerics::EpilogueScales::scalar
                                                     : numerics::EpilogueScales::outer;
    return;
  }
  element.order = record.scale_mode_a == 4 && record.scale_mode_b == 4 ? ScaleOrder::b_then_a
                                                                       : ScaleOrder::product_first;
  element.scale_width_a = element.scale_width_b = kScaleBlock;
}

const numerics::FormatSpec* output_format(std::uint32_t out) {
  static constexpr numerics::FormatSpec kFormats[] = {
      numerics::kBF16, numerics::kFP32, numerics::kFP16, numerics::kE4M3, numerics::kE5M2};
  return out < 5 ? &kFormats[out] : nullptr;
}

}  // namespace

MmaModel mma_model(const MmaRecord& record) {
  MmaModel model;
  if (record.op >= std::size(kMmaOperations)) return model;
  const MmaOperation& operation = kMmaOperations[record.op];
  const auto accepts = [&](std::uint32_t format) {
    return format >= operation.format_a_low && format <= operation.format_a_high;
  };
  const bool f16 = operation.group.output == OutputKind::f16_nearest;
  const std::uint32_t k = operation.format_a_low < 2 ? 32u : 16u;
  model.known = accepts(record.format_a) && accepts(record.format_b) && record.k == k &&
                record.accumulator_bits == (f16 ? 16u : 32u);
  model.mma_sync_fp8 = operation.mma_sync_fp8;
  model.group = operation.group;
  return model;
}

std::uint32_t mma_element(const MmaModel& model, const MmaRecord& record, const std::uint32_t* a,
                          const std::uint32_t* b, std::uint32_t c) {
  const numerics::FormatSpec& fa = *golden_format(record.format_a);
  const numerics::FormatSpec& fb = *golden_format(record.format_b);
  const int k = static_cast<int>(record.k);
  return model.mma_sync_fp8 ? numerics::mma_sync_fp8(model.group.output, fa, fb, a, b, k, c)
                            : numerics::fused_group(model.group, fa, fb, a, b, k, c);
}

GemmModel gemm_model(const GemmRecord& record) {
  GemmModel model;
  const numerics::FormatSpec* output = output_format(record.out);
  const bool fp8 = record.format_a < 2 && record.format_b < 2;
  const bool bf16 = record.format_a == 2 && record.format_b == 2;
  if (output == nullptr || !(bf16 || (fp8 && known_fp8_mode(record)))) return model;
  if (record.beta != 0.0f && !record.has_c()) return model;  // the addend was not stored
  model.element.format_a = *golden_format(record.format_a);
  model.element.format_b = *golden_format(record.format_b);
  if (fp8) {
    set_fp8(record, model);
  } else {
    model.element.group = numerics::kSm90Bf16F32;
  }
  if (record.split_k > 1) {
    const bool square = record.scale_mode_a == 5 || record.scale_mode_b == 5;
    const std::int64_t k = record.k;
    const std::int64_t width =
        numerics::split_range_width(k, fp8 ? kScaleBlock : 64, record.split_k, square);
    if ((k + width - 1) / width != record.split_k) return model;
    model.element.range_width = width;
  }
  model.epilogue.split_k = record.split_k > 1;
  model.epilogue.alpha = record.alpha;
  model.epilogue.beta = record.beta;
  model.epilogue.output = *output;
  model.epilogue.output_scale = record.output_scale;
  model.known = true;
  return model;
}

std::uint32_t gemm_element(const GemmModel& model, const GemmRecord& record, std::size_t r,
                           std::size_t c) {
  const float* sa = record.sa.data() + r * record.scales_a;
  const float* sb = record.sb.data() + c * record.scales_b;
  const float acc = numerics::accumulate_element(model.element, record.a.data() + r * record.k,
                                                 record.b.data() + c * record.k, record.k, sa, sb);
  const bool scaled = record.scales_a > 0 && record.scales_b > 0;
  const std::size_t index = r * record.cols.size() + c;
  return numerics::finish_element(model.epilogue, acc, scaled ? *sa : 1.0f, scaled ? *sb : 1.0f,
                                  record.has_c() ? record.c[index] : 0.0f,
                                  record.has_bias != 0 ? &record.bias[r] : nullptr);
}

}  // namespace fp8lab
