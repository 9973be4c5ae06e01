#include "emulation/recording/timing_backend.hpp"

#include <chrono>

namespace fp8lab {

TimingBackend::TimingBackend(Backend& original) : PassThrough(original) {}

template <class Op, class Call>
void TimingBackend::time(const Op& op, const Call& call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  synchronize();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
  add(log_, op, spent.count());
}

void TimingBackend::fill_zero(const TensorView& view) {
  time(FillZero{view}, [&] { PassThrough::fill_zero(view); });
}

#define FP8LAB_OPERATION(Name)                   \
  void TimingBackend::run(const ops::Name& op) { \
    time(op, [&] { original().run(op); });       \
  }
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab
