#include <cstdint>
#include <type_traits>

#include "kernels/pointwise/activations.cuh"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/cuda_handles.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class A, class B, class Sum>
struct Add {
  Rows<A> a;
  Rows<B> b;
  Rows<Sum> sum;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float left[kGroup], right[kGroup], result[kGroup];
    a.load_group(row, col, count, left);
    b.load_group(row, col, count, right);
    for (int i = 0; i < kGroup; ++i) result[i] = left[i] + right[i];
    sum.store_group(row, col, count, result);
  }
};

/// (a * factor_a) + (b * factor_b), or a * factor_a.
template <bool kTwo, class A, class B, class Sum>
struct WeightedSum {
  Rows<A> a;
  Rows<B> b;
  Rows<Sum> sum;
  float factor_a, factor_b;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float left[kGroup], right[kGroup], result[kGroup];
    a.load_group(row, col, count, left);
    if constexpr (kTwo) b.load_group(row, col, count, right);
    for (int i = 0; i < kGroup; ++i) {
      result[i] = left[i] * factor_a;
      if constexpr (kTwo) result[i] = result[i] + right[i] * factor_b;
    }
    sum.store_group(row, col, count, result);
  }
};

template <Gate kGate, class In, class Out>
struct MultiplyGate {
  Rows<In> gate, up;
  Rows<Out> out;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float g[kGroup], u[kGroup], result[kGroup];
    gate.load_group(row, col, count, g);
    up.load_group(row, col, count, u);
    if constexpr (kGate == Gate::silu) {
      swiglu(g, u, result);
    } else {
      geglu(g, u, result);
    }
    out.store_group(row, col, count, result);
  }
};

template <Gate kGate, class In, class DOut, class DIn>
struct GateGradient {
  Rows<In> gate, up;
  Rows<DOut> dout;
  Rows<DIn> dgate, dup;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float g[kGroup], u[kGroup], d[kGroup], gate_result[kGroup], up_result[kGroup];
    gate.load_group(row, col, count, g);
    up.load_group(row, col, count, u);
    dout.load_group(row, col, count, d);
    if constexpr (kGate == Gate::silu) {
      swiglu_gradient(g, u, d, gate_result, up_result);
    } else {
      geglu_gradient(g, u, d, gate_result, up_result);
    }
    dgate.store_group(row, col, count, gate_result);
    dup.store_group(row, col, count, up_result);
  }
};

template <Activation kKind, class In, class Out>
struct Activate {
  Rows<In> x;
  Rows<Out> out;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float values[kGroup], result[kGroup];
    x.load_group(row, col, count, values);
    activate<kKind>(values, result);
    out.store_group(row, col, count, result);
  }
};

template <Activation kKind, class In, class DOut, class DIn>
struct ActivateGradient {
  Rows<In> x;
  Rows<DOut> dout;
  Rows<DIn> dx;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float values[kGroup], d[kGroup], result[kGroup];
    x.load_group(row, col, count, values);
    dout.load_group(row, col, count, d);
    activate_gradient<kKind>(values, d, result);
    dx.store_group(row, col, count, result);
  }
};

/// Converts FP32 to FP64. A NaN becomes quiet and keeps sign and payload, as on the CPU; the
/// device's conversion does not guarantee that.
__device__ double to_double(float value) {
  const std::uint32_t bits = numerics::float_bits(value);
  if ((bits & 0x7FFFFFFFu) <= numerics::kF32Infinity) return value;
  const std::uint64_t sign = static_cast<std::uint64_t>(bits >> 31) << 63;
  const std::uint64_t payload = static_cast<std::uint64_t>(bits & 0x7FFFFFu) << 29;
  return numerics::bits_double(sign | 0x7FF8000000000000u | payload);
}

template <class Source, class Destination>
__device__ Destination convert(Source value) {
  if constexpr (sizeof(Destination) == sizeof(double)) {
    return to_double(widen(value));
  } else if constexpr (sizeof(Source) < sizeof(double)) {
    return narrow<Destination>(widen(value));
  } else if constexpr (sizeof(Destination) == sizeof(float)) {
    return numerics::canonical_nan(static_cast<float>(value));
  } else {
    return numerics::bf16_of_double(value);
  }
}

template <class Source, class Destination>
struct Convert {
  Rows<Source> source;
  Rows<Destination> destination;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    Source in[kGroup];
    Destination out[kGroup];
    source.load_bits(row, col, count, in);
    for (int i = 0; i < kGroup; ++i) out[i] = convert<Source, Destination>(in[i]);
    destination.store_bits(row, col, count, out);
  }
};

template <class Source, class Destination>
void launch_convert(Context& context, const TensorView& source, const TensorView& destination) {
  if constexpr (!std::is_same_v<Source, Destination>) {  // never called for equal types
    const Convert<Source, Destination> body{rows_of<Source>(source),
                                            rows_of<Destination>(destination)};
    launch_groups(context, source.rows, source.cols, body, "copy");
  }
}

template <class Source>
void convert_from(Context& context, const TensorView& source, const TensorView& destination) {
  switch (destination.dtype) {
    case DType::bf16: return launch_convert<Source, std::uint16_t>(context, source, destination);
    case DType::f32: return launch_convert<Source, float>(context, source, destination);
    default: return launch_convert<Source, double>(context, source, destination);
  }
}

/// Copies rows of bytes. Precondition: both tensors have the same type.
void copy_bytes(Context& context, const TensorView& source, const TensorView& destination) {
  if (source.size() == 0) return;
  const std::size_t size = size_of(source.dtype);
  const auto count = static_cast<std::size_t>(source.size());
  if (source.contiguous() && destination.contiguous()) {
    check(cudaMemcpyAsync(destination.data, source.data, count * size, cudaMemcpyDeviceToDevice,
                          context.stream()),
          "cudaMemcpyAsync");
    return;
  }
  check(cudaMemcpy2DAsync(destination.data, static_cast<std::size_t>(destination.row_stride) * size,
                          source.data, static_cast<std::size_t>(source.row_stride) * size,
                          static_cast<std::size_t>(source.cols) * size,
                          static_cast<std::size_t>(source.rows), cudaMemcpyDeviceToDevice,
                          context.stream()),
        "cudaMemcpy2DAsync");
}

}  // namespace

void run(Context& context, const ops::Copy& op) {
  op.check();
  if (op.source.dtype == op.destination.dtype)
    return copy_bytes(context, op.source, op.destination);
  const bool flat = op.source.contiguous() && op.destination.contiguous();
  const TensorView from = flat ? op.source.flat() : op.source;
  const TensorView to = flat ? op.destination.flat() : op.destination;
  switch (from.dtype) {
    case DType::bf16: return convert_from<std::uint16_t>(context, from, to);
    case DType::f32: return convert_from<float>(context, from, to);
    default: return convert_from<double>(context, from, to);
  }
}

void run(Context& context, const ops::Add& op) {
  op.check();
  const bool flat = op.a.contiguous() && op.b.contiguous() && op.sum.contiguous();
  with_rows(
      [&]<class A, class B, class Sum>(const Rows<A>& left, const Rows<B>& right,
                                       const Rows<Sum>& result) {
        const Add<A, B, Sum> body{left, right, result};
        launch_groups(context, flat ? 1 : op.a.rows, flat ? op.a.size() : op.a.cols, body, "add");
      },
      flat ? op.a.flat() : op.a, flat ? op.b.flat() : op.b, flat ? op.sum.flat() : op.sum);
}

void run(Context& context, const ops::WeightedSum& op) {
  op.check();
  if (op.b.empty()) {
    return with_rows(
        [&]<class A, class Sum>(const Rows<A>& a, const Rows<Sum>& result) {
          const WeightedSum<false, A, A, Sum> body{a, a, result, op.factor_a, 0.0f};
          launch_groups(context, op.a.rows, op.a.cols, body, "weighted_sum");
        },
        op.a, op.sum);
  }
  with_rows(
      [&]<class A, class B, class Sum>(const Rows<A>& a, const Rows<B>& b,
                                       const Rows<Sum>& result) {
        const WeightedSum<true, A, B, Sum> body{a, b, result, op.factor_a, op.factor_b};
        launch_groups(context, op.a.rows, op.a.cols, body, "weighted_sum");
      },
      op.a, op.b, op.sum);
}

void run(Context& context, const ops::GatedForward& op) {
  op.check();
  with_gate(op.gate, [&]<Gate kGate>() {
    with_rows(
        [&]<class In, class Out>(const Rows<In>& gate, const Rows<Out>& result) {
          const Rows<In> up = rows_of<In>(op.gate_up.columns(op.out.cols, op.out.cols));
          const MultiplyGate<kGate, In, Out> body{gate, up, result};
          launch_groups(context, op.out.rows, op.out.cols, body, "gated_forward");
        },
        op.gate_up, op.out);
  });
}

void run(Context& context, const ops::GatedBackward& op) {
  op.check();
  const std::int64_t width = op.dout.cols;
  with_gate(op.gate, [&]<Gate kGate>() {
    with_rows(
        [&]<class In, class DOut, class DIn>(const Rows<In>& gate, const Rows<DOut>& d,
                                             const Rows<DIn>& dgate) {
          const Rows<In> up = rows_of<In>(op.gate_up.columns(width, width));
          const Rows<DIn> dup = rows_of<DIn>(op.dgate_up.columns(width, width));
          const GateGradient<kGate, In, DOut, DIn> body{gate, up, d, dgate, dup};
          launch_groups(context, op.dout.rows, width, body, "gated_backward");
        },
        op.gate_up, op.dout, op.dgate_up);
  });
}

void run(Context& context, const ops::ActivationForward& op) {
  op.check();
  with_activation(op.kind, [&]<Activation kKind>() {
    with_rows(
        [&]<class In, class Out>(const Rows<In>& in, const Rows<Out>& result) {
          const Activate<kKind, In, Out> body{in, result};
          launch_groups(context, op.out.rows, op.out.cols, body, "activation_forward");
        },
        op.x, op.out);
  });
}

void run(Context& context, const ops::ActivationBackward& op) {
  op.check();
  with_activation(op.kind, [&]<Activation kKind>() {
    with_rows(
        [&]<class In, class DOut, class DIn>(const Rows<In>& in, const Rows<DOut>& d,
                                             const Rows<DIn>& result) {
          const ActivateGradient<kKind, In, DOut, DIn> body{in, d, result};
          launch_groups(context, op.dx.rows, op.dx.cols, body, "activation_backward");
        },
        op.x, op.dout, op.dx);
  });
}

}  // namespace fp8lab::cuda
