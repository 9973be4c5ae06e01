// A backend that computes one bit wrong.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "emulation/recording/observed_backend.hpp"
#include "src/backend/factory.hpp"

namespace fp8lab::test {

/// One element of one output of one operation, whose bits `mask` are turned.
struct PlantedFault {
  std::int64_t step = 0;
  std::int64_t operation = 0, output = 0;  ///< as TracedOutput counts them
  std::int64_t row = 0, col = 0;
  std::uint64_t mask = 0;
  // The same in an execution that measures more operands, and so keeps more outputs.
  std::int64_t unmeasured = 0;  ///< number of the operation without measurements
  std::string name{};           ///< of the output
  std::int64_t namesakes = 0;   ///< outputs of this name before it
};

/// Runs everything on the CPU, and turns the bits of one element after its operation, in every
/// execution of that step.
class FaultyBackend final : public PassThrough {
 public:
  explicit FaultyBackend(const PlantedFault& fault)
      : FaultyBackend(make_backend("cpu", 1), fault) {}

  void upload(const TensorView& destination, const void* source) override {
    PassThrough::upload(destination, source);
    // The scalars of a step come before its number.
    if (label().tensor == "step number") {
      std::memcpy(&step_, source, sizeof step_);
      operation_ = 1;
    }
    ++operation_;
  }
#define FP8LAB_OPERATION(Name)             \
  void run(const ops::Name& op) override { \
    original().run(op);                    \
    turn(&op);                             \
  }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  FaultyBackend(std::unique_ptr<Backend> cpu, const PlantedFault& fault)
      : PassThrough(*cpu), cpu_(std::move(cpu)), fault_(fault) {}

  TensorView output_of(const AnyOperation& op) const {
    std::int64_t namesakes = 0;
    for (const OperationTensor& output : outputs_of(op)) {
      if (output.name == fault_.name && namesakes++ == fault_.namesakes) return output.view;
    }
    FAIL("operation " << fault_.unmeasured << " has no output " << fault_.name);
    return {};
  }

  void turn(const AnyOperation& op) {
    // These come where somebody looks; no fault is planted in them.
    if (std::holds_alternative<const ops::HashTensors*>(op) ||
        std::holds_alternative<const ops::MeasureOperand*>(op) ||
        std::holds_alternative<const ops::MeasureBoth*>(op)) {
      return;
    }
    if (operation_++ != fault_.unmeasured || step_ != fault_.step) return;
    const TensorView view = output_of(op);
    const std::size_t width = size_of(view.dtype);
    auto* const element =
        static_cast<std::byte*>(view.data) +
        static_cast<std::size_t>(fault_.row * view.row_stride + fault_.col) * width;
    std::uint64_t bits = 0;
    std::memcpy(&bits, element, width);
    bits ^= fault_.mask;
    std::memcpy(element, &bits, width);
  }

  std::unique_ptr<Backend> cpu_;
  PlantedFault fault_;
  std::int32_t step_ = 0;
  std::int64_t operation_ = 0;  ///< without measurements
};

}  // namespace fp8lab::test
