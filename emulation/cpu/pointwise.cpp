#include <cstring>
#include <string>
#include <vector>

#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {
namespace {

/// BF16 bits of a double, rounded once to nearest even: first to odd in FP32, whose 16 extra bits
/// are enough for the second rounding to be the right one.
std::uint16_t bf16_of_double(const PointwiseKernels& kernels, double value) {
  float nearest = static_cast<float>(value);
  const double back = nearest;
  std::uint32_t bits = __builtin_bit_cast(std::uint32_t, nearest);
  if (back != value && value == value && (bits & 1u) == 0) {
    // Inexact with an even last bit: the neighbour on the other side of `value` is the odd one.
    const bool away = (back < value) == (value > 0.0);
    bits = away ? bits + 1u : bits - 1u;
    nearest = __builtin_bit_cast(float, bits);
  }
  std::uint16_t result = 0;
  kernels.narrow(&nearest, 1, &result);
  return result;
}

void copy_row(const PointwiseKernels& kernels, const TensorView& source,
              const TensorView& destination, std::int64_t row, float* scratch) {
  const std::int64_t n = source.cols;
  if (source.dtype == DType::f64) {
    const double* values = source.row<double>(row);
    if (destination.dtype == DType::bf16) {
      std::uint16_t* out = destination.row<std::uint16_t>(row);
      for (std::int64_t c = 0; c < n; ++c) out[c] = bf16_of_double(kernels, values[c]);
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

bool is_float(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

void copy(const TensorView& source, const TensorView& destination) {
  const Checks checks("copy");
  checks.require(!source.empty(), "the source is missing");
  const bool same = source.dtype == destination.dtype;
  checks.tensor("destination", destination, source.rows, source.cols,
                same ? std::initializer_list<DType>{source.dtype}
                     : std::initializer_list<DType>{DType::bf16, DType::f32, DType::f64});
  checks.require(same || is_float(source.dtype),
                 "source " + describe(source) + " converts to its own type only");
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::size_t row_bytes = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
#pragma omp parallel
  {
    std::vector<float> scratch(same ? 0 : static_cast<std::size_t>(source.cols));
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < source.rows; ++row) {
      if (same) {
        // The checks above refuse missing data, which the analyzer does not see.
        // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker)
        std::memmove(destination.row_range(row, 1).data, source.row_range(row, 1).data, row_bytes);
      } else {
        copy_row(kernels, source, destination, row, scratch.data());
      }
    }
  }
}

void add(const TensorView& a, const TensorView& b, const TensorView& sum) {
  const Checks checks("add");
  checks.activation("a", a, a.rows, a.cols);
  checks.activation("b", b, a.rows, a.cols);
  checks.activation("sum", sum, a.rows, a.cols);
  const PointwiseKernels& kernels = pointwise_kernels();
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(2 * a.cols));
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const float* left = read_row(kernels, a, row, scratch.data());
      const float* right = read_row(kernels, b, row, scratch.data() + a.cols);
      kernels.add(left, right, a.cols, scratch.data());
      write_row(kernels, scratch.data(), a.cols, sum, row);
    }
  }
}

void swiglu_forward(const TensorView& gate_up, const TensorView& out) {
  const Checks checks("swiglu_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("gate_up", gate_up, out.rows, 2 * out.cols);
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::int64_t width = out.cols;
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(3 * width));
    float* result = scratch.data() + 2 * width;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < out.rows; ++row) {
      const float* gate = read_row(kernels, gate_up, row, scratch.data());
      kernels.swiglu(gate, gate + width, width, result);
      write_row(kernels, result, width, out, row);
    }
  }
}

void swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                     const TensorView& dgate_up) {
  const Checks checks("swiglu_backward");
  const std::int64_t width = dout.cols;
  checks.activation("dout", dout, dout.rows, width);
  checks.activation("gate_up", gate_up, dout.rows, 2 * width);
  checks.activation("dgate_up", dgate_up, dout.rows, 2 * width);
  const PointwiseKernels& kernels = pointwise_kernels();
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(5 * width));
    float* dout_scratch = scratch.data() + 2 * width;
    float* result = dout_scratch + width;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < dout.rows; ++row) {
      const float* gate = read_row(kernels, gate_up, row, scratch.data());
      const float* d = read_row(kernels, dout, row, dout_scratch);
      kernels.swiglu_gradient(gate, gate + width, d, width, result, result + width);
      write_row(kernels, result, 2 * width, dgate_up, row);
    }
  }
}

}  // namespace fp8lab::cpu
