#include "emulation/backend.hpp"

#include <variant>

namespace fp8lab {

void Backend::run(const ops::QuantizeBoth& op) {
  run(op.in_first());
  run(op.in_second());
}

void Backend::run(const ops::ProduceQuantize& op) {
  std::visit([this](const auto& producer) { run(producer); }, op.producer);
  const TensorView& output = ops::output_of(op.producer);
  if (op.second != nullptr) {
    run(ops::QuantizeBoth{output, op.key, op.state, op.first, *op.second});
  } else {
    run(ops::Quantize{output, false, op.key, op.state, op.first});
  }
}

}  // namespace fp8lab
