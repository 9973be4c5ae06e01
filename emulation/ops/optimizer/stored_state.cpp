#include "emulation/ops/optimizer/stored_state.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab {

numerics::StateCodec state_codec(const QuantSpec& spec) {
  numerics::StateCodec codec;
  codec.cast = spec.cast();
  codec.rule = spec.scale;
  codec.is_expanded = spec.transform.is<RangeExpansion>();
  codec.is_scaled = spec.scale_source == ScaleSource::current;
  if (spec.scale_source == ScaleSource::static_scale) codec.fixed_scale = spec.static_scale;
  return codec;
}

namespace ops {
namespace {

void check_state(const Checks& checks, const StoredState& state, std::int64_t n) {
  if (const auto refusal = refuse_state(state.spec)) checks.fail(render(*refusal));
  checks.contiguous("codes", state.codes);
  if (is_plain_state(state.spec)) {
    const bool is_bf16 = state.spec.format == numerics::kBF16;
    checks.tensor("codes", state.codes, state.codes.rows, state.codes.cols,
                  {is_bf16 ? DType::bf16 : DType::f32});
  } else {
    checks.tensor("codes", state.codes, state.codes.rows, state.codes.cols, {DType::u8});
  }
  const std::int64_t width = is_plain_state(state.spec) ? 1 : state_code_bytes(state.spec);
  checks.require(state.codes.size() == n * width, "codes " + describe(state.codes) +
                                                      " do not hold the elements of a state of " +
                                                      std::to_string(n));
  const std::int64_t tiles = stored_tiles(state.spec, n);
  if (tiles == 0) return;
  checks.tensor("scales", state.scales, state.spec.tile_numbers(), tiles, {DType::f32});
  checks.contiguous("scales", state.scales);
}

}  // namespace

void StoreState::check() const {
  const Checks checks("store_state");
  checks.require(source.size() > 0, "source is empty");
  checks.vector("source", source, source.cols, {DType::f32});
  check_state(checks, state, source.cols);
}

void LoadState::check() const {
  const Checks checks("load_state");
  checks.require(destination.size() > 0, "destination is empty");
  checks.vector("destination", destination, destination.cols, {DType::f32});
  check_state(checks, state, destination.cols);
}

}  // namespace ops
}  // namespace fp8lab
