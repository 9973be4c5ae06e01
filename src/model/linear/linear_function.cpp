#include "src/model/linear/linear_function.hpp"

#include <fmt/core.h>

#include <utility>
#include <variant>
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

constexpr const char* kApart = "product";  // the shared buffer of products that are not finished

constexpr auto kTensorCount = static_cast<std::uint32_t>(kTensors.size());

bool reads_master(const QuantSpec& spec) {
  return spec.is_cast() && spec.weight_source == WeightSource::master;
}

LinearDescription checked(LinearDescription description) {
  LinearRecipe& recipe = description.recipe;
  validate(recipe, description.name);
  if (description.weight_gradient == DType::bf16) {
    recipe.gemm(GemmRole::wgrad).output = DType::bf16;
  }
  for (const GemmRole role : kGemmRoles) {
    if (!description.runs[role]) continue;
    validate_shape(recipe, role, description.tokens, description.in, description.out,
                   description.name);
  }
  return description;
}

}  // namespace

std::uint32_t linear_of(const RandomKey& key) { return tensor_number(key) / kTensorCount; }
Tensor tensor_of(const RandomKey& key) { return kTensors[tensor_number(key) % kTensorCount]; }

Slot history_slot(const LinearRecipe& recipe, Slot slot) {
  const Slot first = first_orientation(tensor_of(slot));
  return share_history(recipe.slot(first), recipe.slot(other_orientation(first))) ? first : slot;
}

const TensorView& LinearWeight::source(const QuantSpec& spec) const {
  return reads_master(spec) ? master : working;
}

// --- the six operands
// -----------------------------------------------------------------------------

LinearFunction::LinearFunction(Backend& backend, LinearDescription description)
    : backend_(backend),
      description_(checked(std::move(description))),
      keeps_codes_(description_.life.owns_x && has_wgrad() && may_keep_codes()),
      needs_x_(!keeps_codes_ && (has_wgrad() || !description_.life.owns_x ||
                                 recipe().slot(Slot::fprop_x).estimator)) {}

bool LinearFunction::may_keep_codes() const {
  // A transform of dy may read x, and an estimator reads it.
  const QuantSpec &first = recipe().slot(Slot::fprop_x), &second = recipe().slot(Slot::wgrad_x);
  return first.is_cast() && second.is_cast() && have_one_source(first, second) &&
         !recipe().slot(Slot::wgrad_dy).transform && !first.estimator;
}

OperandSet LinearFunction::make_operands(Workspace& workspace) const {
  OperandSet operands(backend_, workspace, description_.name, declarations());
  for (const GemmRole role : kGemmRoles) {
    if (description_.runs[role]) reserve_product(operands, workspace, role);
  }
  return operands;
}

LinearMemory LinearFunction::make_operands() const {
  auto buffers = std::make_unique<Workspace>(backend_);
  OperandSet operands = make_operands(*buffers);
  buffers->allocate();
  return {std::move(buffers), std::move(operands)};
}

std::vector<OperandDeclaration> LinearFunction::declarations() const {
  const auto& [name, index, recipe, tokens, in, out, activation, master, gradient, runs, life] =
      description_;
  std::vector<OperandDeclaration> rows;
  for (const Slot slot : kSlots) {
    const GemmRole role = gemm_role(slot);
    const Tensor tensor = tensor_of(slot);
    const OperandShape stored = operand_shape(first_orientation(tensor), tokens, in, out);
    OperandDeclaration& row = rows.emplace_back();
    row.name = slot_name(slot);
    row.tensor_name = tensor_name(tensor);
    row.tensor = index * kTensorCount + static_cast<std::uint32_t>(tensor);
    row.gemm =
        index * static_cast<std::uint32_t>(kGemmRoles.size()) + static_cast<std::uint32_t>(role);
    row.transpose = is_second_orientation(slot);
    row.is_right = is_right(slot);
    row.spec = recipe.slot(slot);
    row.source = TensorView::without_memory(reads_master(row.spec) ? master : activation,
                                            stored.rows, stored.k);
    row.memory = memory_of(slot);
    row.is_made = runs[role];
  }
  return rows;
}

OperandMemory LinearFunction::memory_of(Slot slot) const {
  const OperandLife& life = description_.life;
  OperandMemory memory;
  memory.dequantized = {PassPhase::weights, life.backward};
  const bool is_kept = is_weight(slot) ? life.weights == WeightCodes::keep
                                       : is_left_for_backward(slot) && life.recomputed.empty();
  if (is_kept) return memory;
  memory.live = live_range(slot);
  memory.buffer = "operand." + slot_name(slot);
  if (is_left_for_backward(slot)) memory.buffer += "." + life.recomputed;
  return memory;
}

bool LinearFunction::is_left_for_backward(Slot slot) const {
  // The first orientation of x lives until backward if the second is made from its codes, or if an
  // estimator reads its scales. The second lives as long if it is all that is kept of x.
  return (slot == Slot::wgrad_x && keeps_codes_) ||
         (slot == Slot::fprop_x &&
          ((has_wgrad() &&
            recipe().slot(Slot::wgrad_x).orientation_source != OrientationSource::high_precision) ||
           (has_backward() && recipe().slot(Slot::fprop_x).estimator)));
}

LiveRange LinearFunction::forward_range() const {
  const LiveRange forward = description_.life.forward;
  return description_.life.recomputed.empty() ? forward : forward | PassPhase::recompute;
}

LiveRange LinearFunction::live_range(Slot slot) const {
  const OperandLife& life = description_.life;
  if (is_left_for_backward(slot)) return LiveRange::from_to(life.forward, life.backward);
  switch (slot) {
    case Slot::fprop_x: return forward_range();
    case Slot::fprop_w: return forward_range() | life.backward;  // see restore_forward_weight
    default: return life.backward;
  }
}

// --- products
// -------------------------------------------------------------------------------------

void LinearFunction::reserve_product(const OperandSet& operands, Workspace& workspace,
                                     GemmRole role) const {
  const QuantizedOperand& a = operands.operand(id_of(a_slot(role)));
  const QuantizedOperand& b = operands.operand(id_of(b_slot(role)));
  const GemmSpec& spec = recipe().gemm(role);
  const bool is_gradient = role == GemmRole::wgrad;
  const DType dtype = is_gradient ? description_.weight_gradient : spec.output;
  const TensorView d = TensorView::without_memory(dtype, a.rows, b.rows);
  const bool accumulates = is_gradient && dtype != DType::bf16;
  ops::Product product{
      .gemm = {.spec = spec, .a = a, .b = b, .bias = {}, .accumulate = accumulates, .d = d}};
  product.estimated = estimated(operands, role);
  product.for_each_part([&](const auto& part) {
    const Support support = backend_.supports(part);
    if (support) return;
    throw InputError({.where = fmt::format("{}: {}", description_.name, gemm_role_name(role)),
                      .reason = support.reason});
  });
  if (product.is_apart()) {
    workspace.reserve(kApart, product_range(role), backend_.storage(product.apart_type()), a.rows,
                      b.rows);
  }
}

const QuantizedOperand* LinearFunction::estimated(const OperandSet& operands, GemmRole role) const {
  if (role == GemmRole::fprop) return nullptr;
  const Slot slot = slot_of_gradient(role);
  return recipe().slot(slot).estimator ? &operands.operand(id_of(slot)) : nullptr;
}

void LinearFunction::multiply(const OperandSet& operands, const Multiplication& m) const {
  const Slot left = a_slot(m.role), right = b_slot(m.role);
  ops::Product product{.gemm = {.spec = recipe().gemm(m.role),
                                .a = operands.operand(id_of(left)),
                                .b = operands.operand(id_of(right)),
                                .bias = m.bias,
                                .accumulate = m.accumulate,
                                .d = m.d},
                       .a_source = m.a,
                       .transpose_a = is_second_orientation(left),
                       .b_source = m.b,
                       .transpose_b = is_second_orientation(right)};
  product.estimated = estimated(operands, m.role);
  if (product.has_estimator()) product.estimated_source = m.differentiated;
  if (product.is_apart()) {
    const DType dtype = backend_.storage(product.apart_type());
    product.apart =
        operands.workspace().view(kApart, product_range(m.role), dtype, m.d.rows, m.d.cols);
  }
  const LabelScope scope(backend_, backend_.label().in_gemm(gemm_role_name(m.role)));
  backend_.run(product);
}

void LinearFunction::multiply_forward(OperandSet& operands, const StepContext& context,
                                      const LinearInputs& inputs, const TensorView& bias,
                                      const TensorView& y) const {
  if (is_remade_weight(operands, Slot::fprop_w)) {
    remake_weight(operands, context, Slot::fprop_w, inputs.w);
  }
  multiply(operands, {.role = GemmRole::fprop,
                      .a = inputs.x,
                      .b = source_of(Slot::fprop_w, inputs.w),
                      .differentiated = {},
                      .bias = bias,
                      .d = y});
}

void LinearFunction::multiply_backward(OperandSet& operands, const StepContext& context,
                                       const LinearInputs& inputs, const TensorView& dy,
                                       const LinearGradients& gradients) const {
  const auto& [x, w] = inputs;
  if (is_remade_weight(operands, Slot::dgrad_w)) {
    restore_forward_weight(operands, context, w);
    if (!gradients.dx.empty()) remake_weight(operands, context, Slot::dgrad_w, w);
  }
  if (!gradients.dx.empty()) {
    multiply(operands, {.role = GemmRole::dgrad,
                        .a = dy,
                        .b = source_of(Slot::dgrad_w, w),
                        .differentiated = x,
                        .bias = {},
                        .d = gradients.dx});
  }
  if (has_wgrad() && !gradients.dw.empty()) {
    multiply_weight_gradient(operands, context, inputs, dy, gradients.dw);
  }
  if (!gradients.bias.empty()) backend_.run(ops::BiasBackward{dy, gradients.bias});
}

void LinearFunction::multiply_weight_gradient(OperandSet& operands, const StepContext& context,
                                              const LinearInputs& inputs, const TensorView& dy,
                                              const TensorView& dw) const {
  const auto& [x, w] = inputs;
  if (!keeps_codes_) {
    constexpr OperandId kId = id_of(Slot::wgrad_x);
    operands.make(context, kId, x);
    if (!are_measured_together(operands, x)) operands.measure(context, kId, x);
  }
  multiply(operands, {.role = GemmRole::wgrad,
                      .a = dy,
                      .b = x,
                      .differentiated = source_of(Slot::fprop_w, w),
                      .bias = {},
                      .accumulate = context.adds_to_gradients,
                      .d = dw});
}

// --- weights
// --------------------------------------------------------------------------------------

bool LinearFunction::is_smoothed(GemmRole role) const {
  return recipe().a(role).transform.is<Smoothing>();
}

void LinearFunction::smooth(OperandSet& operands, GemmRole role, const TensorView& a,
                            const TensorView& b) const {
  operands.smooth(id_of(a_slot(role)), id_of(b_slot(role)), a, b);
}

bool LinearFunction::is_late_weight(Slot slot) const {
  const QuantSpec& spec = recipe().slot(slot);
  return is_smoothed(gemm_role(slot)) ||
         (spec.orientation_source == OrientationSource::transformed &&
          is_smoothed(GemmRole::fprop));
}

bool LinearFunction::is_remade_weight(const OperandSet& operands, Slot slot) const {
  return !operands.is_kept(id_of(slot)) && !is_late_weight(slot);
}

void LinearFunction::quantize_weight(OperandSet& operands, const StepContext& context, Slot slot,
                                     const LinearWeight& w) const {
  operands.quantize(context, id_of(slot), source_of(slot, w));
}

void LinearFunction::remake_weight(OperandSet& operands, const StepContext& context, Slot slot,
                                   const LinearWeight& w) const {
  // Weights use the random bits of the first micro-batch of the step, which also measures them.
  StepContext of_step = context;
  of_step.micro_batch = 0;
  of_step.log_statistics = context.log_statistics && context.micro_batch == 0;
  quantize_weight(operands, of_step, slot, w);
}

void LinearFunction::restore_forward_weight(OperandSet& operands, const StepContext& context,
                                            const LinearWeight& w) const {
  const bool is_read =
      recipe().slot(Slot::dgrad_w).orientation_source != OrientationSource::high_precision ||
      recipe().slot(Slot::fprop_w).estimator;
  if (operands.is_kept(id_of(Slot::fprop_w)) || !is_read) return;
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  if (is_late_weight(Slot::fprop_w)) {
    quantize_weight(operands, unmeasured, Slot::fprop_w, w);
  } else {
    remake_weight(operands, unmeasured, Slot::fprop_w, w);
  }
}

void LinearFunction::prepare_weights(OperandSet& operands, const StepContext& context,
                                     const LinearWeight& w) const {
  if (!operands.is_kept(id_of(Slot::fprop_w))) return;
  const LabelScope scope(backend_, label());
  const bool late = is_late_weight(Slot::fprop_w) || is_late_weight(Slot::dgrad_w);
  const TensorView& first = source_of(Slot::fprop_w, w);
  if (has_backward() && !late && first.data == source_of(Slot::dgrad_w, w).data) {
    return operands.quantize_both(context, id_of(Slot::fprop_w), first);
  }
  for (const Slot slot : {Slot::fprop_w, Slot::dgrad_w}) {
    const bool is_made = description_.runs[gemm_role(slot)];
    if (is_made && !is_late_weight(slot)) quantize_weight(operands, context, slot, w);
  }
}

// --- passes
// ---------------------------------------------------------------------------------------

void LinearFunction::run(const ops::Producer& producer) const {
  std::visit([this](const auto& op) { backend_.run(op); }, producer);
}

bool LinearFunction::are_measured_together(const OperandSet& operands, const TensorView& x) const {
  constexpr OperandId kFirst = id_of(Slot::fprop_x), kSecond = id_of(Slot::wgrad_x);
  return has_wgrad() && operands.is_source(kFirst, x) && operands.is_source(kSecond, x);
}

void LinearFunction::forward(OperandSet& operands, const StepContext& context,
                             const LinearInputs& inputs, const TensorView& bias,
                             const TensorView& y) const {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  const LabelScope scope(backend_, label());
  const auto& [x, w] = inputs;
  smooth(operands, GemmRole::fprop, x, source_of(Slot::fprop_w, w));
  if (is_late_weight(Slot::fprop_w)) quantize_weight(operands, context, Slot::fprop_w, w);
  operands.make(context, kId, x);
  if (are_measured_together(operands, x)) {
    operands.make(context, id_of(Slot::wgrad_x), x);
    operands.measure_both(context, kId, x);
  } else {
    operands.measure(context, kId, x);
  }
  multiply_forward(operands, context, inputs, bias, y);
}

void LinearFunction::forward(OperandSet& operands, const StepContext& context,
                             const ops::Producer& producer, const LinearWeight& w,
                             const TensorView& bias, const TensorView& y) const {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  const LabelScope scope(backend_, label());
  const LinearInputs inputs{ops::output_of(producer), w};
  // Fewer rows than T occur in inference only: no backward pass follows.
  if (keeps_codes_ && inputs.x.rows == description_.tokens) {
    const bool produced = operands.produce_both(context, kId, producer, false);
    FP8LAB_ASSERT(produced);
  } else if (is_late_weight(Slot::fprop_w) || !operands.produce(context, kId, producer)) {
    run(producer);
    return forward(operands, context, inputs, bias, y);
  }
  multiply_forward(operands, context, inputs, bias, y);
}

void LinearFunction::recompute_x(OperandSet& operands, const StepContext& context,
                                 const ops::Producer& producer) const {
  constexpr OperandId kId = id_of(Slot::fprop_x);
  const LabelScope scope(backend_, label());
  if (keeps_codes_) {
    const bool produced = operands.produce_both(context, kId, producer, false);
    FP8LAB_ASSERT(produced);
    return;
  }
  run(producer);
  if (is_left_for_backward(Slot::fprop_x)) {
    operands.quantize(context, kId, ops::output_of(producer));
  }
}

void LinearFunction::restore_x(OperandSet& operands, const StepContext& context,
                               const LinearInputs& inputs) const {
  FP8LAB_ASSERT(needs_x());
  const LabelScope scope(backend_, label());
  const auto& [x, w] = inputs;
  smooth(operands, GemmRole::fprop, x, source_of(Slot::fprop_w, w));
  if (is_left_for_backward(Slot::fprop_x)) operands.make(context, id_of(Slot::fprop_x), x);
}

void LinearFunction::backward(OperandSet& operands, const StepContext& context,
                              const LinearInputs& inputs, const TensorView& dy,
                              const LinearGradients& gradients) const {
  const LabelScope scope(backend_, label());
  const auto& [x, w] = inputs;
  smooth(operands, GemmRole::dgrad, dy, source_of(Slot::dgrad_w, w));
  if (has_wgrad()) smooth(operands, GemmRole::wgrad, dy, x);
  if (is_late_weight(Slot::dgrad_w)) {
    restore_forward_weight(operands, context, w);
    quantize_weight(operands, context, Slot::dgrad_w, w);
  }
  if (has_wgrad()) {
    operands.quantize_both(context, id_of(Slot::dgrad_dy), dy);
  } else {
    operands.quantize(context, id_of(Slot::dgrad_dy), dy);
  }
  multiply_backward(operands, context, inputs, dy, gradients);
}

void LinearFunction::backward(OperandSet& operands, const StepContext& context,
                              const LinearInputs& inputs, const ops::Producer& producer,
                              const LinearGradients& gradients) const {
  constexpr OperandId kId = id_of(Slot::dgrad_dy);
  const LabelScope scope(backend_, label());
  const TensorView& dy = ops::output_of(producer);
  const auto produce = [&] {
    return has_wgrad() ? operands.produce_both(context, kId, producer, !gradients.bias.empty())
                       : operands.produce(context, kId, producer);
  };
  const bool waits = is_late_weight(Slot::dgrad_w) || (has_wgrad() && is_smoothed(GemmRole::wgrad));
  if (waits || !produce()) {
    run(producer);
    return backward(operands, context, inputs, dy, gradients);
  }
  multiply_backward(operands, context, inputs, dy, gradients);
}

}  // namespace fp8lab
