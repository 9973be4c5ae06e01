// A backend whose every operation somebody looks at.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "emulation/recording/outputs.hpp"
#include "emulation/recording/stand_in.hpp"

namespace fp8lab {

/// Backend::upload as an operation.
struct Upload {
  static constexpr std::string_view kName = "upload";
  TensorView destination;
};

/// Any operation, composite ones as they are.
#define FP8LAB_OPERATION(Name) const ops::Name*,
using AnyOperation = std::variant<FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
                                      FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION) const Upload*>;
#undef FP8LAB_OPERATION

/// All that an operation or an upload writes.
std::vector<OperationOutput> outputs_of(const AnyOperation& op);

/// May use the backend's memory: nothing else runs meanwhile.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void before(const AnyOperation&) {}
  virtual void after(const AnyOperation&) {}
};

/// Runs everything on `original`. While it is observed, what repeats is enqueued one by one.
class ObservedBackend final : public PassThrough {
 public:
  /// `original` must outlive this.
  explicit ObservedBackend(Backend& original) : PassThrough(original) {}

  /// From now on `observer` sees what is enqueued; null: nobody does.
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
