#include "src/replay/operation_trace.hpp"

#include <tuple>
#include <utility>
#include <variant>

namespace fp8lab {
namespace {

/// Returns the GEMM that an operation is or begins with; null for other operations.
const ops::Gemm* gemm_of(const AnyOperation& op) {
  if (const auto* const* product = std::get_if<const ops::Product*>(&op)) return &(*product)->gemm;
  const auto* const* gemm = std::get_if<const ops::Gemm*>(&op);
  return gemm == nullptr ? nullptr : *gemm;
}

bool is_alone(const AnyOperation& op) {
  int parts = 1;
  if (const auto* const* product = std::get_if<const ops::Product*>(&op)) {
    parts = 0;
    (*product)->for_each_part([&](const auto&) { ++parts; });
  }
  return parts == 1;
}

/// Returns `operand` with its codes and scales in host memory.
QuantizedOperand on_host(const QuantizedOperand& operand, const HostCopy& codes,
                         const HostCopy& scales) {
  QuantizedOperand copy = operand;
  copy.codes = codes.view;
  copy.scales = scales.view;
  copy.key.step_counter = nullptr;
  return copy;
}

}  // namespace

bool TracedOutput::is_same_as(const TracedOutput& other) const {
  const auto identity = [](const TracedOutput& o) {
    return std::tie(o.label.micro_batch, o.label.phase, o.label.layer, o.label.gemm, o.kind, o.name,
                    o.part, o.dtype, o.rows, o.cols);
  };
  return identity(*this) == identity(other);
}

void TraceObserver::after(const AnyOperation& op, const Label& label) {
  const bool is_named_upload = std::holds_alternative<const Upload*>(op) && !label.tensor.empty();
  std::int64_t index = 0;
  for (const OperationTensor& output : outputs_of(op)) {
    const TensorView& view = output.view;
    outputs_.push_back({operation_, index++, label, operation_name(op),
                        is_named_upload ? label.tensor : std::string(output.name),
                        is_named_upload ? std::string() : part_of(label, output), view.dtype,
                        view.rows, view.cols, 0});
    hashes_.add(view);
  }
  ++operation_;
}

std::vector<TracedOutput> TraceObserver::take() {
  const std::vector<std::uint64_t> hashes = hashes_.take();
  FP8LAB_ASSERT(hashes.size() == outputs_.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) outputs_[i].hash = hashes[i];
  return std::exchange(outputs_, {});
}

HostCopy download(Backend& backend, const TensorView& view) {
  HostCopy matrix;
  if (view.empty()) return matrix;
  matrix.bytes.resize(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  backend.download(matrix.bytes.data(), view);
  matrix.view = {matrix.bytes.data(), view.dtype, view.rows, view.cols, view.cols};
  return matrix;
}

void CaptureObserver::before(const AnyOperation& op, const Label&) {
  const ops::Gemm* const gemm = operation_ == wanted_ ? gemm_of(op) : nullptr;
  if (gemm != nullptr && gemm->accumulate) before_ = download(backend_, gemm->d);
}

void CaptureObserver::after(const AnyOperation& op, const Label&) {
  if (operation_++ != wanted_) return;
  for (const OperationTensor& output : outputs_of(op)) {
    captured_.outputs.push_back(download(backend_, output.view));
    captured_.quantizers.emplace_back();
    if (output.operand != nullptr) captured_.quantizers.back() = output.operand->spec;
  }
  const ops::Gemm* const gemm = gemm_of(op);
  if (gemm == nullptr) return;
  CapturedGemm& copy = captured_.gemm.emplace();
  copy.spec = gemm->spec;
  copy.a_codes = download(backend_, gemm->a.codes);
  copy.a_scales = download(backend_, gemm->a.scales);
  copy.b_codes = download(backend_, gemm->b.codes);
  copy.b_scales = download(backend_, gemm->b.scales);
  copy.bias = download(backend_, gemm->bias);
  copy.a = on_host(gemm->a, copy.a_codes, copy.a_scales);
  copy.b = on_host(gemm->b, copy.b_codes, copy.b_scales);
  copy.before = std::move(before_);
  copy.is_alone = is_alone(op);
}

}  // namespace fp8lab
