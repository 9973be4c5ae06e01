// A backend that passes the forward GEMMs of linear layers, and attention, to visitors.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/model/linear/linear.hpp"

namespace fp8lab {

/// Runs every operation on `original`, except the forward GEMMs of watched layers: those it passes
/// to a visitor. Precondition: watched layers multiply x and w as they are stored, as in recipe
/// bf16.
class LinearProducts final : public PassThrough {
 public:
  /// `linear` is an index in the order of Declaration::linears(). The visitor must run `op`, or
  /// another operation that fills op.d, on `original`.
  using Visit = std::function<void(Backend& original, std::size_t linear, const ops::Gemm& op)>;

  /// Called before the attention of each layer, in layer order.
  using VisitAttention = std::function<void(const ops::AttentionForward& op)>;

  /// Precondition: `original` outlives this.
  explicit LinearProducts(Backend& original) : PassThrough(original) {}

  /// Starts to pass the forward GEMMs of `linears`, which are on this backend, to `visit`, and
  /// attention to `visit_attention`. An empty function stops that kind of visit.
  void watch(const std::vector<std::unique_ptr<Linear>>& linears, Visit visit,
             VisitAttention visit_attention = {});

#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { pass(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  template <class Op>
  void pass(const Op& op) {
    original().run(op);
  }
  void pass(const ops::Gemm& op);
  void pass(const ops::Product& op);
  void pass(const ops::AttentionForward& op);

  std::map<std::string, std::size_t> layers_;  ///< index by name
  Visit visit_;
  VisitAttention visit_attention_;
};

}  // namespace fp8lab
