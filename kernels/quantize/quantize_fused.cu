#include "kernels/quantize/quantize_fused.hpp"

#include "emulation/ops/operand_checks.hpp"
#include "kernels/pointwise/activations.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kMostShared = 40960;  ///< bytes of a row that a norm keeps

/// Source of row_kernel: the RMS norm of rows, which is stored. Dynamic shared memory holds a row.
template <class T>
struct NormRows {
  using Element = T;
  using Loaded = Group<T>;
  static constexpr int kBlocks = sizeof(T) == 2 ? 4 : 3;
  Rows<T> x, weight, y;
  float epsilon;
  float* rstd;

  __device__ Loaded load(std::int64_t row, int col, int left) const {
    return load_group(x, row, col, left);
  }
  __device__ float begin(std::int64_t row, int cols, const Loaded (&loaded)[kHeldGroups]) const {
    extern __shared__ uint4 elements[];
    auto* const own = reinterpret_cast<T*>(elements);
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) {
      if (held_col(h) < cols) std::memcpy(own + held_col(h), loaded[h].words, sizeof(Loaded));
    }
    __syncthreads();
    const float squares = block_tree_sum(cols, [own](std::int64_t c) {
      const float value = widen(own[c]);
      return value * value;
    });
    const float mean = squares / static_cast<float>(cols);
    const float r = 1.0f / __fsqrt_rn(mean + epsilon);
    if (threadIdx.x == 0) rstd[row] = numerics::canonical_nan(r);
    return r;
  }
  __device__ Group<T> make(std::int64_t row, int col, int left, float r,
                           const Loaded& loaded) const {
    T bits[kGroup] = {};
    if (left > 0) {
      const int count = min(left, kGroup);
      float values[kGroup];
      const Group<T> w = load_group(weight, 0, col, left);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) values[i] = (loaded.value(i) * r) * w.value(i);
      narrow(values, bits);
      if (left < kGroup) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) bits[i] = i < count ? bits[i] : T{};
      }
      y.store_bits(row, col, count, bits);
    }
    Group<T> made;
    made.set(bits);
    return made;
  }
};

/// Source of row_kernel: SwiGLU, which is stored.
template <class T>
struct SwigluRows {
  using Element = T;
  struct Loaded {
    Group<T> gate, up;
  };
  static constexpr int kBlocks = sizeof(T) == 2 ? 4 : 3;
  Rows<T> gate, up, out;

  __device__ Loaded load(std::int64_t row, int col, int left) const {
    return {load_group(gate, row, col, left), load_group(up, row, col, left)};
  }
  __device__ float begin(std::int64_t, int, const Loaded (&)[kHeldGroups]) const { return 0.0f; }
  __device__ Group<T> make(std::int64_t row, int col, int left, float, const Loaded& loaded) const {
    T bits[kGroup] = {};
    if (left > 0) {
      float g[kGroup], u[kGroup], values[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) g[i] = loaded.gate.value(i), u[i] = loaded.up.value(i);
      swiglu(g, u, values);  // 0 of zeros
      narrow(values, bits);
      out.store_bits(row, col, min(left, kGroup), bits);
    }
    Group<T> made;
    made.set(bits);
    return made;
  }
};

/// Runs row_kernel over the rows of `shape` with the scales of the operand.
template <class Source>
void launch_source(Context& context, const Source& source, const TensorView& shape,
                   std::size_t shared, const TensorView& state, const QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  with_cast(spec, [&]<class Cast>() {
    const auto launch = [&]<RowScales kScales>(const BlockOperand& block, std::uint32_t* amax) {
      launch_rows<kScales, Cast>(context, source, shape.rows, shape.cols, block, amax, shared);
    };
    if (has_row_scales(spec)) {
      launch.template operator()<RowScales::row>(block_factors(operand, nullptr, 0), nullptr);
    } else if (has_known_scale(spec)) {
      auto* const factor = static_cast<float*>(context.workspace(kAlignment));
      launch.template operator()<RowScales::given>(
          block_known(context, operand, false, state, factor),
          spec.scale_source == ScaleSource::delayed ? amax_of(state) : nullptr);
    } else {
      launch.template operator()<RowScales::tiles>(block_tiles(operand, false), nullptr);
    }
  });
}

/// True when the scale of an element depends on nothing outside its row, or is known.
bool has_row_local_scales(const QuantSpec& spec) {
  return !spec.transform &&
         (has_row_scales(spec) || has_known_scale(spec) ||
          (has_block_tiles(spec) && !needs_tensor_amax(spec) && spec.tile.rows == 1));
}

/// True for a result of rows that a block holds.
bool has_row_type(const TensorView& result) {
  return (result.dtype == DType::bf16 || result.dtype == DType::f32) && result.size() > 0 &&
         result.cols <= kLongestRow;
}

/// Calls launch(value of the storage type of `view`).
template <class Launch>
void with_type(const TensorView& view, const Launch& launch) {
  if (view.dtype == DType::bf16) {
    launch(std::uint16_t{});
  } else {
    launch(float{});
  }
}

bool can_quantize(const ops::RmsNormForward& norm, const QuantSpec& spec) {
  const TensorView& y = norm.y;
  const bool one_type = has_row_type(y) && norm.x.dtype == y.dtype && norm.weight.dtype == y.dtype;
  const auto bytes = static_cast<std::size_t>(y.cols) * size_of(y.dtype);
  return norm.weight.cols == norm.x.cols && one_type && bytes <= kMostShared &&
         has_row_local_scales(spec);
}

void produce(Context& context, const ops::RmsNormForward& norm, const ops::ProduceQuantize& op) {
  const TensorView& x = norm.x;
  with_type(norm.y, [&]<class T>(T) {
    const NormRows<T> source{rows_of<T>(x), rows_of<T>(norm.weight), rows_of<T>(norm.y),
                             norm.epsilon, norm.rstd.row<float>(0)};
    const auto groups = static_cast<std::size_t>((x.cols + kGroup - 1) / kGroup);
    launch_source(context, source, norm.y, groups * kGroup * sizeof(T), op.state, op.first);
  });
}

bool can_quantize(const ops::SwigluForward& swiglu, const QuantSpec& spec) {
  return has_row_type(swiglu.out) && swiglu.gate_up.dtype == swiglu.out.dtype &&
         has_row_local_scales(spec);
}

void produce(Context& context, const ops::SwigluForward& swiglu, const ops::ProduceQuantize& op) {
  const TensorView& out = swiglu.out;
  with_type(out, [&]<class T>(T) {
    const SwigluRows<T> source{rows_of<T>(swiglu.gate_up.columns(0, out.cols)),
                               rows_of<T>(swiglu.gate_up.columns(out.cols, out.cols)),
                               rows_of<T>(out)};
    launch_source(context, source, out, 0, op.state, op.first);
  });
}

/// True where it has been done.
template <class Producer>
bool try_to_produce(Context& context, const Producer& producer, const ops::ProduceQuantize& op) {
  if (!can_quantize(producer, op.first.spec)) return false;
  producer.check();
  ops::Quantize{producer.output(), false, op.key, op.state, op.first}.check();
  op.first.key = op.key;
  produce(context, producer, op);
  return true;
}

}  // namespace

bool produce_quantize(Context& context, const ops::ProduceQuantize& op) {
  if (op.second != nullptr) return produce_quantize_both(context, op);
  if (const auto* const norm = std::get_if<ops::RmsNormForward>(&op.producer)) {
    return try_to_produce(context, *norm, op);
  }
  if (const auto* const swiglu = std::get_if<ops::SwigluForward>(&op.producer)) {
    return try_to_produce(context, *swiglu, op);
  }
  return false;
}

}  // namespace fp8lab::cuda
