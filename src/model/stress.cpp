#include "src/model/stress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>

#include "emulation/numerics/codec.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/data/random.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kOutlierStream = 0x0071;
constexpr std::uint32_t kAlignedStream = 0xa11e0000u;  ///< plus the index of the linear layer

/// `count` different numbers below `end`.
std::vector<std::int64_t> draw(std::int64_t count, std::int64_t end, RandomSequence random) {
  std::vector<std::int64_t> drawn;
  while (static_cast<std::int64_t>(drawn.size()) < count) {
    const std::int64_t next = random.between(0, end - 1);
    if (std::find(drawn.begin(), drawn.end(), next) == drawn.end()) drawn.push_back(next);
  }
  return drawn;
}

template <class T, class Read, class Write>
void edit_as(Backend& backend, const TensorView& tensor, Read read, Write write,
             const std::function<void(std::span<double>)>& change) {
  std::vector<T> stored(static_cast<std::size_t>(tensor.size()));
  backend.download(stored.data(), tensor);
  std::vector<double> values(stored.size());
  std::transform(stored.begin(), stored.end(), values.begin(), read);
  change(values);
  std::transform(values.begin(), values.end(), stored.begin(), write);
  backend.upload(tensor, stored.data());
}

/// Changes the elements of a bf16, f32 or f64 tensor, row-major, on the host; they are rounded to
/// its type.
void edit(Backend& backend, const TensorView& tensor,
          const std::function<void(std::span<double>)>& change) {
  const auto same = [](double value) { return value; };
  const auto single = [](double value) { return static_cast<float>(value); };
  switch (tensor.dtype) {
    case DType::f64: return edit_as<double>(backend, tensor, same, same, change);
    case DType::f32: return edit_as<float>(backend, tensor, same, single, change);
    default: break;
  }
  FP8LAB_ASSERT(tensor.dtype == DType::bf16);
  edit_as<std::uint16_t>(
      backend, tensor, numerics::from_bf16,
      [=](double value) { return numerics::to_bf16(single(value)); }, change);
}

/// The label of a change of `parameter` or its gradient.
Label stressed(const Backend& backend, const Parameter& parameter) {
  return backend.label().in_phase(Phase::stress).in_layer(parameter.name());
}

/// Changes master weights and what forward and backward read.
void edit_weights(Backend& backend, const Parameter& parameter,
                  const std::function<void(std::span<double>)>& change) {
  const LabelScope scope(backend, stressed(backend, parameter));
  edit(backend, parameter.master(), change);
  const TensorView& working = parameter.tensors.working;
  if (!working.empty()) backend.run(ops::Copy{parameter.master(), working});
}

void scale(Backend& backend, const TensorView& tensor, double factor) {
  edit(backend, tensor, [=](std::span<double> values) {
    for (double& value : values) value *= factor;
  });
}

/// Steps in which it is at work.
std::int64_t steps_of(const StressConfig& stress) {
  return std::max<std::int64_t>(1, stress.over_steps);
}

}  // namespace

double gain_after(const StressConfig& stress, std::int64_t done) {
  const auto exponent = static_cast<std::int64_t>(std::ilogb(stress.gain));
  return std::ldexp(1.0, static_cast<int>(exponent * done / steps_of(stress)));
}

StressedStep::StressedStep(Backend& backend, const Parameters& parameters, const StageConfig& stage,
                           std::int64_t stage_step, std::uint64_t seed)
    : backend_(backend), parameters_(parameters) {
  for (const StressConfig& stress : stage.stress) {
    const std::int64_t done = stage_step - stress.at_step;
    if (done < 0 || done >= steps_of(stress)) continue;
    switch (stress.kind) {
      case StressKind::outlier_channels: grow_outliers(stress, done, seed); break;
      case StressKind::aligned_swiglu: align(stress, seed); break;
      case StressKind::spike: spike_ *= stress.factor; break;
    }
  }
  if (spike_ == 1.0) return;
  spike();
  events_.push_back(fmt::format("spike: factor {}", spike_));
}

void StressedStep::grow_outliers(const StressConfig& stress, std::int64_t done,
                                 std::uint64_t seed) {
  const double reached = gain_after(stress, done + 1);
  const double gain = reached / gain_after(stress, done);
  if (gain == 1.0) return;
  const std::vector<std::int64_t> channels =
      draw(stress.channels, parameters_.model().hidden_size, RandomSequence(seed, kOutlierStream));
  const Declaration& declaration = parameters_.declaration();
  for (const NormedLinear& pair : declaration.normed_linears()) {
    for (const ParameterId id : pair.norm) {
      edit_weights(backend_, parameters_[id], [&](std::span<double> vector) {
        for (const std::int64_t channel : channels) {
          vector[static_cast<std::size_t>(channel)] *= gain;
        }
      });
    }
    const Parameter& linear =
        parameters_[declaration.linears()[static_cast<std::size_t>(pair.linear)].weight];
    const TensorView& shape = linear.master();
    edit_weights(backend_, linear, [&](std::span<double> weight) {
      for (const std::int64_t channel : channels) {
        for (std::int64_t row = 0; row < shape.rows; ++row) {
          weight[static_cast<std::size_t>(row * shape.cols + channel)] /= gain;
        }
      }
    });
  }
  has_planted_ = true;
  events_.push_back(
      fmt::format("outlier_channels: {} channels, gain {}", stress.channels, reached));
}

void StressedStep::align(const StressConfig& stress, std::uint64_t seed) {
  const Declaration& declaration = parameters_.declaration();
  const auto layers = static_cast<int>(parameters_.model().layer_count());
  std::int64_t aligned = 0;
  for (std::size_t i = 0; i < declaration.linears().size(); ++i) {
    const LinearDeclaration& linear = declaration.linears()[i];
    const Parameter& weight = parameters_[linear.weight];
    const std::optional<GateAndUp>& rows = weight.declaration.gate_and_up;
    if (!rows || !layer_pattern_matches(stress.layers, linear.name, layers)) continue;
    const std::vector<std::int64_t> channels =
        draw(stress.channels, rows->count,
             RandomSequence(seed, kAlignedStream + static_cast<std::uint32_t>(i)));
    // A bias has an element where the weight has a row.
    const auto align_rows = [&](std::int64_t width) {
      return [&channels, &stress, rows, width](std::span<double> values) {
        for (const std::int64_t channel : channels) {
          for (std::int64_t col = 0; col < width; ++col) {
            const auto at = [&](std::int64_t first) {
              return static_cast<std::size_t>((first + channel) * width + col);
            };
            values[at(rows->gate)] = stress.factor * values[at(rows->up)];
          }
        }
      };
    };
    edit_weights(backend_, weight, align_rows(weight.master().cols));
    if (linear.bias) edit_weights(backend_, parameters_[*linear.bias], align_rows(1));
    ++aligned;
  }
  has_planted_ = aligned > 0 || has_planted_;
  events_.push_back(fmt::format("aligned_swiglu: {} channels of {} layers, factor {}",
                                stress.channels, aligned, stress.factor));
}

void StressedStep::scale_until_end(const Parameter& parameter, const TensorView& tensor,
                                   double factor) {
  if (tensor.empty()) return;
  const LabelScope scope(backend_, stressed(backend_, parameter));
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
  backend_.download(bytes.data(), tensor);
  saved_.push_back({parameter, tensor, std::move(bytes)});
  scale(backend_, tensor, factor);
}

void StressedStep::spike() {
  const auto scale_weights = [this](const Parameter& parameter, double factor) {
    scale_until_end(parameter, parameter.tensors.master, factor);
    scale_until_end(parameter, parameter.tensors.working, factor);
  };
  const Declaration& declaration = parameters_.declaration();
  for (const NormedLinear& pair : declaration.normed_linears()) {
    for (const ParameterId id : pair.norm) scale_weights(parameters_[id], spike_);
    scale_weights(parameters_[declaration.linears()[static_cast<std::size_t>(pair.linear)].weight],
                  1.0 / spike_);
  }
}

void StressedStep::begin_again() {
  if (spike_ != 1.0) spike();
}

void StressedStep::end() {
  if (spike_ == 1.0) return;
  const Declaration& declaration = parameters_.declaration();
  for (const NormedLinear& pair : declaration.normed_linears()) {
    const auto scale_gradient = [this](const Parameter& parameter, double factor) {
      if (!parameter.is_trained()) return;
      const LabelScope scope(backend_, stressed(backend_, parameter));
      scale(backend_, parameter.gradient(), factor);
    };
    for (const ParameterId id : pair.norm) scale_gradient(parameters_[id], spike_);
    const LinearDeclaration& linear = declaration.linears()[static_cast<std::size_t>(pair.linear)];
    scale_gradient(parameters_[linear.weight], 1.0 / spike_);
  }
  for (const Saved& saved : saved_) {
    const LabelScope scope(backend_, stressed(backend_, saved.parameter));
    backend_.upload(saved.tensor, saved.bytes.data());
  }
  saved_.clear();
}

}  // namespace fp8lab
