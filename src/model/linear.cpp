#include "src/model/linear.hpp"

#include <fmt/core.h>

#include <cstdint>
#include <utility>
#include <variant>

namespace fp8lab {
namespace {

constexpr const char* kApart = "product";  // the shared buffer of products that are not finished

constexpr auto kTensorCount = static_cast<std::uint32_t>(kTensors.size());

/// `recipe` for a weight whose gradient has the type `gradient`.
LinearRecipe valid_recipe(LinearRecipe recipe, DType gradient, const std::string& name) {
  validate(recipe, name);
  if (gradient == DType::bf16) recipe.gemm(GemmRole::wgrad).output = DType::bf16;
  return recipe;
}

}  // namespace

std::uint32_t linear_of(const RandomKey& key) { return tensor_number(key) / kTensorCount; }
Tensor tensor_of(const RandomKey& key) { return kTensors[tensor_number(key) % kTensorCount]; }

Slot history_slot(const LinearRecipe& recipe, Slot slot) {
  const Slot first = first_orientation(tensor_of(slot));
  return share_history(recipe.slot(first), recipe.slot(other_orientation(first))) ? first : slot;
}

Linear::Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
               const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
               std::int64_t tokens, Purpose purpose, OperandLife life)
    : backend_(backend),
      workspace_(workspace),
      name_(std::move(name)),
      index_(index),
      recipe_(valid_recipe(recipe, weight.gradient().dtype, name_)),
      weight_(weight),
      bias_(bias),
      purpose_(purpose),
      life_(std::move(life)),
      keeps_codes_(life_.owns_x && purpose_ == Purpose::training && may_keep_codes()),
      operands_(backend, workspace, name_, declarations(tokens)) {
  for (const GemmRole role : kGemmRoles) {
    if (purpose_ == Purpose::training || role == GemmRole::fprop) reserve_product(role);
  }
}

std::vector<OperandDeclaration> Linear::declarations(std::int64_t tokens) const {
  std::vector<OperandDeclaration> rows;
  for (const Slot slot : kSlots) {
    const GemmRole role = gemm_role(slot);
    const Tensor tensor = tensor_of(slot);
    OperandDeclaration& row = rows.emplace_back();
    row.is_made = purpose_ == Purpose::training || role == GemmRole::fprop;
    if (row.is_made) validate_shape(recipe_, role, tokens, in(), out(), name_);
    row.name = slot_name(slot);
    row.tensor_name = tensor_name(tensor);
    row.tensor = index_ * kTensorCount + static_cast<std::uint32_t>(tensor);
    row.gemm =
        index_ * static_cast<std::uint32_t>(kGemmRoles.size()) + static_cast<std::uint32_t>(role);
    row.transpose = is_second_orientation(slot);
    row.is_right = is_right(slot);
    row.spec = recipe_.slot(slot);
    const auto [rows_of_tensor, cols] =
        operand_shape(first_orientation(tensor), tokens, in(), out());
    const DType dtype = is_weight(slot) ? weight_source(slot).dtype : weight_.working().dtype;
    row.source = TensorView::without_memory(dtype, rows_of_tensor, cols);
    row.memory = memory_of(slot);
  }
  return rows;
}

OperandMemory Linear::memory_of(Slot slot) const {
  OperandMemory memory;
  memory.dequantized = {PassPhase::weights, life_.backward};
  const bool is_kept = is_weight(slot) ? life_.weights == WeightCodes::keep
                                       : is_left_for_backward(slot) && life_.recomputed.empty();
  if (is_kept) return memory;
  memory.live = live_range(slot);
  memory.buffer = "operand." + slot_name(slot);
  if (is_left_for_backward(slot)) memory.buffer += "." + life_.recomputed;
  return memory;
}

void Linear::reserve_product(GemmRole role) {
  const QuantizedOperand &a = operand(a_slot(role)), &b = operand(b_slot(role));
  const GemmSpec& spec = recipe_.gemm(role);
  const bool is_gradient = role == GemmRole::wgrad;
  const DType dtype = is_gradient ? weight_.gradient().dtype : spec.output;
  const TensorView d = TensorView::without_memory(dtype, a.rows, b.rows);
  const bool accumulates = is_gradient && dtype != DType::bf16;
  ops::Product product{{spec, a, b, {}, accumulates, d}};
  product.estimated = estimated(role);
  product.for_each_part([&](const auto& part) {
    const Support support = backend_.supports(part);
    if (support) return;
    throw Error(fmt::format("{}: {}: {}", name_, gemm_role_name(role), support.reason));
  });
  if (product.is_apart()) {
    workspace_.reserve(kApart, product_range(role), backend_.storage(product.apart_type()), a.rows,
                       b.rows);
  }
}

const QuantizedOperand* Linear::estimated(GemmRole role) const {
  if (role == GemmRole::fprop) return nullptr;
  const Slot slot = slot_of_gradient(role);
  return recipe_.slot(slot).estimator ? &operand(slot) : nullptr;
}

bool Linear::is_left_for_backward(Slot slot) const {
  // The first orientation of x lives until backward if the second is made from its codes, or if an
  // estimator reads its scales. The second lives as long if it is all that is kept of x.
  return (slot == Slot::wgrad_x && keeps_codes_) ||
         (slot == Slot::fprop_x && purpose_ == Purpose::training &&
          (recipe_.slot(Slot::wgrad_x).orientation_source != OrientationSource::high_precision ||
           recipe_.slot(Slot::fprop_x).estimator));
}

LiveRange Linear::forward_range() const {
  const LiveRange forward = life_.forward;
  return life_.recomputed.empty() ? forward : forward | PassPhase::recompute;
}

LiveRange Linear::live_range(Slot slot) const {
  if (is_left_for_backward(slot)) return LiveRange::from_to(life_.forward, life_.backward);
  switch (slot) {
    case Slot::fprop_x: return forward_range();
    case Slot::fprop_w: return forward_range() | life_.backward;  // see restore_forward_weight
    default: return life_.backward;
  }
}

bool Linear::are_measured_together(const TensorView& x) const {
  return purpose_ == Purpose::training && operands_.is_source(id_of(Slot::fprop_x), x) &&
         operands_.is_source(id_of(Slot::wgrad_x), x) && x.rows == operand(Slot::wgrad_x).k;
}

bool Linear::may_keep_codes() const {
  // A transform of dy may read x, and an estimator reads it.
  return recipe_.slot(Slot::fprop_x).is_cast() && recipe_.slot(Slot::wgrad_x).is_cast() &&
         have_one_source(recipe_.slot(Slot::fprop_x), recipe_.slot(Slot::wgrad_x)) &&
         !recipe_.slot(Slot::wgrad_dy).transform && !recipe_.slot(Slot::fprop_x).estimator;
}

bool Linear::is_smoothed(GemmRole role) const { return recipe_.a(role).transform.is_smoothing(); }

bool Linear::is_late_weight(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return is_smoothed(gemm_role(slot)) ||
         (spec.orientation_source == OrientationSource::transformed &&
          is_smoothed(GemmRole::fprop));
}

bool Linear::is_remade_weight(Slot slot) const { return !is_kept(slot) && !is_late_weight(slot); }

void Linear::quantize_weight(const StepContext& context, Slot slot) {
  operands_.quantize(context, id_of(slot), weight_source(slot));
}

void Linear::remake_weight(const StepContext& context, Slot slot) {
  // Weights use the random bits of the first micro-batch of the step, which also measures them.
  StepContext of_step = context;
  of_step.micro_batch = 0;
  of_step.log_statistics = context.log_statistics && context.micro_batch == 0;
  quantize_weight(of_step, slot);
}

void Linear::restore_forward_weight(const StepContext& context) {
  const bool is_read =
      recipe_.slot(Slot::dgrad_w).orientation_source != OrientationSource::high_precision ||
      recipe_.slot(Slot::fprop_w).estimator;
  if (is_kept(Slot::fprop_w) || !is_read) return;
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  if (is_late_weight(Slot::fprop_w)) {
    quantize_weight(unmeasured, Slot::fprop_w);
  } else {
    remake_weight(unmeasured, Slot::fprop_w);
  }
}

void Linear::smooth(GemmRole role, const TensorView& a, const TensorView& b) {
  operands_.smooth(id_of(a_slot(role)), id_of(b_slot(role)), a, b);
}

PerGemm<TensorView> Linear::smoothing_factors() const {
  PerGemm<TensorView> factors;
  for (const GemmRole role : kGemmRoles) {
    factors[role] = operands_.smoothing_factors(id_of(a_slot(role)));
  }
  return factors;
}

TensorView Linear::weight_source(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return spec.is_cast() && spec.weight_source == WeightSource::master ? weight_.master()
                                                                      : weight_.working();
}

void Linear::prepare_weights(const StepContext& context) {
  if (!is_kept(Slot::fprop_w)) return;
  const bool late = is_late_weight(Slot::fprop_w) || is_late_weight(Slot::dgrad_w);
  const TensorView first = weight_source(Slot::fprop_w);
  const bool trains = purpose_ == Purpose::training;
  if (trains && !late && first.data == weight_source(Slot::dgrad_w).data) {
    return operands_.quantize_both(context, id_of(Slot::fprop_w), first);
  }
  for (const Slot slot : {Slot::fprop_w, Slot::dgrad_w}) {
    const bool is_made = trains || slot == Slot::fprop_w;
    if (is_made && !is_late_weight(slot)) quantize_weight(context, slot);
  }
}

void Linear::multiply(GemmRole role, const TensorView& a, const TensorView& b,
                      const TensorView& differentiated, const TensorView& bias, bool accumulate,
                      const TensorView& d) {
  const QuantizedOperand &left = operand(a_slot(role)), &right = operand(b_slot(role));
  ops::Product product{{recipe_.gemm(role), left, right, bias, accumulate, d},
                       a,
                       is_second_orientation(a_slot(role)),
                       b,
                       is_second_orientation(b_slot(role))};
  product.estimated = estimated(role);
  if (product.has_estimator()) product.estimated_source = differentiated;
  if (product.is_apart()) {
    const DType dtype = backend_.storage(product.apart_type());
    product.apart = workspace_.view(kApart, product_range(role), dtype, d.rows, d.cols);
  }
  backend_.run(product);
}

void Linear::multiply_forward(const StepContext& context, const TensorView& x,
                              const TensorView& y) {
  if (is_remade_weight(Slot::fprop_w)) remake_weight(context, Slot::fprop_w);
  multiply(GemmRole::fprop, x, weight_source(Slot::fprop_w), {},
           bias_ != nullptr ? bias_->working() : TensorView{}, false, y);
}

void Linear::forward(const StepContext& context, const TensorView& x, const TensorView& y) {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  smooth(GemmRole::fprop, x, weight_source(Slot::fprop_w));
  if (is_late_weight(Slot::fprop_w)) quantize_weight(context, Slot::fprop_w);
  operands_.make(context, kId, x);
  if (are_measured_together(x)) {
    operands_.make(context, id_of(Slot::wgrad_x), x);
    operands_.measure_both(context, kId, x);
  } else {
    operands_.measure(context, kId, x);
  }
  multiply_forward(context, x, y);
}

void Linear::forward(const StepContext& context, const ops::Producer& producer,
                     const TensorView& y) {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  const TensorView& x = ops::output_of(producer);
  // Fewer rows than T occur in inference only: no backward pass follows.
  if (keeps_codes_ && x.rows == operand(Slot::wgrad_x).k) {
    const bool produced = operands_.produce_both(context, kId, producer, false);
    FP8LAB_ASSERT(produced);
  } else if (is_late_weight(Slot::fprop_w) || !operands_.produce(context, kId, producer)) {
    std::visit([this](const auto& op) { backend_.run(op); }, producer);
    return forward(context, x, y);
  }
  multiply_forward(context, x, y);
}

void Linear::recompute_x(const StepContext& context, const ops::Producer& producer) {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  if (keeps_codes_) {
    const bool produced = operands_.produce_both(context, kId, producer, false);
    FP8LAB_ASSERT(produced);
    return;
  }
  std::visit([this](const auto& op) { backend_.run(op); }, producer);
  if (is_left_for_backward(Slot::fprop_x)) {
    operands_.quantize(context, kId, ops::output_of(producer));
  }
}

void Linear::multiply_backward(const StepContext& context, const TensorView& x,
                               const TensorView& dy, const TensorView& dx) {
  if (is_remade_weight(Slot::dgrad_w)) {
    restore_forward_weight(context);
    remake_weight(context, Slot::dgrad_w);
  }
  multiply(GemmRole::dgrad, dy, weight_source(Slot::dgrad_w), x, {}, false, dx);
  if (!keeps_codes_) {
    operands_.make(context, id_of(Slot::wgrad_x), x);
    if (!are_measured_together(x)) operands_.measure(context, id_of(Slot::wgrad_x), x);
  }
  multiply(GemmRole::wgrad, dy, x, weight_source(Slot::fprop_w), {}, context.adds_to_gradients,
           weight_.gradient());
  if (bias_ != nullptr) backend_.run(ops::BiasBackward{dy, bias_->gradient()});
}

void Linear::backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                      const TensorView& dx) {
  smooth(GemmRole::dgrad, dy, weight_source(Slot::dgrad_w));
  smooth(GemmRole::wgrad, dy, x);
  if (is_late_weight(Slot::dgrad_w)) {
    restore_forward_weight(context);
    quantize_weight(context, Slot::dgrad_w);
  }
  operands_.quantize_both(context, id_of(Slot::dgrad_dy), dy);
  multiply_backward(context, x, dy, dx);
}

void Linear::backward(const StepContext& context, const TensorView& x,
                      const ops::Producer& producer, const TensorView& dx) {
  const TensorView& dy = ops::output_of(producer);
  const bool waits = is_late_weight(Slot::dgrad_w) || is_smoothed(GemmRole::wgrad);
  if (waits ||
      !operands_.produce_both(context, id_of(Slot::dgrad_dy), producer, bias_ != nullptr)) {
    std::visit([this](const auto& op) { backend_.run(op); }, producer);
    return backward(context, x, dy, dx);
  }
  multiply_backward(context, x, dy, dx);
}

}  // namespace fp8lab
