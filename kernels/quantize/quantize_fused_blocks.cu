#include "kernels/pointwise/activations.cuh"
#include "kernels/pointwise/rmsnorm.hpp"
#include "kernels/quantize/quantize_blocks.cuh"
#include "kernels/quantize/quantize_fused.hpp"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {
namespace {

using Bf16 = std::uint16_t;
constexpr std::size_t kAlignment = 256;

/// Operations of MadeBlocks: each computes kResults groups from kInputs
/// groups, and zeros from zeros.
struct Swiglu {
  static constexpr int kInputs = 2, kResults = 1;
  static __device__ void make(const float (&in)[2][kGroup], float (&out)[1][kGroup]) {
    swiglu(in[0], in[1], out[0]);
  }
};
struct SwigluGradient {
  static constexpr int kInputs = 3, kResults = 2;
  static __device__ void make(const float (&in)[3][kGroup], float (&out)[2][kGroup]) {
    swiglu_gradient(in[0], in[1], in[2], out[0], out[1]);
  }
};
template <Activation kKind>
struct Activate {
  static constexpr int kInputs = 1, kResults = 1;
  static __device__ void make(const float (&in)[1][kGroup], float (&out)[1][kGroup]) {
    activate<kKind>(in[0], out[0]);
  }
};
template <Activation kKind>
struct ActivateGradient {
  static constexpr int kInputs = 2, kResults = 1;
  static __device__ void make(const float (&in)[2][kGroup], float (&out)[1][kGroup]) {
    activate_gradient<kKind>(in[0], in[1], out[0]);
  }
};

/// Source of block_kernel: an element-wise operation on bf16 matrices. If there is a second patch,
/// it belongs to the second half of the result, at the same position in it. A thread computes its
/// patches row by row into its own slots of shared memory, and then loads a patch at a time.
template <class Maker>
struct MadeBlocks {
  using Element = Bf16;
  static constexpr int kPatches = Maker::kResults;
  static constexpr int kSlots = kPatches * kGroup;  ///< slots of a thread, each a row of a patch
  static constexpr int kShared = kSlots * kBlockThreads * static_cast<int>(sizeof(uint4));
  static_assert(sizeof(Group<Bf16>) == sizeof(uint4));
  static constexpr bool kHasSquares = false;  ///< only weights have square tiles
  static constexpr int blocks(bool) { return 3; }

  Rows<Bf16> inputs[Maker::kInputs];
  Rows<Bf16> result;  ///< its data is null if the result is not an output
  bool wide_inputs;

  bool wide() const { return wide_inputs && (result.data == nullptr || result.wide); }
  template <class Place>
  __device__ void load(const Place& at, Patch<Bf16>& patch) const {
    const bool whole = at.whole(wide_inputs);
    Inputs even = read(at, 0, whole), odd = read(at, 1, whole);
#pragma unroll 1
    for (int r = 0; r < kGroup; r += 2) {
      const Values first(even);
      if (r + 2 < kGroup) even = read(at, r + 2, whole);
      first.make(r);
      const Values second(odd);
      if (r + 2 < kGroup) odd = read(at, r + 3, whole);
      second.make(r + 1);
    }
    load_slots(0, patch);
    __syncthreads();  // the kernel may reuse the slots
  }
  template <class Place>
  __device__ void next(Place& at, Patch<Bf16>& patch) const {
    at.move_right(at.cols);
    load_slots(kGroup, patch);
  }
  template <class Place>
  __device__ void store(const Place& at, const Patch<Bf16>& patch) const {
    if (result.data == nullptr) return;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      const std::int64_t row = at.row0 + at.row + r;
      Bf16 bits[kGroup];
      std::memcpy(bits, patch.row[r].words, sizeof bits);
      result.store_bits(row, at.col0 + at.col, at.count(r), bits);
    }
  }

 private:
  /// The inputs of one row of a patch.
  struct Inputs {
    Group<Bf16> groups[Maker::kInputs];
  };

  static __device__ uint4* slot(int i) { return block_memory() + i * kBlockThreads + threadIdx.x; }
  static __device__ void load_slots(int first, Patch<Bf16>& patch) {
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      patch.row[r].load(reinterpret_cast<const Bf16*>(slot(first + r)));
    }
  }
  template <class Place>
  __device__ Inputs read(const Place& at, int r, bool whole) const {
    const std::int64_t row = at.row0 + at.row + r, col = at.col0 + at.col;
    Inputs result;
#pragma unroll
    for (int i = 0; i < Maker::kInputs; ++i) {
      if (whole) {
        result.groups[i].load(inputs[i].at(row, col));
      } else {
        result.groups[i].load_some(inputs[i].at(row, col), at.count(r));
      }
    }
    return result;
  }
  struct Values {
    float in[Maker::kInputs][kGroup];

    __device__ explicit Values(const Inputs& inputs) {
#pragma unroll
      for (int i = 0; i < Maker::kInputs; ++i) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) in[i][j] = inputs.groups[i].value(j);
      }
    }
    /// Computes row `r` of each patch into its slot.
    __device__ void make(int r) const {
      float out[kPatches][kGroup];
      Maker::make(in, out);
#pragma unroll
      for (int i = 0; i < kPatches; ++i) {
        Bf16 bits[kGroup];
        narrow(out[i], bits);
        std::memcpy(slot(i * kGroup + r), bits, sizeof bits);
      }
    }
  };
};

/// Source of block_kernel: the RMS norm of bf16 rows whose rstd is known. The
/// norm itself is not an output.
struct NormBlocks {
  using Element = Bf16;
  static constexpr int kPatches = 1;
  static constexpr int kShared = 0;
  static constexpr bool kHasSquares = false;
  static constexpr int blocks(bool) { return 3; }

  Rows<Bf16> x, weight;
  const float* rstd;

  bool wide() const { return x.wide && weight.wide; }
  template <class Place>
  __device__ void load(const Place& at, Patch<Bf16>& patch) const {
    patch.load(x, at);
    const std::int64_t row = at.row0 + at.row, col = at.col0 + at.col;
    Group<Bf16> w;
    if (at.whole(weight.wide)) {
      w.load(weight.at(0, col));
    } else {
      w.load_some(weight.at(0, col), at.count());
    }
    float r[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) r[i] = at.count(i) > 0 ? rstd[row + i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int count = at.count(i);
      float values[kGroup];
      Bf16 bits[kGroup];
#pragma unroll
      for (int j = 0; j < kGroup; ++j) values[j] = (patch.row[i].value(j) * r[i]) * w.value(j);
      narrow(values, bits);
      // Zeros outside the source, where the product with rstd may be NaN.
#pragma unroll
      for (int j = 0; j < kGroup; ++j) bits[j] = j < count ? bits[j] : Bf16{};
      patch.row[i].set(bits);
    }
  }
  template <class Place>
  __device__ void next(Place&, Patch<Bf16>&) const {}
  template <class Place>
  __device__ void store(const Place&, const Patch<Bf16>&) const {}
};

/// Quantizes the elements of `source`; its first patches have the shape of `shape`.
template <class Source>
void quantize_made(Context& context, const ops::ProduceQuantize& op, const ProducePlan& plan,
                   const Source& source, const TensorView& shape) {
  auto* const factors = static_cast<float*>(context.workspace(kAlignment));
  const auto block = [&](const QuantizedOperand& operand, bool transpose, const QuantizePlan& of,
                         float* factor) {
    if (of.scales == ScaleStep::in_kernel) return block_tiles(operand, transpose);
    return block_known(context, operand, transpose, op.state, factor);
  };
  const BlockOperand row = block(op.first, false, plan.first, factors);
  const BlockOperand transposed = block(*op.second, true, *plan.second, factors + 1);
  const bool raises_amax = plan.first.raises_amax || plan.second->raises_amax;
  with_cast(op.first.spec, [&]<class Cast>() {
    launch_blocks<Cast, true, true>(context, source, shape, row, transposed,
                                    raises_amax ? amax_of(op.state) : nullptr);
  });
}

/// Quantizes `result`, which Maker computes from `inputs`.
template <class Maker>
void produce_both(Context& context, const ops::ProduceQuantize& op, const ProducePlan& plan,
                  const TensorView (&inputs)[Maker::kInputs], const TensorView& result) {
  FP8LAB_ASSERT(plan.fusion->parts == Maker::kResults);
  MadeBlocks<Maker> source{};
  source.wide_inputs = true;
  for (int i = 0; i < Maker::kInputs; ++i) {
    source.inputs[i] = rows_of<Bf16>(inputs[i]);
    source.wide_inputs = source.wide_inputs && source.inputs[i].wide;
  }
  if (op.keeps_output) source.result = rows_of<Bf16>(result);
  quantize_made(context, op, plan, source, inputs[0]);
}

/// Quantizes an RMS norm. `producer` is the operation, with or without a sum, and `norm` is its
/// norm.
template <class Norm>
void produce_norm(Context& context, const ops::ProduceQuantize& op, const ProducePlan& plan,
                  const Norm& producer, const ops::RmsNormForward& norm) {
  find_rstd(context, producer);
  quantize_made(
      context, op, plan,
      NormBlocks{rows_of<Bf16>(norm.x), rows_of<Bf16>(norm.weight), norm.rstd.row<float>(0)},
      norm.x);
}

void produce(Context& context, const ops::GatedForward& swiglu, const ops::ProduceQuantize& op,
             const ProducePlan& plan) {
  const std::int64_t width = swiglu.out.cols;
  const TensorView& both = swiglu.gate_up;
  produce_both<Swiglu>(context, op, plan, {both.columns(0, width), both.columns(width, width)},
                       swiglu.out);
}

void produce(Context& context, const ops::GatedBackward& swiglu, const ops::ProduceQuantize& op,
             const ProducePlan& plan) {
  const std::int64_t width = swiglu.dout.cols;
  const TensorView& both = swiglu.gate_up;
  produce_both<SwigluGradient>(context, op, plan,
                               {both.columns(0, width), both.columns(width, width), swiglu.dout},
                               swiglu.dgate_up);
}

void produce(Context& context, const ops::ActivationForward& activation,
             const ops::ProduceQuantize& op, const ProducePlan& plan) {
  with_activation(activation.kind, [&]<Activation kKind>() {
    produce_both<Activate<kKind>>(context, op, plan, {activation.x}, activation.out);
  });
}

void produce(Context& context, const ops::ActivationBackward& activation,
             const ops::ProduceQuantize& op, const ProducePlan& plan) {
  with_activation(activation.kind, [&]<Activation kKind>() {
    produce_both<ActivateGradient<kKind>>(context, op, plan, {activation.x, activation.dout},
                                          activation.dx);
  });
}

void produce(Context& context, const ops::RmsNormForward& norm, const ops::ProduceQuantize& op,
             const ProducePlan& plan) {
  produce_norm(context, op, plan, norm, norm);
}

void produce(Context& context, const ops::AddRmsNormForward& norm, const ops::ProduceQuantize& op,
             const ProducePlan& plan) {
  produce_norm(context, op, plan, norm, norm.norm);
}

/// A row of the table of fusions without a kernel here.
template <class LayerNorm>
void produce(Context&, const LayerNorm&, const ops::ProduceQuantize&, const ProducePlan&) {
  FP8LAB_ASSERT(false);
}

}  // namespace

void produce_quantize_both(Context& context, const ops::ProduceQuantize& op,
                           const ProducePlan& plan) {
  std::visit([&](const auto& producer) { produce(context, producer, op, plan); }, op.producer);
}

}  // namespace fp8lab::cuda
