#include "src/train/watch/step_fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "emulation/numerics/codec.hpp"
#include "emulation/recording/operation_words.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {
namespace {

bool holds_values(const TensorView& view) {
  return view.dtype == DType::bf16 || view.dtype == DType::f32 || view.dtype == DType::f64;
}

std::vector<float> values_of(Backend& backend, const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.size()));
  download_floats(backend, view, values);
  return values;
}

bool is_not_finite(float value) { return !std::isfinite(value); }

/// Returns the first element that is not finite, if any.
std::optional<std::size_t> first_nonfinite(const std::vector<float>& values) {
  const auto found = std::find_if(values.begin(), values.end(), is_not_finite);
  if (found == values.end()) return std::nullopt;
  return static_cast<std::size_t>(found - values.begin());
}

/// Returns the first element of the largest finite magnitude, if any is finite.
std::optional<std::size_t> largest_finite(const std::vector<float>& values) {
  std::optional<std::size_t> largest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    if (!largest || std::abs(values[i]) > std::abs(values[*largest])) largest = i;
  }
  return largest;
}

/// Decodes the codes of an operand of up to 8 bits, (rows, k), without scales. Empty for codebooks,
/// whose codes depend on the tile, and for operands stored as values.
std::vector<float> decoded(Backend& backend, const QuantizedOperand& operand) {
  if (operand.codes.dtype != DType::u8 || operand.spec.has_codebooks()) return {};
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(operand.codes.size()));
  backend.download(codes.data(), operand.codes);
  std::vector<float> values(codes.size());
  std::transform(codes.begin(), codes.end(), values.begin(),
                 [&](std::uint8_t code) { return numerics::decode(operand.spec.format, code); });
  return values;
}

std::string where(const Label& label) {
  return fmt::format("{}, micro-batch {}", name_of(label.phase), label.micro_batch);
}

std::string operand_name(const std::string& layer, std::string_view operand) {
  return fmt::format("{}/{}", layer, operand);
}

}  // namespace

std::vector<float> sample_around(const std::vector<float>& values, std::size_t element) {
  constexpr std::size_t kSampleLength = 4096;
  const std::size_t first = element < kSampleLength / 2 ? 0 : element - kSampleLength / 2;
  const std::size_t last = std::min(values.size(), first + kSampleLength);
  return {values.begin() + static_cast<std::ptrdiff_t>(first),
          values.begin() + static_cast<std::ptrdiff_t>(last)};
}

FaultFinder::FaultFinder(Backend& backend, const Transformer& transformer, FaultKind kind,
                         std::vector<double> usual_amax)
    : backend_(backend), kind_(kind) {
  const std::vector<std::unique_ptr<Linear>>& linears = transformer.linears();
  FP8LAB_ASSERT(usual_amax.size() == linears.size() * kSlots.size());
  auto next = usual_amax.begin();
  for (const auto& linear : linears) {
    for (const Slot slot : kSlots) {
      usual_amax_[operand_name(linear->name(), slot_name(slot))] = *next++;
    }
  }
}

void FaultFinder::after(const AnyOperation& op, const Label& label) {
  if (const auto* const* measured = std::get_if<const ops::MeasureOperand*>(&op)) {
    look_at(**measured, label);
  } else if (const auto* const* both = std::get_if<const ops::MeasureBoth*>(&op)) {
    (*both)->for_each_part([&](const auto& part) { look_at(part, label); });
  } else if (std::holds_alternative<const Upload*>(op) && label.tensor == kStepScalars) {
    // A repeated step ends with the scalars of the first one, which it does not compute.
  } else if (kind_ == FaultKind::nonfinite && !written_ && !blamed_) {
    look_at_outputs(op, label);
  }
}

void FaultFinder::look_at_outputs(const AnyOperation& op, const Label& label) {
  for (const OperationTensor& output : outputs_of(op)) {
    if (!holds_values(output.view)) continue;
    const std::vector<float> values = values_of(backend_, output.view);
    const std::optional<std::size_t> element = first_nonfinite(values);
    if (!element) continue;
    const std::string part = part_of(label, output);
    const std::string& within = part.empty() ? label.gemm : part;
    const std::string name =
        label.layer + (label.layer.empty() || within.empty() ? "" : "/") + within;
    const auto cols = static_cast<std::size_t>(output.view.cols);
    written_ = {fmt::format("{}{}{} of {}", name, name.empty() ? "" : ": ", output.name,
                            operation_words(operation_name(op))) +
                    fmt::format(" ({})", where(label)),
                values[*element], static_cast<std::int64_t>(*element / cols),
                static_cast<std::int64_t>(*element % cols)};
    return;
  }
}

void FaultFinder::look_at(const ops::MeasureOperand& op, const Label& label) {
  BlamedOperand blamed;
  blamed.name = operand_name(label.layer, op.operand.name);
  blamed.label = label;
  backend_.download(&blamed.statistics, op.record);
  const auto known = usual_amax_.find(blamed.name);
  const double usual =
      known == usual_amax_.end() ? std::numeric_limits<double>::quiet_NaN() : known->second;
  const double amax = blamed.statistics.amax;
  if (usual > 0.0 && amax > 0.0) blamed.growth = std::log2(amax / usual);
  // Growth of less than a factor of 2 is weaker evidence than saturation.
  const auto rank = [](const BlamedOperand& operand) {
    return std::tuple(operand.growth >= 1.0 ? operand.growth : 0.0,
                      operand.statistics.saturation_fraction, std::max(operand.growth, 0.0));
  };
  const bool counts = kind_ == FaultKind::nonfinite
                          ? !blamed_ && blamed.statistics.nonfinite_count > 0.0
                          : rank(blamed) > (blamed_ ? rank(*blamed_) : std::tuple(0.0, 0.0, 0.0));
  if (!counts) return;
  locate(blamed, op);
  blamed_ = std::move(blamed);
}

void FaultFinder::locate(BlamedOperand& blamed, const ops::MeasureOperand& op) const {
  const QuantizedOperand& operand = op.operand;
  const auto set = [&](const std::vector<float>& values, std::size_t element, std::int64_t cols,
                       bool transposed) {
    const auto row = static_cast<std::int64_t>(element) / cols;
    const auto col = static_cast<std::int64_t>(element) % cols;
    std::tie(blamed.row, blamed.k) = transposed ? std::pair(col, row) : std::pair(row, col);
    blamed.value = values[element];
    blamed.sample = sample_around(values, element);
    blamed.tile = tile_of(blamed, operand);
  };
  const std::vector<float> source = values_of(backend_, op.source);
  const auto element =
      kind_ == FaultKind::nonfinite ? first_nonfinite(source) : largest_finite(source);
  blamed.is_finite_before = kind_ == FaultKind::nonfinite && !element;
  if (element) return set(source, *element, op.source.cols, op.transpose);
  // A finite input became infinite or NaN in the quantizer.
  const std::vector<float> codes = decoded(backend_, operand);
  if (const auto code = first_nonfinite(codes)) set(codes, *code, operand.k, false);
}

std::string FaultFinder::tile_of(const BlamedOperand& blamed,
                                 const QuantizedOperand& operand) const {
  const QuantSpec& spec = operand.spec;
  if (!spec.has_scale()) return fmt::format("without a scale in {}", label(spec));
  const TileShape shape = spec.scale_tile();
  const std::int64_t row = shape.rows == 0 ? 0 : blamed.row / shape.rows;
  const std::int64_t col = shape.cols == 0 ? 0 : blamed.k / shape.cols;
  std::string text = fmt::format("tile ({}, {}) of {}", row, col, label(spec));
  if (spec.has_codebooks()) return text;  // a tile has several numbers
  float scale = 0;
  backend_.download(&scale, operand.scales.row_range(row, 1).columns(col, 1));
  return text + fmt::format(", scale {:.4g}", scale);
}

std::optional<StepFault> FaultFinder::take() const {
  StepFault fault;
  if (written_) {
    fault.message = fmt::format("{} is {} at row {}, column {}", written_->what, written_->value,
                                written_->row, written_->col);
  }
  if (!blamed_) {
    if (fault.message.empty()) return std::nullopt;
    return fault;
  }
  const OperandStatistics& statistics = blamed_->statistics;
  fault.sample_name = blamed_->name;
  fault.sample = blamed_->sample;
  if (kind_ == FaultKind::nonfinite) {
    const std::string count = fmt::format("{:.0f} not finite", statistics.nonfinite_count);
    fault.message += written_ ? fmt::format("; first operand {}: {}", blamed_->name, count)
                              : fmt::format("{} ({}): {} after the cast, {} before it",
                                            blamed_->name, where(blamed_->label), count,
                                            blamed_->is_finite_before ? "none" : "some");
  } else {
    fault.message =
        fmt::format("{} ({}): amax {:.4g}", blamed_->name, where(blamed_->label), statistics.amax);
    if (blamed_->growth > 0.0) {
      fault.message += fmt::format(", {:.3g} times its usual one", std::exp2(blamed_->growth));
    }
    if (statistics.saturation_fraction > 0.0) {
      fault.message += fmt::format(", {:.3g} % saturated", 100.0 * statistics.saturation_fraction);
    }
  }
  if (blamed_->row >= 0) {
    fault.message += fmt::format("; row {}, k {}: {}", blamed_->row, blamed_->k, blamed_->tile);
  }
  return fault;
}

}  // namespace fp8lab
