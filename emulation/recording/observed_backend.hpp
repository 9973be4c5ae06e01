// A backend that shows every operation to an observer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "emulation/ops/tensors.hpp"
#include "emulation/recording/stand_in.hpp"

namespace fp8lab {

/// Backend::upload as an operation.
struct Upload {
  static constexpr std::string_view kName = "upload";
  TensorView destination;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(ops::writes("destination", destination));
  }
};

/// Any operation; a composite is one operation.
#define FP8LAB_OPERATION(Name) const ops::Name*,
using AnyOperation = std::variant<FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
                                      FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION) const Upload*>;
#undef FP8LAB_OPERATION

/// "gemm", "adamw", "upload", ...; for an output that is quantized as it is computed the name of
/// the operation that computes it, "rmsnorm_forward and quantize".
std::string operation_name(const AnyOperation& op);

/// tensors_of and outputs_of the operation that `op` points to.
std::vector<OperationTensor> tensors_of(const AnyOperation& op);
std::vector<OperationTensor> outputs_of(const AnyOperation& op);

/// The operand that an output of an operation belongs to, "fprop.x"; for other outputs the tensor
/// of the operation's label, "x".
std::string part_of(const Label& label, const OperationTensor& output);

/// Sees each operation, with its label, before and after it runs. It may use the backend's memory:
/// no other operation runs meanwhile.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void before(const AnyOperation&, const Label&) {}
  virtual void after(const AnyOperation&, const Label&) {}
};

/// Runs every operation on `original`. While an observer is set, repeat() enqueues the operations
/// one by one and replays nothing.
class ObservedBackend final : public PassThrough {
 public:
  /// `original` must outlive this.
  explicit ObservedBackend(Backend& original) : PassThrough(original) {}

  /// Shows later operations to `observer`; null removes the observer.
  void observe(OperationObserver* observer) { observer_ = observer; }

  void upload(const TensorView& destination, const void* source) override;
  void repeat(std::unique_ptr<Recorded>& recorded, const std::function<void()>& enqueue) override;
#define FP8LAB_OPERATION(Name) void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  OperationObserver* observer_ = nullptr;
};

}  // namespace fp8lab
