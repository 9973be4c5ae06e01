// Rounding errors of the optimizer's states in one step, measured on the host from whole tensors,
// at logged steps.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/weights/parameters.hpp"

namespace fp8lab {

/// Errors over all parameters together. A relative error is sqrt(sum (x - x')^2 / sum x^2) in FP64.
class UpdateErrors {
 public:
  explicit UpdateErrors(Backend& backend) : backend_(backend) {}

  /// Call before and after the update of `parameter`.
  void before(const Parameter& parameter);
  void after(const Parameter& parameter);
  /// The moments (1, n) before and after they are rounded to their storage; empty if the rule has
  /// none.
  void computed(const TensorView& first, const TensorView& second);
  void stored(const TensorView& first, const TensorView& second, float epsilon);

  /// Returns the share of weights with a gradient that the update did not change.
  double lost() const;
  std::int64_t with_gradient() const { return with_gradient_; }
  /// True if moments were computed in FP32 apart from their storage.
  bool has_moments() const { return elements_ > 0; }
  /// True if second moments are among these, as AdamW has them beside Muon.
  bool has_second_moments() const { return has_second_moments_; }
  std::int64_t elements() const { return elements_; }
  double first_moment() const { return first_.relative(); }
  double second_moment() const { return second_.relative(); }
  /// Relative error of m / (sqrt(v) + epsilon), the direction of AdamW.
  double direction() const { return direction_.relative(); }

 private:
  struct Error {
    void add(double exact, double rounded) {
      noise += (exact - rounded) * (exact - rounded);
      signal += exact * exact;
    }
    /// 0 for a tensor of zeros that is stored as zeros.
    double relative() const;
    double noise = 0, signal = 0;
  };

  std::vector<float> values_of(const TensorView& view) const;

  Backend& backend_;
  std::vector<float> weights_, first_moment_, second_moment_;  // of the present parameter
  bool has_second_moments_ = false;
  std::int64_t with_gradient_ = 0, unchanged_ = 0, elements_ = 0;
  Error first_, second_, direction_;
};

}  // namespace fp8lab
