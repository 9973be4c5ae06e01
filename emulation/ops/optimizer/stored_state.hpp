// Tensors that the optimizer keeps from step to step, and their storage.
#pragma once

#include "emulation/numerics/state_codec.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"
#include "emulation/spec/state_rules.hpp"

namespace fp8lab {

/// A state of (rows, cols) elements.
struct StoredState {
  QuantSpec spec;
  /// Plain states: the values, bf16 or f32 (f64 on the truth path). Others: u8 (rows, cols) codes,
  /// (rows, 2 * cols) if a code has two bytes.
  TensorView codes;
  /// (numbers, tiles) f32: the scales of the tiles, then the exponents of an expansion, then its
  /// centers. Empty if tiles have no numbers of their own.
  TensorView scales;

  bool empty() const { return codes.empty(); }
  std::int64_t elements() const {
    return is_plain_state(spec) ? codes.size() : codes.size() / state_code_bytes(spec);
  }
};

/// Returns the codec of codes and scales of `spec`.
numerics::StateCodec state_codec(const QuantSpec& spec);

namespace ops {

/// Writes source (1, n) f32 into `state`, whose elements in row-major order are those of source.
/// Plain states: rounded to their type, NaN canonical. Others: numerics::state_tile of the
/// magnitudes of a tile's elements gives the tile, numerics::encode_state the codes. The random
/// bits of stochastic rounding are numerics::random_bits(key.., index).
struct StoreState {
  static constexpr std::string_view kName = "store_state";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  TensorView source;
  RandomKey key;
  StoredState state;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_key(visit, key);
    visit(writes("scales", state.scales));
    visit(writes("codes", state.codes));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return 2 * elements(source); }
};

/// destination (1, n) f32 = the elements of `state`, by numerics::decode_state.
struct LoadState {
  static constexpr std::string_view kName = "load_state";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  StoredState state;
  TensorView destination;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("scales", state.scales));
    visit(reads("codes", state.codes));
    visit(writes("destination", destination));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return 2 * elements(destination); }
};

}  // namespace ops
}  // namespace fp8lab
