#include "emulation/recording/observed_backend.hpp"

namespace fp8lab {
namespace {

template <class Op>
std::string operation_name(const Op& op) {
  return std::string(op.kName);
}

std::string operation_name(const ops::ProduceQuantize& op) {
  return std::visit([](const auto& made) { return operation_name(made); }, op.producer) +
         " and quantize";
}

}  // namespace

std::string operation_name(const AnyOperation& op) {
  return std::visit([](const auto* one) { return operation_name(*one); }, op);
}

std::string part_of(const Label& label, const OperationTensor& output) {
  return output.operand == nullptr ? label.tensor : std::string(output.operand->name);
}

std::vector<OperationTensor> tensors_of(const AnyOperation& op) {
  return std::visit([](const auto* one) { return tensors_of(*one); }, op);
}

std::vector<OperationTensor> outputs_of(const AnyOperation& op) {
  return std::visit([](const auto* one) { return outputs_of(*one); }, op);
}

void ObservedBackend::upload(const TensorView& destination, const void* source) {
  const Upload op{destination};
  if (observer_ != nullptr) observer_->before(&op, label());
  PassThrough::upload(destination, source);
  if (observer_ != nullptr) observer_->after(&op, label());
}

void ObservedBackend::repeat(std::unique_ptr<Recorded>& recorded,
                             const std::function<void()>& enqueue) {
  if (observer_ != nullptr) return enqueue();
  original().repeat(recorded, enqueue);
}

#define FP8LAB_OPERATION(Name)                                 \
  void ObservedBackend::run(const ops::Name& op) {             \
    if (observer_ != nullptr) observer_->before(&op, label()); \
    original().run(op);                                        \
    if (observer_ != nullptr) observer_->after(&op, label());  \
  }
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab
