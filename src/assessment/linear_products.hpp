// A backend that shows the forward products of linear layers, and attention, before it runs them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/model/linear.hpp"

namespace fp8lab {

/// Runs everything on `original`. Of watched layers, which multiply x and w as they are stored (as
/// recipe bf16 has it), it hands the product of the forward pass to a visitor instead.
class LinearProducts final : public PassThrough {
 public:
  /// `linear` counts in the order of Declaration::linears(). Either runs `op`, or another one that
  /// fills op.d, on the backend that it is given.
  using Visit = std::function<void(Backend& original, std::size_t linear, const ops::Gemm& op)>;

  /// Of the attention of each layer, in their order, which runs afterwards.
  using VisitAttention = std::function<void(const ops::AttentionForward& op)>;

  /// `original` must outlive this.
  explicit LinearProducts(Backend& original) : PassThrough(original) {}

  /// From now on shows the products of `linears`, on this backend; without `visit`, no more. The
  /// same of attention.
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

  std::map<const void*, std::size_t> weights_;  ///< layers by where their weights lie
  Visit visit_;
  VisitAttention visit_attention_;
};

}  // namespace fp8lab
