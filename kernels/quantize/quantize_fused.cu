#include "kernels/quantize/quantize_fused.hpp"

#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/activations.cuh"
#include "kernels/pointwise/rmsnorm_rows.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

/// Source of row_kernel: SwiGLU, whose result is also stored.
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
      swiglu(g, u, values);  // zeros from zeros
      narrow(values, bits);
      out.store_bits(row, col, min(left, kGroup), bits);
    }
    Group<T> made;
    made.set(bits);
    return made;
  }
};

/// Runs row_kernel over the rows of `shape` with the kind of scales that the operand has.
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

/// Returns true if the scale of an element depends only on its row, or is known beforehand.
bool has_row_local_scales(const QuantSpec& spec) {
  return !spec.transform &&
         (has_row_scales(spec) || has_known_scale(spec) ||
          (has_block_tiles(spec) && !needs_tensor_amax(spec) && spec.tile.rows == 1));
}

/// Returns true if a block can hold a row of the result.
bool has_row_type(const TensorView& result) {
  return (result.dtype == DType::bf16 || result.dtype == DType::f32) && result.size() > 0 &&
         result.cols <= kLongestRow;
}

bool can_quantize(const ops::RmsNormForward& norm, const QuantSpec& spec) {
  return (has_held_rows<std::uint16_t>(norm) || has_held_rows<float>(norm)) &&
         has_row_local_scales(spec);
}

void produce(Context& context, const ops::RmsNormForward& norm, const ops::ProduceQuantize& op) {
  with_rows(
      [&]<class T>(const Rows<T>&) {
        const NormRows<T, false> source(norm);
        launch_source(context, source, norm.y, source.shared_bytes(norm.y.cols), op.state,
                      op.first);
      },
      norm.y);
}

bool can_quantize(const ops::AddRmsNormForward& norm, const QuantSpec& spec) {
  return has_held_rows<std::uint16_t>(norm) && has_row_local_scales(spec);
}

void produce(Context& context, const ops::AddRmsNormForward& op, const ops::ProduceQuantize& both) {
  const NormRows<std::uint16_t, true> source(op);
  const TensorView& y = op.output();
  launch_source(context, source, y, source.shared_bytes(y.cols), both.state, both.first);
}

bool can_quantize(const ops::SwigluForward& swiglu, const QuantSpec& spec) {
  return has_row_type(swiglu.out) && swiglu.gate_up.dtype == swiglu.out.dtype &&
         has_row_local_scales(spec);
}

void produce(Context& context, const ops::SwigluForward& swiglu, const ops::ProduceQuantize& op) {
  const TensorView& out = swiglu.out;
  with_rows(
      [&]<class T>(const Rows<T>& made) {
        const SwigluRows<T> source{rows_of<T>(swiglu.gate_up.columns(0, out.cols)),
                                   rows_of<T>(swiglu.gate_up.columns(out.cols, out.cols)), made};
        launch_source(context, source, out, 0, op.state, op.first);
      },
      out);
}

/// Runs the fused kernel if there is one; returns false if it did nothing.
template <class Producer>
bool try_to_produce(Context& context, const Producer& producer, const ops::ProduceQuantize& op) {
  if (!can_quantize(producer, op.first.spec)) return false;
  producer.check();
  ops::Quantize{.source = producer.output(), .state = op.state, .operand = op.first}.check();
  produce(context, producer, op);
  return true;
}

}  // namespace

bool produce_quantize(Context& context, const ops::ProduceQuantize& op) {
  if (op.second != nullptr) return produce_quantize_both(context, op);
  if (const auto* const norm = std::get_if<ops::RmsNormForward>(&op.producer)) {
    return try_to_produce(context, *norm, op);
  }
  if (const auto* const norm = std::get_if<ops::AddRmsNormForward>(&op.producer)) {
    return try_to_produce(context, *norm, op);
  }
  if (const auto* const swiglu = std::get_if<ops::SwigluForward>(&op.producer)) {
    return try_to_produce(context, *swiglu, op);
  }
  return false;
}

}  // namespace fp8lab::cuda
