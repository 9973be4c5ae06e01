// The phases of a micro-batch, the phases in which a buffer is live, and levels of recomputation.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace fp8lab {

/// The phases of a micro-batch, in order:
///
///     weights -> (attention -> feed_forward) of each layer -> head
///       -> (recompute -> feed_forward_backward -> attention_backward) of each layer
///
/// The phase of a block includes its norms; that of the head includes both passes and the loss.
enum class PassPhase : std::uint8_t {
  weights,       ///< the step's weights are quantized
  attention,     ///< forward
  feed_forward,  ///< forward
  head,          ///< the last norm, LM head and loss, forward and backward
  recompute,     ///< saved tensors that are not kept are computed again for a layer's backward pass
  feed_forward_backward,
  attention_backward,
};

/// Activation checkpointing: which activations the backward pass recomputes from earlier ones
/// instead of keeping them in every layer.
enum class Recompute : std::uint8_t {
  none,
  gate_up,       ///< inputs of the activation function, and the output of the norm before them
  feed_forward,  ///< also outputs of the activation function: everything after the residual sum
                 ///< behind attention
  layer,         ///< everything in a layer except its input
};

/// The set of phases in which a buffer is live. Its contents survive from one phase to the next if
/// both are in the set.
class LiveRange {
 public:
  constexpr LiveRange(PassPhase one) : bits_(bit(one)) {}
  constexpr LiveRange(std::initializer_list<PassPhase> all) {
    for (const PassPhase one : all) bits_ |= bit(one);
  }
  static constexpr LiveRange from_to(PassPhase first, PassPhase last) {
    LiveRange range(first);
    for (auto i = static_cast<unsigned>(first); i <= static_cast<unsigned>(last); ++i) {
      range.bits_ |= 1u << i;
    }
    return range;
  }

  constexpr LiveRange operator|(LiveRange other) const {
    LiveRange both(other);
    both.bits_ |= bits_;
    return both;
  }
  constexpr bool has(PassPhase one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool meets(LiveRange other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool operator<(LiveRange other) const { return bits_ < other.bits_; }

 private:
  static constexpr unsigned bit(PassPhase one) { return 1u << static_cast<unsigned>(one); }
  unsigned bits_ = 0;
};

}  // namespace fp8lab
