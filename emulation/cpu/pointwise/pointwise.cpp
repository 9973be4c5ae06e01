#include <cstring>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/xielu.hpp"

namespace fp8lab::cpu {
namespace {

void copy_row(const PointwiseKernels& kernels, const TensorView& source,
              const TensorView& destination, std::int64_t row, float* scratch) {
  const std::int64_t n = source.cols;
  if (source.dtype == DType::f64) {
    const double* values = source.row<double>(row);
    if (destination.dtype == DType::bf16) {
      std::uint16_t* out = destination.row<std::uint16_t>(row);
      for (std::int64_t c = 0; c < n; ++c) out[c] = numerics::bf16_of_double(values[c]);
    } else {
      for (std::int64_t c = 0; c < n; ++c) scratch[c] = static_cast<float>(values[c]);
      write_row(kernels, scratch, n, destination, row);
    }
    return;
  }
  const float* values = read_row(kernels, source, row, scratch);
  if (destination.dtype == DType::f64) {
    double* out = destination.row<double>(row);
    for (std::int64_t c = 0; c < n; ++c) out[c] = values[c];
  } else {
    write_row(kernels, values, n, destination, row);
  }
}

}  // namespace

void run(const ops::Copy& op) {
  op.check();
  const bool same = op.source.dtype == op.destination.dtype;
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::size_t row_bytes = static_cast<std::size_t>(op.source.cols) * size_of(op.source.dtype);
  for_each_row(op.source.rows, same ? 0 : op.source.cols, [&](std::int64_t row, float* scratch) {
    if (same) {
      // The checks above refuse missing data; the analyzer does not see that.
      // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker)
      std::memmove(op.destination.row_range(row, 1).data, op.source.row_range(row, 1).data,
                   row_bytes);
    } else {
      copy_row(kernels, op.source, op.destination, row, scratch);
    }
  });
}

void run(const ops::Add& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  for_each_row(op.a.rows, 2 * op.a.cols, [&](std::int64_t row, float* scratch) {
    const float* left = read_row(kernels, op.a, row, scratch);
    const float* right = read_row(kernels, op.b, row, scratch + op.a.cols);
    kernels.add(left, right, op.a.cols, scratch);
    write_row(kernels, scratch, op.a.cols, op.sum, row);
  });
}

void run(const ops::WeightedSum& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  for_each_row(op.a.rows, 2 * op.a.cols, [&](std::int64_t row, float* scratch) {
    const float* left = read_row(kernels, op.a, row, scratch);
    if (op.b.empty()) {
      kernels.multiply(left, op.factor_a, op.a.cols, scratch);
    } else {
      const float* right = read_row(kernels, op.b, row, scratch + op.a.cols);
      kernels.weighted_sum(left, op.factor_a, right, op.factor_b, op.a.cols, scratch);
    }
    write_row(kernels, scratch, op.a.cols, op.sum, row);
  });
}

void run(const ops::GatedForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const auto multiply_gate = op.gate == Gate::silu ? kernels.swiglu : kernels.geglu;
  const std::int64_t width = op.out.cols;
  for_each_row(op.out.rows, 3 * width, [&](std::int64_t row, float* scratch) {
    const float* gate = read_row(kernels, op.gate_up, row, scratch);
    float* result = scratch + 2 * width;
    multiply_gate(gate, gate + width, width, result);
    write_row(kernels, result, width, op.out, row);
  });
}

void run(const ops::GatedBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const auto gradient = op.gate == Gate::silu ? kernels.swiglu_gradient : kernels.geglu_gradient;
  const std::int64_t width = op.dout.cols;
  for_each_row(op.dout.rows, 5 * width, [&](std::int64_t row, float* scratch) {
    const float* gate = read_row(kernels, op.gate_up, row, scratch);
    const float* d = read_row(kernels, op.dout, row, scratch + 2 * width);
    float* result = scratch + 3 * width;
    gradient(gate, gate + width, d, width, result, result + width);
    write_row(kernels, result, 2 * width, op.dgate_up, row);
  });
}

void run(const ops::ActivationForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const auto activate = op.kind == Activation::relu2 ? kernels.relu2 : kernels.gelu;
  const std::int64_t width = op.out.cols;
  for_each_row(op.out.rows, width, [&](std::int64_t row, float* scratch) {
    activate(read_row(kernels, op.x, row, scratch), width, scratch);
    write_row(kernels, scratch, width, op.out, row);
  });
}

void run(const ops::ActivationBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const auto gradient =
      op.kind == Activation::relu2 ? kernels.relu2_gradient : kernels.gelu_gradient;
  const std::int64_t width = op.dout.cols;
  for_each_row(op.dout.rows, 2 * width, [&](std::int64_t row, float* scratch) {
    const float* x = read_row(kernels, op.x, row, scratch);
    const float* d = read_row(kernels, op.dout, row, scratch + width);
    gradient(x, d, width, scratch);
    write_row(kernels, scratch, width, op.dx, row);
  });
}

namespace {

numerics::XieluFactors xielu_factors(const PointwiseKernels& kernels, const TensorView& p,
                                     const TensorView& n) {
  return numerics::xielu_factors(values_of(kernels, p)[0], values_of(kernels, n)[0]);
}

}  // namespace

void run(const ops::XieluForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const numerics::XieluFactors factors = xielu_factors(kernels, op.p, op.n);
  const std::int64_t width = op.out.cols;
  for_each_row(op.out.rows, width, [&](std::int64_t row, float* scratch) {
    kernels.xielu(read_row(kernels, op.x, row, scratch), factors, width, scratch);
    write_row(kernels, scratch, width, op.out, row);
  });
}

void run(const ops::XieluBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const numerics::XieluFactors factors = xielu_factors(kernels, op.p, op.n);
  const float slope_p = numerics::sigmoid(values_of(kernels, op.p)[0]);
  const float slope_n = numerics::sigmoid(values_of(kernels, op.n)[0]);
  const std::int64_t width = op.dout.cols;
  for_each_row(op.dout.rows, 4 * width, [&](std::int64_t row, float* scratch) {
    const float* x = read_row(kernels, op.x, row, scratch);
    const float* d = read_row(kernels, op.dout, row, scratch + width);
    float* by_p = scratch + 2 * width;
    float* by_n = scratch + 3 * width;
    if (!op.terms.empty()) {
      kernels.xielu_terms(x, d, width, by_p, by_n);
      float* terms = op.terms.row<float>(row);
      terms[0] = numerics::canonical_nan(kernels.sum(by_p, width) * slope_p);
      terms[1] = numerics::canonical_nan(kernels.sum(by_n, width) * slope_n);
    }
    kernels.xielu_gradient(x, factors, d, width, by_p);
    write_row(kernels, by_p, width, op.dx, row);
  });
}

void run(const ops::DynamicTanhForward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const float alpha = values_of(kernels, op.alpha)[0];
  const std::int64_t width = op.out.cols;
  for_each_row(op.out.rows, width, [&](std::int64_t row, float* scratch) {
    kernels.dynamic_tanh(read_row(kernels, op.x, row, scratch), alpha, width, scratch);
    write_row(kernels, scratch, width, op.out, row);
  });
}

void run(const ops::DynamicTanhBackward& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const float alpha = values_of(kernels, op.alpha)[0];
  const std::int64_t width = op.dout.cols;
  for_each_row(op.dout.rows, 4 * width, [&](std::int64_t row, float* scratch) {
    const float* x = read_row(kernels, op.x, row, scratch);
    const float* d = read_row(kernels, op.dout, row, scratch + width);
    float* by_x = scratch + 2 * width;
    float* by_alpha = scratch + 3 * width;
    kernels.dynamic_tanh_slopes(x, alpha, d, width, by_x, by_alpha);
    if (!op.terms.empty()) {
      op.terms.row<float>(row)[0] = numerics::canonical_nan(kernels.sum(by_alpha, width));
    }
    write_row(kernels, by_x, width, op.dx, row);
  });
}

}  // namespace fp8lab::cpu
