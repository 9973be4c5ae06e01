#include "src/interface/linear_layer.hpp"

#include <fmt/core.h>
#include "emulation/base/input_error.hpp"

namespace fp8lab::interface {
namespace {

constexpr PassPhase kForward = PassPhase::feed_forward,
                    kBackward = PassPhase::feed_forward_backward;
constexpr LiveRange kBoth = {kForward, kBackward};

LinearDescription describe(const LayerDescription& layer) {
  LinearDescription description;
  description.name = layer.name;
  description.index = layer.index;
  description.recipe = layer.recipe;
  description.tokens = layer.tokens;
  description.in = layer.in;
  description.out = layer.out;
  description.activation = layer.activation;
  description.master_weight = layer.weight;
  description.weight_gradient = layer.weight;
  description.runs = {true, layer.has_backward, layer.has_backward};
  description.life = {.owns_x = false,
                      .recomputed = "",
                      .weights = WeightCodes::remake,
                      .forward = kForward,
                      .backward = kBackward};
  return description;
}

/// A view of the caller's memory; without memory if `data` is null. Nothing writes to what a pass
/// only reads.
TensorView view_of(const void* data, DType dtype, std::int64_t rows, std::int64_t cols) {
  if (data == nullptr) return {};
  return {const_cast<void*>(data), dtype, rows, cols, cols};
}

}  // namespace

LinearLayer::LinearLayer(Device& device, const Device::Turn&, const LayerDescription& description)
    : device_(device),
      description_(description),
      memory_(device),
      function_(memory_, describe(description)),
      workspace_(memory_),
      operands_(function_.make_operands(workspace_)) {
  reserve_buffers();
  workspace_bytes_ = workspace_.place();
  find_states();
}

void LinearLayer::reserve_buffers() {
  const auto& [name, index, recipe, tokens, in, out, activation, weight, has_backward] =
      description_;
  const auto reserve = [&](const char* buffer, DType dtype, std::int64_t rows, std::int64_t cols) {
    workspace_.reserve(buffer, kBoth, dtype, rows, cols);
  };
  if (weight != activation) {
    reserve("working", activation, out, in);
    reserve("bias", activation, 1, out);
  }
  const DType y = function_.recipe().gemm(GemmRole::fprop).output;
  const DType dx = function_.recipe().gemm(GemmRole::dgrad).output;
  if (y != activation) reserve("y", y, tokens, out);
  if (!has_backward) return;
  if (dx != activation) reserve("dx", dx, tokens, in);
  if (weight != DType::f32) reserve("dbias", DType::f32, 1, out);
}

void LinearLayer::find_states() {
  for (const OperandId id : operands_.ids()) {
    const TensorView& values = operands_.delayed_state(id);
    if (values.empty()) continue;
    states_.push_back({operands_.declaration(id).history_name(), values, id});
  }
  history_count_ = states_.size();
  if (history_count_ > 0) {
    kept_amaxes_ = memory_.allocate(DType::f32, 1, static_cast<std::int64_t>(history_count_));
  }
  for (const GemmRole role : kGemmRoles) {
    const OperandId left = id_of(a_slot(role));
    const TensorView& factors = operands_.smoothing_factors(left);
    const auto* const smoothing = operands_.declaration(left).spec.transform.as<Smoothing>();
    if (smoothing != nullptr && smoothing->is_static && !factors.empty()) {
      states_.push_back({gemm_role_name(role) + ".factors", factors, std::nullopt});
    }
  }
}

TensorView LinearLayer::buffer(const char* name, DType dtype, std::int64_t rows,
                               std::int64_t cols) const {
  return workspace_.view(name, kBoth, dtype, rows, cols);
}

void LinearLayer::keep_amaxes(bool back) {
  for (std::size_t i = 0; i < history_count_; ++i) {
    const TensorView amax = states_[i].values.columns(DelayedState::kAmax, 1);
    const TensorView kept = kept_amaxes_.columns(static_cast<std::int64_t>(i), 1);
    memory_.run(ops::Copy{back ? kept : amax, back ? amax : kept});
  }
}

StepContext LinearLayer::begin(const Moment& moment, std::int64_t rows, void* workspace) {
  const LayerDescription& layer = description_;
  if (rows < 1 || rows > layer.tokens) {
    throw InputError({.where = layer.name,
                      .found = fmt::format("{} rows", rows),
                      .accepted = fmt::format("1 to {}", layer.tokens)});
  }
  for (const GemmRole role : kGemmRoles) {
    if (!function_.description().runs[role]) continue;
    validate_shape(function_.recipe(), role, rows, layer.in, layer.out, layer.name);
  }
  workspace_.use({workspace, DType::u8, 1, workspace_bytes_, workspace_bytes_});
  if (!moment.is_training) keep_amaxes(false);
  StepContext context;
  context.seed = moment.seed;
  context.step = moment.step;
  context.micro_batch = moment.micro_batch;
  context.log_statistics = moment.is_measured && moment.is_training;
  return context;
}

void LinearLayer::end(const Moment& moment) {
  if (!moment.is_training) keep_amaxes(true);
}

LinearWeight LinearLayer::weights_of(const void* w) {
  const TensorView master = view_of(w, description_.weight, description_.out, description_.in);
  if (description_.weight == description_.activation) return {master, master};
  const TensorView working =
      buffer("working", description_.activation, description_.out, description_.in);
  memory_.run(ops::Copy{master, working});
  return {master, working};
}

TensorView LinearLayer::product(const char* name, DType made, const TensorView& data) const {
  return data.empty() || data.dtype == made ? data : buffer(name, made, data.rows, data.cols);
}

void LinearLayer::deliver(const TensorView& product, const TensorView& data) {
  if (product.data != data.data) memory_.run(ops::Copy{product, data});
}

void LinearLayer::forward(const Moment& moment, std::int64_t rows, const ForwardTensors& tensors,
                          void* workspace, void* stream) {
  const Device::Turn turn(device_, stream);
  const auto& [name, index, recipe, tokens, in, out, activation, weight, has_backward] =
      description_;
  const StepContext context = begin(moment, rows, workspace);
  const LinearInputs inputs{view_of(tensors.x, activation, rows, in), weights_of(tensors.w)};
  TensorView bias = view_of(tensors.bias, weight, 1, out);
  if (!bias.empty() && weight != activation) {
    const TensorView working = buffer("bias", activation, 1, out);
    memory_.run(ops::Copy{bias, working});
    bias = working;
  }
  const TensorView y = view_of(tensors.y, activation, rows, out);
  const TensorView made = product("y", function_.recipe().gemm(GemmRole::fprop).output, y);
  function_.forward(operands_, context, inputs, bias, made);
  deliver(made, y);
  end(moment);
}

void LinearLayer::backward(const Moment& moment, std::int64_t rows, const BackwardTensors& tensors,
                           void* workspace, void* stream) {
  const Device::Turn turn(device_, stream);
  const auto& [name, index, recipe, tokens, in, out, activation, weight, has_backward] =
      description_;
  if (!has_backward) throw InputError({.where = name, .reason = "made for forward passes only"});
  const StepContext context = begin(moment, rows, workspace);
  const LinearInputs inputs{view_of(tensors.x, activation, rows, in), weights_of(tensors.w)};
  const TensorView dx = view_of(tensors.dx, activation, rows, in);
  const TensorView dbias = view_of(tensors.dbias, weight, 1, out);
  const TensorView made_dx = product("dx", function_.recipe().gemm(GemmRole::dgrad).output, dx);
  const TensorView made_dbias = product("dbias", DType::f32, dbias);
  if (!dbias.empty()) memory_.fill_zero(made_dbias);
  function_.restore_x(operands_, context, inputs);
  function_.backward(
      operands_, context, inputs, view_of(tensors.dy, activation, rows, out),
      {.dx = made_dx, .dw = view_of(tensors.dw, weight, out, in), .bias = made_dbias});
  deliver(made_dx, dx);
  deliver(made_dbias, dbias);
  end(moment);
}

void LinearLayer::end_step(void* stream) {
  const Device::Turn turn(device_, stream);
  operands_.update_delayed_scales();
  operands_.end_step();
}

std::int64_t LinearLayer::read_state(std::size_t index, float* values, void* stream) {
  const Device::Turn turn(device_, stream);
  const LayerState& state = states_.at(index);
  memory_.download(values, state.values);
  return state.history ? operands_.history_steps(*state.history) : 0;
}

void LinearLayer::write_state(std::size_t index, const float* values, std::int64_t steps,
                              void* stream) {
  const Device::Turn turn(device_, stream);
  const LayerState& state = states_.at(index);
  memory_.upload(state.values, values);
  if (state.history) operands_.continue_history(*state.history, steps);
}

void LinearLayer::read_amaxes(float* amaxes, void* stream) {
  const Device::Turn turn(device_, stream);
  std::vector<Download> downloads;
  for (std::size_t i = 0; i < history_count_; ++i) {
    downloads.push_back({amaxes + i, states_[i].values.columns(DelayedState::kAmax, 1)});
  }
  memory_.download_all(downloads);
}

void LinearLayer::write_amaxes(const float* amaxes, void* stream) {
  const Device::Turn turn(device_, stream);
  for (std::size_t i = 0; i < history_count_; ++i) {
    memory_.upload(states_[i].values.columns(DelayedState::kAmax, 1), amaxes + i);
  }
}

void LinearLayer::read_statistics(OperandStatistics* statistics, void* stream) {
  const Device::Turn turn(device_, stream);
  memory_.download(statistics, operands_.statistics());
}

}  // namespace fp8lab::interface
