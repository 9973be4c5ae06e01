#include "emulation/recording/outputs.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

namespace fp8lab {
namespace {

using Outputs = std::vector<OperationOutput>;

/// Returns `outputs` without empty views, which stand for outputs that the operation does not have.
Outputs present(Outputs outputs) {
  std::erase_if(outputs, [](const OperationOutput& output) { return output.view.empty(); });
  return outputs;
}

void append(Outputs& outputs, Outputs more) {
  std::move(more.begin(), more.end(), std::back_inserter(outputs));
}

template <class Op>
Outputs outputs_of_parts(const Op& op) {
  Outputs outputs;
  op.for_each_part([&](const auto& part) { append(outputs, outputs_of(part)); });
  return outputs;
}

}  // namespace

Outputs outputs_of(const ops::Copy& op) { return {{"destination", op.destination}}; }
Outputs outputs_of(const ops::Quantize& op) {
  const QuantizedOperand& operand = op.operand;
  return present({{"clamp bounds", operand.clamp_bounds, &operand},
                  {"scales", operand.scales, &operand},
                  {"codes", operand.codes, &operand},
                  {"delayed state", op.state}});
}
Outputs outputs_of(const ops::Dequantize& op) { return {{"destination", op.destination}}; }
Outputs outputs_of(const ops::UpdateDelayedScale& op) { return {{"delayed state", op.state}}; }
Outputs outputs_of(const ops::SmoothingFactors& op) { return {{"factors", op.factors}}; }
Outputs outputs_of(const ops::Gemm& op) { return {{"d", op.d}}; }
Outputs outputs_of(const ops::EstimatorFactor& op) { return {{"d", op.d}}; }
Outputs outputs_of(const ops::RotateBack& op) { return {{"d", op.d}}; }
Outputs outputs_of(const ops::Compensate& op) { return {{"d", op.d}}; }
Outputs outputs_of(const ops::MeasureOperand& op) { return {{"record", op.record}}; }
Outputs outputs_of(const ops::EmbeddingForward& op) { return {{"out", op.out}}; }
Outputs outputs_of(const ops::EmbeddingBackward& op) { return {{"dtable", op.dtable}}; }
Outputs outputs_of(const ops::RmsNormForward& op) { return {{"rstd", op.rstd}, {"y", op.y}}; }
Outputs outputs_of(const ops::RmsNormBackward& op) {
  return {{"dx", op.dx}, {"dweight", op.dweight}};
}
Outputs outputs_of(const ops::LayerNormForward& op) {
  return {{"mean", op.mean}, {"rstd", op.rstd}, {"y", op.y}};
}
Outputs outputs_of(const ops::LayerNormBackward& op) {
  return {{"dx", op.dx}, {"dweight", op.dweight}, {"dbias", op.dbias}};
}
Outputs outputs_of(const ops::Add& op) { return {{"sum", op.sum}}; }
Outputs outputs_of(const ops::BiasBackward& op) { return {{"dbias", op.dbias}}; }
Outputs outputs_of(const ops::Rope& op) { return {{"x", op.x}}; }
Outputs outputs_of(const ops::AttentionForward& op) { return {{"out", op.out}, {"lse", op.lse}}; }
Outputs outputs_of(const ops::AttentionBackward& op) {
  return {{"dq", op.dq}, {"dk", op.dk}, {"dv", op.dv}};
}
Outputs outputs_of(const ops::AttentionCached& op) {
  return {{"k_cache", op.k_cache}, {"v_cache", op.v_cache}, {"out", op.out}};
}
Outputs outputs_of(const ops::SwigluForward& op) { return {{"out", op.out}}; }
Outputs outputs_of(const ops::SwigluBackward& op) { return {{"dgate_up", op.dgate_up}}; }
Outputs outputs_of(const ops::GeluForward& op) { return {{"out", op.out}}; }
Outputs outputs_of(const ops::GeluBackward& op) { return {{"dx", op.dx}}; }
Outputs outputs_of(const ops::CrossEntropy& op) {
  return present({{"token_loss", op.token_loss},
                  {"dlogits", op.dlogits},
                  {"scalars", op.summed.empty() ? TensorView{} : op.scalars}});
}
Outputs outputs_of(const ops::RowCosines& op) { return {{"cosines", op.cosines}}; }
Outputs outputs_of(const ops::Argmax& op) { return {{"out", op.out}}; }
Outputs outputs_of(const ops::AccumulateSquareSum& op) { return {{"scalars", op.scalars}}; }
Outputs outputs_of(const ops::BeginUpdate& op) { return {{"scalars", op.scalars}}; }
Outputs outputs_of(const ops::AdamW& op) {
  return present({{"first_moment", op.tensors.first_moment},
                  {"second_moment", op.tensors.second_moment},
                  {"master", op.tensors.master},
                  {"working", op.tensors.working}});
}
Outputs outputs_of(const ops::StoreState& op) {
  return present({{"scales", op.state.scales}, {"codes", op.state.codes}});
}
Outputs outputs_of(const ops::LoadState& op) { return {{"destination", op.destination}}; }
Outputs outputs_of(const ops::AdvanceMoments& op) {
  return present({{"first_moment", op.first_moment}, {"second_moment", op.second_moment}});
}
Outputs outputs_of(const ops::Orthogonalize& op) { return {{"update", op.update}}; }
Outputs outputs_of(const ops::UpdateWeights& op) {
  return present({{"master", op.master}, {"working", op.working}});
}
Outputs outputs_of(const ops::HashTensors& op) { return {{"sum", op.sum}}; }

Outputs outputs_of(const ops::AddRmsNormForward& op) { return outputs_of_parts(op); }
Outputs outputs_of(const ops::AddLayerNormForward& op) { return outputs_of_parts(op); }
Outputs outputs_of(const ops::RmsNormBackwardAdd& op) {
  return {{"dweight", op.norm.dweight}, {"gradient", op.gradient}};
}
Outputs outputs_of(const ops::LayerNormBackwardAdd& op) {
  return {{"dweight", op.norm.dweight}, {"dbias", op.norm.dbias}, {"gradient", op.gradient}};
}
Outputs outputs_of(const ops::QuantizeBoth& op) {
  Outputs outputs;
  op.for_each_part([&](const auto& part) {
    append(outputs, outputs_of(part));
    // Both parts update the same amax: list it once.
    if (!part.transpose && !op.state.empty()) outputs.pop_back();
  });
  return outputs;
}
Outputs outputs_of(const ops::MeasureBoth& op) {
  return {{"first_record", op.first_record}, {"second_record", op.second_record}};
}
Outputs outputs_of(const ops::ProduceQuantize& op) {
  Outputs outputs = std::visit([](const auto& made) { return outputs_of(made); }, op.producer);
  if (!op.keeps_output) {
    const void* const unread = ops::output_of(op.producer).data;
    std::erase_if(outputs, [&](const OperationOutput& made) { return made.view.data == unread; });
  }
  const auto is_producer = [](const auto& part) { return part.kClass != WorkClass::quantization; };
  op.for_each_part([&](const auto& part) {
    if (!is_producer(part)) append(outputs, outputs_of(part));
  });
  return outputs;
}
// Lists the final result only; intermediate contents of d are unspecified.
Outputs outputs_of(const ops::Product& op) {
  Outputs outputs;
  if (op.is_apart()) outputs.push_back({"product", op.apart});
  outputs.push_back({"d", op.gemm.d});
  return outputs;
}

}  // namespace fp8lab
