#include "src/train/step/muon_overflow.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace fp8lab {
namespace {

/// Momenta of gradients with a smaller norm cannot overflow.
constexpr double kHarmlessNorm = 1e18;

std::vector<float> floats_of(Backend& backend, const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.size()));
  download_floats(backend, view, values);
  return values;
}

/// Returns whether the sum of squares of the direction of `op` exceeds FP32.
bool overflows(Backend& backend, const ops::Orthogonalize& op, float clip) {
  const std::vector<float> momentum = floats_of(backend, op.first_moment);
  const std::vector<float> gradient = floats_of(backend, op.gradient);
  double squares = 0;
  for (std::size_t i = 0; i < momentum.size(); ++i) {
    const double x = look_ahead(op.spec.momentum, momentum[i], gradient[i] * clip);
    squares += x * x;
  }
  return squares > static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace

std::optional<EventRecord> MuonOverflow::look(Backend& backend, const Parameters& parameters,
                                              const UpdateSpec& spec, const StepRecord& record) {
  looks_ = looks_ || !(record.grad_norm < kHarmlessNorm);
  if (!looks_) return std::nullopt;
  const double ratio = static_cast<double>(spec.clip_norm) / (record.grad_norm + 1e-6);
  const float clip = spec.clip_norm > 0 && ratio < 1.0 ? static_cast<float>(ratio) : 1.0f;
  std::string first;
  int matrices = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_trained() || parameter.rule != UpdateRule::muon) continue;
    const TensorView momentum =
        parameters.load(StateRole::first_moment, parameter.tensors.first_moment);
    if (momentum.dtype == DType::f64) return std::nullopt;  // sums of double precision
    bool found = false;
    parameters.for_each_muon_part(
        parameter, spec, {}, momentum,
        [&](const ops::Orthogonalize& op, const TensorView&, const TensorView&) {
          found = found || overflows(backend, op, clip);
        });
    if (!found) continue;
    if (matrices++ == 0) first = parameter.name();
  }
  looks_ = matrices > 0;
  const bool begins = looks_ && !overflows_;
  overflows_ = looks_;
  if (!begins) return std::nullopt;
  const std::string what = matrices == 1
                               ? fmt::format("{} as it is", first)
                               : fmt::format("{} and {} more as they are", first, matrices - 1);
  return EventRecord{record.step, "overflow",
                     fmt::format("muon leaves {}: the norm of the momentum overflows FP32, until "
                                 "it has decayed",
                                 what)};
}

}  // namespace fp8lab
