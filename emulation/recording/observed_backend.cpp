#include "emulation/recording/observed_backend.hpp"

namespace fp8lab {

std::vector<OperationOutput> outputs_of(const Upload& upload) {
  return {{"destination", upload.destination}};
}

std::vector<OperationOutput> outputs_of(const AnyOperation& op) {
  return std::visit([](const auto* one) { return outputs_of(*one); }, op);
}

void ObservedBackend::upload(const TensorView& destination, const void* source) {
  const Upload op{destination};
  if (observer_ != nullptr) observer_->before(&op);
  PassThrough::upload(destination, source);
  if (observer_ != nullptr) observer_->after(&op);
}

void ObservedBackend::repeat(std::unique_ptr<Recorded>& recorded,
                             const std::function<void()>& enqueue) {
  if (observer_ != nullptr) return enqueue();
  original().repeat(recorded, enqueue);
}

#define FP8LAB_OPERATION(Name)                        \
  void ObservedBackend::run(const ops::Name& op) {    \
    if (observer_ != nullptr) observer_->before(&op); \
    original().run(op);                               \
    if (observer_ != nullptr) observer_->after(&op);  \
  }
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab
