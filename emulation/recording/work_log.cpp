#include "emulation/recording/work_log.hpp"

#include <fmt/format.h>

#include <variant>

namespace fp8lab {
namespace {

std::string of_norm(const TensorView& x, const TensorView& weight) {
  return NormHeads::of(x, weight).count > 1 ? "of heads" : "";
}

}  // namespace

std::string variant_of(const ops::Copy& op) {
  return fmt::format("{} to {}", name_of(op.source.dtype), name_of(op.destination.dtype));
}

std::string variant_of(const ops::Quantize& op) {
  return fmt::format("{} {}{}", name_of(op.source.dtype), label(op.operand.spec),
                     op.transpose ? " transposed" : "");
}

std::string variant_of(const ops::QuantizeBoth& op) {
  return fmt::format("{} {} and {}", name_of(op.source.dtype), label(op.first.spec),
                     label(op.second.spec));
}

std::string variant_of(const ops::ProduceQuantize& op) {
  std::string words =
      std::visit([](const auto& producer) { return kind_of(producer); }, op.producer);
  op.for_each_part([&](const auto& part) {
    if (part.kClass == WorkClass::quantization) words += " " + variant_of(part);
  });
  return words;
}

std::string variant_of(const ops::Dequantize& op) {
  return fmt::format("{} to {}{}{}", label(op.operand.spec), name_of(op.destination.dtype),
                     op.transpose ? " transposed" : "", op.keeps_space ? " in its space" : "");
}

std::string variant_of(const ops::UpdateDelayedScale& op) { return label(op.spec); }

std::string variant_of(const ops::SmoothingFactors& op) {
  return fmt::format("{}{}{}", transform_name({op.smoothing}), op.transpose_a ? " A^T" : "",
                     op.transpose_b ? " B^T" : "");
}

std::string variant_of(const ops::Gemm& op) {
  return fmt::format("{} {} {}{}", label(op.spec), label(op.a.spec), label(op.b.spec),
                     op.bias.empty() ? "" : " bias");
}

std::string variant_of(const ops::Product& op) { return variant_of(op.gemm); }

std::string variant_of(const ops::QuantizedAttentionForward& op) {
  return fmt::format("{} {} {} {}", label(op.q.spec), label(op.k.spec), label(op.v.spec),
                     label(op.p));
}

std::string variant_of(const ops::QuantizedAttentionBackward& op) {
  return fmt::format("{} {} {} {} {} {}", label(op.q.spec), label(op.k.spec), label(op.v.spec),
                     label(op.dout.spec), label(op.p), label(op.ds));
}

std::string variant_of(const ops::QuantizedAttentionCached& op) {
  return fmt::format("{} {} {} {}", label(op.q.spec), label(op.k.spec), label(op.v.spec),
                     label(op.p));
}

std::string variant_of(const ops::Compensate& op) {
  return fmt::format("{} {}", label(op.a.spec), label(op.b.spec));
}

std::string variant_of(const ops::MeasureOperand& op) { return label(op.operand.spec); }

std::string variant_of(const ops::MeasureBoth& op) {
  return fmt::format("{} and {}", label(op.first.spec), label(op.second.spec));
}

std::string variant_of(const ops::RmsNormForward& op) { return of_norm(op.x, op.weight); }

std::string variant_of(const ops::RmsNormBackward& op) { return of_norm(op.x, op.weight); }

std::string variant_of(const ops::AdamW& op) {
  return fmt::format("{} {} {} {}{}", name_of(op.tensors.master.dtype),
                     name_of(op.tensors.gradient.dtype), name_of(op.tensors.first_moment.dtype),
                     name_of(op.tensors.second_moment.dtype),
                     op.tensors.working.empty() ? "" : " with a working copy");
}

std::string variant_of(const ops::StoreState& op) { return state_label(op.state.spec); }

std::string variant_of(const ops::LoadState& op) { return state_label(op.state.spec); }

std::string variant_of(const ops::AdvanceMoments& op) {
  return fmt::format("{} {}", name_of(op.spec.rule), name_of(op.gradient.dtype));
}

std::string variant_of(const ops::UpdateWeights& op) {
  return fmt::format("{} {} {}{}", name_of(op.spec.rule), name_of(op.master.dtype),
                     name_of(op.gradient.dtype), op.working.empty() ? "" : " with a working copy");
}

}  // namespace fp8lab
