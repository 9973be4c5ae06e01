// A backend in the place of another one.
#pragma once

#include <string>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Answers every question as the backend does that it stands for.
class StandIn : public Backend {
 public:
  std::string name() const override { return original_.name(); }
  std::string device() const override { return original_.device(); }
  bool is_on_host() const override { return original_.is_on_host(); }
  DType storage(DType wanted) const override { return original_.storage(wanted); }
  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override {
    return original_.allocation_bytes(dtype, rows, cols);
  }
#define FP8LAB_OPERATION(Name) \
  Support supports(const ops::Name& op) const override { return original_.supports(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 protected:
  /// `original` must outlive this.
  explicit StandIn(const Backend& original) : original_(original) {}

 private:
  const Backend& original_;
};

}  // namespace fp8lab
