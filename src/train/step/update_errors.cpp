#include "src/train/step/update_errors.hpp"

#include <algorithm>
#include <cmath>

namespace fp8lab {

double UpdateErrors::Error::relative() const {
  return noise == 0.0 ? 0.0 : std::sqrt(noise / signal);
}

std::vector<float> UpdateErrors::values_of(const TensorView& view) const {
  std::vector<float> values(view.empty() ? 0 : static_cast<std::size_t>(view.size()));
  if (!view.empty()) download_floats(backend_, view, values);
  return values;
}

void UpdateErrors::before(const Parameter& parameter) { weights_ = values_of(parameter.master()); }

void UpdateErrors::after(const Parameter& parameter) {
  const std::vector<float> weights = values_of(parameter.master());
  const std::vector<float> gradient = values_of(parameter.gradient());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (gradient[i] == 0.0f) continue;
    ++with_gradient_;
    if (weights[i] == weights_[i]) ++unchanged_;
  }
}

double UpdateErrors::lost() const {
  return with_gradient_ == 0
             ? 0.0
             : static_cast<double>(unchanged_) / static_cast<double>(with_gradient_);
}

void UpdateErrors::computed(const TensorView& first, const TensorView& second) {
  first_moment_ = values_of(first);
  second_moment_ = values_of(second);
}

void UpdateErrors::stored(const TensorView& first, const TensorView& second, float epsilon) {
  const std::vector<float> m = values_of(first), v = values_of(second);
  elements_ += static_cast<std::int64_t>(std::max(m.size(), v.size()));
  for (std::size_t i = 0; i < m.size(); ++i) {
    first_.add(static_cast<double>(first_moment_[i]), static_cast<double>(m[i]));
  }
  has_second_moments_ = has_second_moments_ || !v.empty();
  for (std::size_t i = 0; i < v.size(); ++i) {
    second_.add(static_cast<double>(second_moment_[i]), static_cast<double>(v[i]));
  }
  if (m.empty() || v.empty()) return;
  const auto direction = [&](float moment, float square) {
    return static_cast<double>(moment) /
           (std::sqrt(static_cast<double>(square)) + static_cast<double>(epsilon));
  };
  for (std::size_t i = 0; i < m.size(); ++i) {
    direction_.add(direction(first_moment_[i], second_moment_[i]), direction(m[i], v[i]));
  }
}

}  // namespace fp8lab
