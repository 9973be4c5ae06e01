#include "kernels/quantize/quantize_fused.hpp"

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
                   std::size_t shared, const ops::ProduceQuantize& op, const QuantizePlan& plan) {
  const QuantizedOperand& operand = op.first;
  with_cast(operand.spec, [&]<class Cast>() {
    const auto launch = [&]<RowScales kScales>(const BlockOperand& block, std::uint32_t* amax) {
      launch_rows<kScales, Cast>(context, source, shape.rows, shape.cols, block, amax, shared);
    };
    if (plan.scales == ScaleStep::known) {
      auto* const factor = static_cast<float*>(context.workspace(kAlignment));
      launch.template operator()<RowScales::given>(
          block_known(context, operand, false, op.state, factor),
          plan.raises_amax ? amax_of(op.state) : nullptr);
    } else if (operand.spec.tile.is_row()) {
      launch.template operator()<RowScales::row>(block_factors(operand, nullptr, 0), nullptr);
    } else {
      launch.template operator()<RowScales::tiles>(block_tiles(operand, false), nullptr);
    }
  });
}

void produce(Context& context, const ops::RmsNormForward& norm, const ops::ProduceQuantize& op,
             const QuantizePlan& plan) {
  with_rows(
      [&]<class T>(const Rows<T>&) {
        const NormRows<T, false> source(norm);
        launch_source(context, source, norm.y, source.shared_bytes(norm.y.cols), op, plan);
      },
      norm.y);
}

void produce(Context& context, const ops::AddRmsNormForward& norm, const ops::ProduceQuantize& op,
             const QuantizePlan& plan) {
  const NormRows<std::uint16_t, true> source(norm);
  const TensorView& y = norm.output();
  launch_source(context, source, y, source.shared_bytes(y.cols), op, plan);
}

void produce(Context& context, const ops::GatedForward& swiglu, const ops::ProduceQuantize& op,
             const QuantizePlan& plan) {
  const TensorView& out = swiglu.out;
  with_rows(
      [&]<class T>(const Rows<T>& made) {
        const SwigluRows<T> source{rows_of<T>(swiglu.gate_up.columns(0, out.cols)),
                                   rows_of<T>(swiglu.gate_up.columns(out.cols, out.cols)), made};
        launch_source(context, source, out, 0, op, plan);
      },
      out);
}

/// A row of the table of fusions without a kernel here.
template <class Producer>
void produce(Context&, const Producer&, const ops::ProduceQuantize&, const QuantizePlan&) {
  FP8LAB_ASSERT(false);
}

}  // namespace

void produce_quantize(Context& context, const ops::ProduceQuantize& op, const ProducePlan& plan) {
  op.check();
  if (op.second != nullptr) return produce_quantize_both(context, op, plan);
  std::visit([&](const auto& producer) { produce(context, producer, op, plan.first); },
             op.producer);
}

}  // namespace fp8lab::cuda
