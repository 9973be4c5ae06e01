#include "kernels/pointwise/activations.cuh"
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/quantize_blocks.cuh"
#include "kernels/quantize/quantize_fused.hpp"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {
namespace {

using Bf16 = std::uint16_t;
constexpr std::size_t kAlignment = 256;

/// Source of block_kernel: the gradient of SwiGLU in bf16. The first patch is of the gate, the
/// other of `up` at the same place of its half. A thread makes both row by row and keeps them in
/// its own slots of shared memory, from where they come whole.
struct SwigluGradientBlocks {
  using Element = Bf16;
  static constexpr int kPatches = 2;
  static constexpr int kSlots = kPatches * kGroup;  ///< of a thread, a row of a patch each
  static constexpr int kShared = kSlots * kBlockThreads * static_cast<int>(sizeof(uint4));
  static_assert(sizeof(Group<Bf16>) == sizeof(uint4));
  static constexpr int blocks(bool) { return 3; }

  Rows<Bf16> gate, up, dout;
  Rows<Bf16> gradient;  ///< of both halves; its data is null where nobody wants it
  bool wide;            ///< what is read is

  __device__ void load(const Place& at, Patch<Bf16>& patch) const {
    const bool whole = wide && at.whole();
    Inputs next = read(at, 0, whole);
#pragma unroll 1
    for (int r = 0; r < kGroup; ++r) {
      const Inputs inputs = next;
      if (r + 1 < kGroup) next = read(at, r + 1, whole);
      make(inputs, *slot(r), *slot(kGroup + r));
    }
    load_slots(0, patch);
    __syncthreads();  // the kernel may take the slots
  }
  __device__ void next(Place& at, Patch<Bf16>& patch) const {
    at.move_right(at.cols);
    load_slots(kGroup, patch);
  }
  __device__ void store(const Place& at, const Patch<Bf16>& patch) const {
    if (gradient.data == nullptr) return;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      const std::int64_t row = at.row0 + at.row + r;
      Bf16 bits[kGroup];
      std::memcpy(bits, patch.row[r].words, sizeof bits);
      gradient.store_bits(row, at.col0 + at.col, row < at.rows ? at.count() : 0, bits);
    }
  }

 private:
  /// What a row of a patch is made of.
  struct Inputs {
    Group<Bf16> gate, up, dout;
  };

  static __device__ uint4* slot(int i) { return block_memory() + i * kBlockThreads + threadIdx.x; }
  static __device__ void load_slots(int first, Patch<Bf16>& patch) {
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      patch.row[r].load(reinterpret_cast<const Bf16*>(slot(first + r)));
    }
  }
  __device__ Inputs read(const Place& at, int r, bool whole) const {
    const std::int64_t row = at.row0 + at.row + r, col = at.col0 + at.col;
    Inputs inputs;
    if (whole) {
      inputs.gate.load(gate.at(row, col));
      inputs.up.load(up.at(row, col));
      inputs.dout.load(dout.at(row, col));
    } else {
      const int count = row < at.rows ? at.count() : 0;
      inputs.gate.load_some(gate.at(row, col), count);
      inputs.up.load_some(up.at(row, col), count);
      inputs.dout.load_some(dout.at(row, col), count);
    }
    return inputs;
  }
  static __device__ void make(const Inputs& inputs, uint4& dgate, uint4& dup) {
    float g[kGroup], u[kGroup], d[kGroup], of_gate[kGroup], of_up[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      g[i] = inputs.gate.value(i);
      u[i] = inputs.up.value(i);
      d[i] = inputs.dout.value(i);
    }
    swiglu_gradient(g, u, d, of_gate, of_up);
    dgate = stored(of_gate);
    dup = stored(of_up);
  }
  static __device__ uint4 stored(const float (&values)[kGroup]) {
    Bf16 bits[kGroup];
    narrow(values, bits);
    uint4 words;
    std::memcpy(&words, bits, sizeof words);
    return words;
  }
};

/// True when block_kernel knows the scales of `spec` before other blocks do, and no tile reaches
/// over `tile_cols` columns of the source from one half of it, `width` columns, into the other.
bool fits(const QuantSpec& spec, std::int64_t tile_cols, std::int64_t width) {
  if (spec.transform) return false;
  return has_known_scale(spec) || (has_block_tiles(spec) && width % tile_cols == 0);
}

bool can_quantize(const ops::SwigluBackward& swiglu, const QuantSpec& first,
                  const QuantSpec& second) {
  const std::int64_t width = swiglu.dout.cols;
  const bool is_bf16 = swiglu.gate_up.dtype == DType::bf16 && swiglu.dout.dtype == DType::bf16 &&
                       swiglu.dgate_up.dtype == DType::bf16;
  return is_bf16 && swiglu.dout.size() > 0 && width % kGroup == 0 &&
         can_quantize_both(first, second) && fits(first, first.tile.cols, width) &&
         fits(second, second.tile.rows, width);
}

}  // namespace

bool produce_quantize_both(Context& context, const ops::SwigluBackward& swiglu,
                           const ops::ProduceQuantize& op) {
  const QuantizedOperand &first = op.first, &second = *op.second;
  if (!can_quantize(swiglu, first.spec, second.spec)) return false;
  op.check();
  check_supported("quantize", first);
  check_supported("quantize", second);
  const std::int64_t width = swiglu.dout.cols;
  SwigluGradientBlocks source{rows_of<Bf16>(swiglu.gate_up.columns(0, width)),
                              rows_of<Bf16>(swiglu.gate_up.columns(width, width)),
                              rows_of<Bf16>(swiglu.dout), Rows<Bf16>{}, false};
  source.wide = source.gate.wide && source.up.wide && source.dout.wide;
  if (op.keeps_output) source.gradient = rows_of<Bf16>(swiglu.dgate_up);
  auto* const factors = static_cast<float*>(context.workspace(kAlignment));
  const auto block = [&](const QuantizedOperand& operand, bool transpose, float* factor) {
    if (has_block_tiles(operand.spec)) return block_tiles(operand, transpose);
    return block_known(context, operand, transpose, op.state, factor);
  };
  const BlockOperand row = block(first, false, factors);
  const BlockOperand transposed = block(second, true, factors + 1);
  const bool delayed = first.spec.scale_source == ScaleSource::delayed ||
                       second.spec.scale_source == ScaleSource::delayed;
  with_cast(first.spec.format, divides(first.spec), [&]<class Cast>(Cast) {
    launch_blocks<Cast, true, true>(context, source, swiglu.dout, row, transposed,
                                    delayed ? amax_of(op.state) : nullptr);
  });
  return true;
}

}  // namespace fp8lab::cuda
