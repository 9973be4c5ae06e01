// What the storage of the optimizer's states costs in a step: measured on the host, from downloads
// of whole tensors, in steps that are logged.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/parameters.hpp"

namespace fp8lab {

/// Over all parameters together. A relative error is the root of sum (x - x')^2 / sum x^2, in FP64.
class UpdateErrors {
 public:
  explicit UpdateErrors(Backend& backend) : backend_(backend) {}

  /// Called before `parameter` is updated, and after it.
  void before(const Parameter& parameter);
  void after(const Parameter& parameter);
  /// The moments (1, n) as they are computed, and as they come back from their storage. Empty: the
  /// rule has none.
  void computed(const TensorView& first, const TensorView& second);
  void stored(const TensorView& first, const TensorView& second, float epsilon);

  /// Share of the weights with a gradient that the update left as they were.
  double lost() const;
  std::int64_t with_gradient() const { return with_gradient_; }
  /// Of moments that were computed apart from their storage.
  bool has_moments() const { return elements_ > 0; }
  /// Of second moments among these, as AdamW has them beside muon.
  bool has_second_moments() const { return has_second_moments_; }
  std::int64_t elements() const { return elements_; }
  double first_moment() const { return first_.relative(); }
  double second_moment() const { return second_.relative(); }
  /// Of m / (sqrt(v) + epsilon), the direction of AdamW.
  double direction() const { return direction_.relative(); }

 private:
  struct Error {
    void add(double exact, double rounded) {
      noise += (exact - rounded) * (exact - rounded);
      signal += exact * exact;
    }
    /// 0 for a tensor of zeros that stays one.
    double relative() const;
    double noise = 0, signal = 0;
  };

  std::vector<float> values_of(const TensorView& view) const;

  Backend& backend_;
  std::vector<float> weights_, first_moment_, second_moment_;  // of the parameter at hand
  bool has_second_moments_ = false;
  std::int64_t with_gradient_ = 0, unchanged_ = 0, elements_ = 0;
  Error first_, second_, direction_;
};

}  // namespace fp8lab
