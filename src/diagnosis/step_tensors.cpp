#include "src/diagnosis/step_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "emulation/recording/observed_backend.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {
namespace {

bool holds_values(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

/// Computes the statistics of `tensor` from its values.
void measure(const std::vector<float>& values, StepTensor& tensor) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  std::size_t zeros = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++tensor.nonfinite;
      continue;
    }
    sum += value;
    tensor.amax = std::max(tensor.amax, std::abs(static_cast<double>(value)));
    zeros += value == 0.0f ? 1 : 0;
  }
  tensor.zeros = static_cast<double>(zeros) / count;
  tensor.mean = tensor.deviation = std::numeric_limits<double>::quiet_NaN();
  if (tensor.nonfinite > 0) return;
  tensor.mean = sum / count;
  double squares = 0;
  for (const float value : values) squares += (value - tensor.mean) * (value - tensor.mean);
  tensor.deviation = std::sqrt(squares / count);
}

class TensorObserver final : public OperationObserver {
 public:
  explicit TensorObserver(Backend& backend) : backend_(backend) {}

  void after(const AnyOperation& op, const Label& label) override {
    if (label.phase == Phase::load) return;
    for (const OperationTensor& output : outputs_of(op)) {
      if (!holds_values(output.view.dtype) || output.operand != nullptr) continue;
      StepTensor tensor;
      tensor.phase = name_of(label.phase);
      tensor.layer = label.layer;
      tensor.operation = operation_name(op);
      if (!label.gemm.empty()) tensor.operation += fmt::format(" ({})", label.gemm);
      tensor.output = output.name;
      tensor.rows = output.view.rows;
      tensor.cols = output.view.cols;
      values_.resize(static_cast<std::size_t>(output.view.size()));
      if (values_.empty()) continue;
      download_floats(backend_, output.view, values_);
      measure(values_, tensor);
      tensors_.push_back(std::move(tensor));
    }
  }

  std::vector<StepTensor> take() { return std::move(tensors_); }

 private:
  Backend& backend_;
  std::vector<float> values_;
  std::vector<StepTensor> tensors_;
};

}  // namespace

std::vector<StepTensor> tensors_of_step(Backend& backend, const CheckpointedRun& run,
                                        const StepBatch& step) {
  const std::size_t mark = backend.memory_mark();
  std::vector<StepTensor> tensors;
  {
    ObservedBackend observed(backend);
    CheckpointAtWork work(observed, run);
    TensorObserver observer(backend);
    observed.observe(&observer);
    work.take(step);
    observed.observe(nullptr);
    tensors = observer.take();
  }
  backend.release_to(mark);
  return tensors;
}

}  // namespace fp8lab
