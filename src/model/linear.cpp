#include "src/model/linear.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "src/config/size_limits.hpp"

namespace fp8lab {
namespace {

// Names of shared buffers: a product that is post-processed before it is added, and dequantized
// codes.
constexpr const char *kApart = "product", *kDequantized = "dequantized";

constexpr std::uint32_t kMicroBatchBits = 20;  // of RandomKey::tensor, below the micro-batch
static_assert(kMostChunks <= std::int64_t{1} << (32 - kMicroBatchBits),
              "micro-batches would share random words");
constexpr auto kTensorCount = static_cast<std::uint32_t>(kTensors.size());

std::uint32_t without_micro_batch(const RandomKey& key) {
  return key.tensor & ((1u << kMicroBatchBits) - 1);
}

}  // namespace

std::uint32_t linear_of(const RandomKey& key) { return without_micro_batch(key) / kTensorCount; }
Tensor tensor_of(const RandomKey& key) { return kTensors[without_micro_batch(key) % kTensorCount]; }

Slot history_slot(const LinearRecipe& recipe, Slot slot) {
  const Slot first = first_orientation(tensor_of(slot));
  const QuantSpec &a = recipe.slot(first), &b = recipe.slot(other_orientation(first));
  const bool is_one = a.scale_source == ScaleSource::delayed && a.scale_source == b.scale_source &&
                      a.format == b.format && a.scale == b.scale &&
                      a.history_length == b.history_length &&
                      a.amax_algorithm == b.amax_algorithm && !a.transform && !b.transform;
  return is_one ? first : slot;
}

Linear::Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
               const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
               std::int64_t tokens, Purpose purpose, OperandLife life)
    : backend_(backend),
      workspace_(workspace),
      name_(std::move(name)),
      index_(index),
      recipe_(recipe),
      weight_(weight),
      bias_(bias),
      purpose_(purpose),
      life_(std::move(life)) {
  validate(recipe_, name_);
  if (weight_.gradient().dtype == DType::bf16) recipe_.gemm(GemmRole::wgrad).output = DType::bf16;
  keeps_codes_ = life_.owns_x && purpose_ == Purpose::training && may_keep_codes();
  for (const GemmRole role : kGemmRoles) {
    if (purpose_ == Purpose::inference && role != GemmRole::fprop) continue;
    validate_shape(recipe_, role, tokens, in(), out(), name_);
    for (const Slot slot : {a_slot(role), b_slot(role)}) {
      reserve(slot, operand_shape(slot, tokens, in(), out()));
    }
    reserve_product(role);
  }
  whole_x_ = operand(Slot::fprop_x);
  statistics_ = backend_.allocate(DType::u8, std::size(kSlots), sizeof(OperandStatistics));
}

TensorView Linear::source_without_memory(Slot slot) const {
  const bool transpose = is_second_orientation(slot);
  const QuantizedOperand& target = operand(slot);
  const DType dtype = is_weight(slot) ? weight_source(slot).dtype : weight_.working().dtype;
  return TensorView::without_memory(dtype, transpose ? target.k : target.rows,
                                    transpose ? target.rows : target.k);
}

void Linear::require_quantizer(Slot slot) {
  const Support support = backend_.supports(ops::Quantize{
      source_without_memory(slot), is_second_orientation(slot), {}, {}, operand(slot)});
  if (!support) throw Error(fmt::format("{}: {}: {}", name_, slot_name(slot), support.reason));
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

bool Linear::is_kept(Slot slot) const {
  if (is_weight(slot)) return life_.weights == WeightCodes::keep;
  return is_left_for_backward(slot) && life_.recomputed.empty();
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

std::string Linear::buffer_name(Slot slot) const {
  const std::string name = "operand." + slot_name(slot);
  return is_left_for_backward(slot) ? name + "." + life_.recomputed : name;
}
std::string Linear::scales_name(Slot slot) const { return "scales." + buffer_name(slot); }

void Linear::reserve(Slot slot, const OperandShape& shape) {
  const auto [rows, k] = shape;
  QuantizedOperand& target = operand(slot);
  const QuantSpec& spec = recipe_.slot(slot);
  target = QuantizedOperand::without_memory(spec, rows, k);
  target.is_right = is_right(slot);
  if (spec.orientation_source == OrientationSource::transformed) {
    target.source_space.transform = recipe_.slot(first_orientation(tensor_of(slot))).transform;
  }
  const DType dtype = backend_.storage(spec.storage());
  const TensorView source = source_without_memory(slot);
  if (is_source(slot, source)) {
    be_source(slot, is_weight(slot) ? weight_source(slot) : source);
    return;
  }
  require_quantizer(slot);
  if (is_kept(slot)) {
    target.codes = backend_.allocate(dtype, rows, k);
  } else {
    workspace_.reserve(buffer_name(slot), live_range(slot), dtype, rows, k);
  }
  if (spec.transform.is_smoothing()) {
    TensorView& factors = factors_[gemm_role(slot)];
    if (factors.empty()) factors = backend_.allocate(DType::f32, 1, k);
    target.channel_factors = factors;
  }
  if (spec.transform.is_clamp()) target.clamp_bounds = backend_.allocate(DType::f32, 1, 2);
  if (spec.has_scale()) {
    const std::int64_t tile_rows = spec.tile_rows(rows), cols = spec.scale_cols(k);
    if (is_kept(slot)) {
      target.scales = backend_.allocate(DType::f32, tile_rows, cols);
    } else {
      workspace_.reserve(scales_name(slot), live_range(slot), DType::f32, tile_rows, cols);
    }
  }
  if (is_second_orientation(slot) && spec.orientation_source != OrientationSource::high_precision) {
    workspace_.reserve(kDequantized, dequantized_range(), backend_.storage(DType::f32), k, rows);
  }
  if (spec.scale_source != ScaleSource::delayed) return;
  TensorView& state = states_[history_slot(recipe_, slot)];
  if (state.empty()) state = backend_.allocate(DType::f32, 1, DelayedState::length(spec));
}

TensorView Linear::source_of(Slot slot, const TensorView& original) {
  const QuantSpec& spec = recipe_.slot(slot);
  if (!is_second_orientation(slot) ||
      spec.orientation_source == OrientationSource::high_precision) {
    return original;
  }
  const QuantizedOperand& first = operand(other_orientation(slot));
  const bool keeps_space = spec.orientation_source == OrientationSource::transformed;
  const DType dtype = spec.orientation_source == OrientationSource::dequantized
                          ? backend_.storage(spec.storage())
                          : backend_.storage(DType::f32);
  const TensorView dequantized =
      workspace_.view(kDequantized, dequantized_range(), dtype, first.rows, first.k);
  backend_.run(ops::Dequantize{first, false, dequantized, keeps_space});
  if (keeps_space) operand(slot).source_space = first.own_space();
  return dequantized;
}

bool Linear::is_source(Slot slot, const TensorView& source) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return !spec.is_cast() && !spec.transform &&
         spec.orientation_source == OrientationSource::high_precision &&
         source.dtype == backend_.storage(spec.storage());
}

bool Linear::are_measured_together(const TensorView& x) const {
  return purpose_ == Purpose::training && is_source(Slot::fprop_x, x) &&
         is_source(Slot::wgrad_x, x) && x.rows == operand(Slot::wgrad_x).k;
}

void Linear::be_source(Slot slot, const TensorView& source) {
  operand(slot).codes = source;
  operand(slot).order =
      is_second_orientation(slot) ? StorageOrder::rows_contiguous : StorageOrder::k_contiguous;
}

void Linear::fit_x(std::int64_t rows) {
  QuantizedOperand& x = operand(Slot::fprop_x);
  x.rows = rows;
  if (!whole_x_.codes.empty()) x.codes = whole_x_.codes.row_range(0, rows);
  if (!whole_x_.scales.empty()) {
    x.scales = whole_x_.scales.row_range(0, x.spec.tile_rows(rows));
  }
}

bool Linear::bind(Slot slot, const TensorView& source) {
  QuantizedOperand& target = operand(slot);
  target.spec = recipe_.slot(slot);
  if (slot == Slot::fprop_x) fit_x(source.rows);
  if (is_source(slot, source)) {
    be_source(slot, source);
    return false;
  }
  if (!is_kept(slot)) {
    const DType dtype = backend_.storage(target.spec.storage());
    const LiveRange live = live_range(slot);
    target.codes = workspace_.view(buffer_name(slot), live, dtype, target.rows, target.k);
    if (target.spec.has_scale()) {
      target.scales =
          workspace_.view(scales_name(slot), live, DType::f32, target.spec.tile_rows(target.rows),
                          target.spec.scale_cols(target.k));
    }
  }
  return true;
}

bool Linear::is_warming_up(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return spec.scale_source == ScaleSource::delayed &&
         history_steps_[history_slot(recipe_, slot)] < spec.warmup_steps;
}

bool Linear::is_without_history(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  if (spec.scale_source != ScaleSource::delayed || is_warming_up(slot)) return false;
  const int first_scale = spec.amax_algorithm == AmaxAlgorithm::window ? spec.history_length : 1;
  return history_steps_[history_slot(recipe_, slot)] < first_scale;
}

void Linear::rescale_in_warmup(const StepContext& context, Slot slot, const TensorView& source) {
  if (!is_warming_up(slot)) return;
  QuantizedOperand& target = operand(slot);
  target.spec.scale_source = ScaleSource::current;
  backend_.run(
      ops::Quantize{source, is_second_orientation(slot), key_of(context, slot), {}, target});
}

RandomKey Linear::key_of(const StepContext& context, Slot slot) const {
  RandomKey key;
  key.seed = context.seed;
  key.step = context.step;
  key.step_counter = context.step_counter;
  key.tensor = (context.micro_batch << kMicroBatchBits) + index_ * kTensorCount +
               static_cast<std::uint32_t>(tensor_of(slot));
  key.orientation = is_second_orientation(slot) ? 1 : 0;
  key.rotation = index_ * 3 + static_cast<std::uint32_t>(gemm_role(slot));
  return key;
}

TensorView Linear::record_of(Slot slot) const {
  return statistics_.row_range(static_cast<std::int64_t>(slot), 1);
}

void Linear::measure(const StepContext& context, Slot slot, const TensorView& original) {
  if (!context.log_statistics) return;
  backend_.run(
      ops::MeasureOperand{original, is_second_orientation(slot), operand(slot), record_of(slot)});
}

void Linear::measure_both(const StepContext& context, Slot first, const TensorView& original) {
  if (!context.log_statistics) return;
  const Slot second = other_orientation(first);
  backend_.run(ops::MeasureBoth{original, operand(first), operand(second), record_of(first),
                                record_of(second)});
}

void Linear::make(const StepContext& context, Slot slot, const TensorView& original) {
  const TensorView source = source_of(slot, original);
  if (!bind(slot, source)) return;
  backend_.run(ops::Quantize{source, is_second_orientation(slot), key_of(context, slot),
                             state_of(slot), operand(slot)});
  rescale_in_warmup(context, slot, source);
}

void Linear::quantize(const StepContext& context, Slot slot, const TensorView& original) {
  make(context, slot, original);
  measure(context, slot, original);
}

const TensorView& Linear::state_of(Slot slot) const { return states_[history_slot(recipe_, slot)]; }

bool Linear::have_one_source(Slot first) const {
  const Slot second = other_orientation(first);
  // An operation on both orientations uses the history of the first.
  const bool has_own_history = recipe_.slot(second).scale_source == ScaleSource::delayed &&
                               history_slot(recipe_, second) == second;
  // The orientations belong to different GEMMs, which draw different signs.
  const bool transforms = recipe_.slot(first).transform || recipe_.slot(second).transform;
  return !transforms && !has_own_history &&
         recipe_.slot(second).orientation_source == OrientationSource::high_precision;
}

bool Linear::may_keep_codes() const {
  // A transform of dy may read x, and an estimator reads it.
  return recipe_.slot(Slot::fprop_x).is_cast() && recipe_.slot(Slot::wgrad_x).is_cast() &&
         have_one_source(Slot::fprop_x) && !recipe_.slot(Slot::wgrad_dy).transform &&
         !recipe_.slot(Slot::fprop_x).estimator;
}

bool Linear::bind_both(Slot first, const TensorView& source) {
  return have_one_source(first) && bind(first, source) && bind(other_orientation(first), source);
}

void Linear::produce_both(const StepContext& context, Slot first, const ops::Producer& producer,
                          bool is_read) {
  const Slot second = other_orientation(first);
  const TensorView& output = ops::output_of(producer);
  const bool keeps_output =
      is_read || context.log_statistics || is_warming_up(first) || is_warming_up(second);
  backend_.run(ops::ProduceQuantize{producer, key_of(context, first), state_of(first),
                                    operand(first), &operand(second), keeps_output});
  rescale_in_warmup(context, first, output);
  rescale_in_warmup(context, second, output);
  measure_both(context, first, output);
}

void Linear::quantize_both(const StepContext& context, Slot first, const TensorView& original) {
  const Slot second = other_orientation(first);
  if (bind_both(first, original)) {
    backend_.run(ops::QuantizeBoth{original, key_of(context, first), state_of(first),
                                   operand(first), operand(second)});
    rescale_in_warmup(context, first, original);
    rescale_in_warmup(context, second, original);
  } else if (recipe_.slot(second).orientation_source == OrientationSource::high_precision) {
    make(context, first, original);
    make(context, second, original);
  } else {
    // Measure the first orientation before the second is made from its codes: a fault shows there.
    quantize(context, first, original);
    quantize(context, second, original);
    return;
  }
  measure_both(context, first, original);
}

bool Linear::is_smoothed(GemmRole role) const { return recipe_.a(role).transform.is_smoothing(); }

bool Linear::is_late_weight(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return is_smoothed(gemm_role(slot)) ||
         (spec.orientation_source == OrientationSource::transformed &&
          is_smoothed(GemmRole::fprop));
}

bool Linear::is_remade_weight(Slot slot) const {
  return life_.weights == WeightCodes::remake && !is_late_weight(slot);
}

void Linear::remake_weight(const StepContext& context, Slot slot) {
  // Weights use the random bits of the first micro-batch of the step, which also measures them.
  StepContext of_step = context;
  of_step.micro_batch = 0;
  of_step.log_statistics = context.log_statistics && context.micro_batch == 0;
  quantize(of_step, slot, weight_source(slot));
}

void Linear::restore_forward_weight(const StepContext& context) {
  const bool is_read =
      recipe_.slot(Slot::dgrad_w).orientation_source != OrientationSource::high_precision ||
      recipe_.slot(Slot::fprop_w).estimator;
  if (life_.weights == WeightCodes::keep || !is_read) return;
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  if (is_late_weight(Slot::fprop_w)) {
    quantize(unmeasured, Slot::fprop_w, weight_source(Slot::fprop_w));
  } else {
    remake_weight(unmeasured, Slot::fprop_w);
  }
}

void Linear::smooth(GemmRole role, const TensorView& a, const TensorView& b) {
  if (!is_smoothed(role)) return;
  backend_.run(ops::SmoothingFactors{recipe_.a(role).transform, a,
                                     is_second_orientation(a_slot(role)), b,
                                     is_second_orientation(b_slot(role)), factors_[role]});
}

TensorView Linear::weight_source(Slot slot) const {
  const QuantSpec& spec = recipe_.slot(slot);
  return spec.is_cast() && spec.weight_source == WeightSource::master ? weight_.master()
                                                                      : weight_.working();
}

void Linear::prepare_weights(const StepContext& context) {
  if (life_.weights == WeightCodes::remake) return;
  const TensorView first = weight_source(Slot::fprop_w), second = weight_source(Slot::dgrad_w);
  if (purpose_ == Purpose::inference) {
    if (!is_late_weight(Slot::fprop_w)) quantize(context, Slot::fprop_w, first);
    return;
  }
  const bool late = is_late_weight(Slot::fprop_w) || is_late_weight(Slot::dgrad_w);
  if (!late && first.data == second.data) {
    return quantize_both(context, Slot::fprop_w, first);
  }
  if (!is_late_weight(Slot::fprop_w)) quantize(context, Slot::fprop_w, first);
  if (!is_late_weight(Slot::dgrad_w)) quantize(context, Slot::dgrad_w, second);
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
  const TensorView w = weight_source(Slot::fprop_w);
  smooth(GemmRole::fprop, x, w);
  if (is_late_weight(Slot::fprop_w)) quantize(context, Slot::fprop_w, w);
  make(context, Slot::fprop_x, x);
  if (are_measured_together(x)) {
    make(context, Slot::wgrad_x, x);
    measure_both(context, Slot::fprop_x, x);
  } else {
    measure(context, Slot::fprop_x, x);
  }
  multiply_forward(context, x, y);
}

void Linear::forward(const StepContext& context, const ops::Producer& producer,
                     const TensorView& y) {
  constexpr Slot kSlot = Slot::fprop_x;
  const TensorView& x = ops::output_of(producer);
  // Fewer rows than T occur in inference only: no backward pass follows.
  if (keeps_codes_ && x.rows == operand(Slot::wgrad_x).k) {
    const bool bound = bind_both(kSlot, x);
    FP8LAB_ASSERT(bound);
    produce_both(context, kSlot, producer, false);
    return multiply_forward(context, x, y);
  }
  if (is_late_weight(Slot::fprop_w) || !bind(kSlot, x)) {
    std::visit([this](const auto& op) { backend_.run(op); }, producer);
    return forward(context, x, y);
  }
  backend_.run(
      ops::ProduceQuantize{producer, key_of(context, kSlot), state_of(kSlot), operand(kSlot)});
  rescale_in_warmup(context, kSlot, x);
  measure(context, kSlot, x);
  multiply_forward(context, x, y);
}

void Linear::recompute_x(const StepContext& context, const ops::Producer& producer) {
  constexpr Slot kSlot = Slot::fprop_x;
  const TensorView& x = ops::output_of(producer);
  if (keeps_codes_) {
    const bool bound = bind_both(kSlot, x);
    FP8LAB_ASSERT(bound);
    return produce_both(context, kSlot, producer, false);
  }
  std::visit([this](const auto& op) { backend_.run(op); }, producer);
  if (is_left_for_backward(kSlot)) quantize(context, kSlot, x);
}

void Linear::multiply_backward(const StepContext& context, const TensorView& x,
                               const TensorView& dy, const TensorView& dx) {
  if (is_remade_weight(Slot::dgrad_w)) {
    restore_forward_weight(context);
    remake_weight(context, Slot::dgrad_w);
  }
  multiply(GemmRole::dgrad, dy, weight_source(Slot::dgrad_w), x, {}, false, dx);
  if (!keeps_codes_) {
    make(context, Slot::wgrad_x, x);
    if (!are_measured_together(x)) measure(context, Slot::wgrad_x, x);
  }
  multiply(GemmRole::wgrad, dy, x, weight_source(Slot::fprop_w), {}, context.adds_to_gradients,
           weight_.gradient());
  if (bias_ != nullptr) backend_.run(ops::BiasBackward{dy, bias_->gradient()});
}

void Linear::backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                      const TensorView& dx) {
  const TensorView w = weight_source(Slot::dgrad_w);
  smooth(GemmRole::dgrad, dy, w);
  smooth(GemmRole::wgrad, dy, x);
  if (is_late_weight(Slot::dgrad_w)) {
    restore_forward_weight(context);
    quantize(context, Slot::dgrad_w, w);
  }
  quantize_both(context, Slot::dgrad_dy, dy);
  multiply_backward(context, x, dy, dx);
}

void Linear::backward(const StepContext& context, const TensorView& x,
                      const ops::Producer& producer, const TensorView& dx) {
  constexpr Slot kFirst = Slot::dgrad_dy;
  const TensorView& dy = ops::output_of(producer);
  const bool waits = is_late_weight(Slot::dgrad_w) || is_smoothed(GemmRole::wgrad);
  if (waits || !bind_both(kFirst, dy)) {
    std::visit([this](const auto& op) { backend_.run(op); }, producer);
    return backward(context, x, dy, dx);
  }
  produce_both(context, kFirst, producer, bias_ != nullptr);
  multiply_backward(context, x, dy, dx);
}

void Linear::update_delayed_scales() {
  for (const Slot slot : kSlots) {
    if (states_[slot].empty()) continue;
    backend_.run(ops::UpdateDelayedScale{recipe_.slot(slot), states_[slot]});
  }
}

void Linear::end_step() {
  for (const Slot slot : kSlots) {
    if (!states_[slot].empty()) ++history_steps_[slot];
  }
}

bool Linear::is_warming_up() const {
  return std::any_of(std::begin(kSlots), std::end(kSlots),
                     [this](Slot slot) { return is_warming_up(slot); });
}

void Linear::discard_amaxes() {
  for (const TensorView& state : states_) {
    if (!state.empty()) backend_.fill_zero(state.columns(DelayedState::kAmax, 1));
  }
}

}  // namespace fp8lab
