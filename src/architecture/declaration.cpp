#include "src/architecture/declaration.hpp"

#include <fmt/core.h>

#include <cmath>
#include <utility>

namespace fp8lab {
namespace {

template <class Id, class Declared>
Id append(std::vector<Declared>& list, Declared declared) {
  list.push_back(std::move(declared));
  return Id{list.size() - 1};
}

}  // namespace

PassPhase forward_of(Block block) {
  switch (block) {
    case Block::attention: return PassPhase::attention;
    case Block::feed_forward: return PassPhase::feed_forward;
    case Block::head: return PassPhase::head;
  }
  return PassPhase::head;
}

PassPhase backward_of(Block block) {
  switch (block) {
    case Block::attention: return PassPhase::attention_backward;
    case Block::feed_forward: return PassPhase::feed_forward_backward;
    case Block::head: return PassPhase::head;
  }
  return PassPhase::head;
}

void Declaration::enter_layer(std::optional<std::int64_t> index) {
  layer_ = index;
  prefix_ = index ? fmt::format("layers.{}.", *index) : std::string();
}

Declaration& Declaration::in_block(Block block) {
  block_ = block;
  return *this;
}

Declaration& Declaration::recomputed_from(Recompute level) {
  recomputed_ = level;
  return *this;
}

ParameterId Declaration::parameter(ParameterDeclaration declaration) {
  declaration.name.insert(0, prefix_);
  declaration.layer = layer_;
  return append<ParameterId>(parameters_, std::move(declaration));
}

LinearId Declaration::linear(const std::string& module, std::int64_t in,
                             std::vector<OutputGroup> outputs, bool bias, double deviation) {
  LinearDeclaration linear;
  linear.name = prefix_ + module;
  linear.module = module;
  linear.block = block_;
  linear.recomputed = recomputed_;
  linear.in = in;
  for (const OutputGroup& group : outputs) linear.out += group.rows;
  if (outputs.size() == 1) outputs.clear();
  linear.weight =
      parameter({module + ".weight", linear.out, in, false, true, {0.0, deviation}, outputs});
  if (bias) {
    linear.bias = parameter({module + ".bias", 1, linear.out, true, false, {}, outputs});
  }
  return append<LinearId>(linears_, std::move(linear));
}

LinearId Declaration::tied_linear(const std::string& module, ParameterId weight) {
  const ParameterDeclaration& tied = parameters_[static_cast<std::size_t>(weight)];
  LinearDeclaration linear;
  linear.name = prefix_ + module;
  linear.module = module;
  linear.block = block_;
  linear.recomputed = recomputed_;
  linear.in = tied.cols;
  linear.out = tied.rows;
  linear.weight = weight;
  linear.is_tied = true;
  return append<LinearId>(linears_, std::move(linear));
}

SavedId Declaration::saved(const std::string& name, SavedDeclaration::Shape shape,
                           std::int64_t extent) {
  SavedDeclaration saved{name, shape, extent, block_, recomputed_};
  saved.layer = layer_;
  return append<SavedId>(saved_, std::move(saved));
}

ScratchId Declaration::scratch(const std::string& name, std::int64_t cols, LiveRange live,
                               bool in_training_only) {
  return append<ScratchId>(scratch_, ScratchDeclaration{name, cols, live, in_training_only});
}

ScratchId Declaration::f32_scratch(const std::string& name, std::int64_t cols, LiveRange live) {
  return append<ScratchId>(
      scratch_,
      ScratchDeclaration{
          .name = name, .cols = cols, .live = live, .in_training_only = true, .is_f32 = true});
}

void Declaration::normed_linear(std::vector<ParameterId> norm, LinearId linear) {
  normed_linears_.push_back({std::move(norm), linear});
}

void Declaration::multiply_products(LinearId linear, ProductFactor factor) {
  LinearDeclaration& declared = linears_[static_cast<std::size_t>(linear)];
  const auto in = static_cast<double>(declared.in);
  switch (factor) {
    case ProductFactor::one: return;
    case ProductFactor::inverse_sqrt_in:
      declared.alpha = static_cast<float>(1.0 / std::sqrt(in));
      return;
    case ProductFactor::inverse_in: declared.alpha = static_cast<float>(1.0 / in); return;
  }
}

void Declaration::adapts(LinearId linear, float alpha) {
  LinearDeclaration& declared = linears_[static_cast<std::size_t>(linear)];
  declared.is_adapter = true;
  declared.alpha = alpha;
  parameters_[static_cast<std::size_t>(declared.weight)].is_adapter = true;
}

void Declaration::own_x(LinearId linear, SavedId x) {
  linears_[static_cast<std::size_t>(linear)].own_x = x;
}

void Declaration::stream_of(Block block, SavedId saved) {
  saved_[static_cast<std::size_t>(saved)].stream_of = block;
}

void Declaration::of_adapter(SavedId saved) {
  saved_[static_cast<std::size_t>(saved)].is_of_adapter = true;
}

void Declaration::remakeable(LinearId linear, SavedId x, SavedId from) {
  saved_[static_cast<std::size_t>(from)].remakes_other = true;
  linears_[static_cast<std::size_t>(linear)].x_is_remakeable = true;
  saved_[static_cast<std::size_t>(x)].is_remakeable = true;
}

void Declaration::writes_residual(LinearId linear) {
  linears_[static_cast<std::size_t>(linear)].writes_residual = true;
}

void Declaration::gate_and_up(LinearId linear, GateAndUp rows) {
  parameters_[static_cast<std::size_t>(this->linear(linear).weight)].gate_and_up = rows;
}

void Declaration::in_chunks(LinearId linear, SavedId y) {
  linears_[static_cast<std::size_t>(linear)].in_chunks = true;
  saved_[static_cast<std::size_t>(y)].in_chunks = true;
}

std::int64_t Declaration::weights() const {
  std::int64_t total = 0;
  for (const ParameterDeclaration& parameter : parameters_) total += parameter.size();
  return total;
}

}  // namespace fp8lab
