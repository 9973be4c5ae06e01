#include "emulation/cases/operand_draw.hpp"

#include <cstring>
#include <iterator>

#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::Rounding;
using numerics::ScaleFormat;

void add_tiles(std::vector<QuantSpec>& specs) {
  const TileShape tiles[] = {{0, 0}, {1, 0}, {1, 128}, {128, 128}, {1, 32}, {3, 7}};
  for (const TileShape& tile : tiles) {
    specs.push_back(quantized(numerics::kE4M3, tile));
    specs.push_back(quantized(numerics::kE5M2, tile, ScaleFormat::pow2));
  }
}

void add_formats(std::vector<QuantSpec>& specs) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const bool narrow = named.format.bits() <= 8 && named.format.has_sign;
    if (narrow) specs.push_back(quantized(named.format, {1, 32}));
  }
}

void add_scale_rules(std::vector<QuantSpec>& specs) {
  using numerics::ScaleRounding;
  for (const ScaleRounding rounding :
       {ScaleRounding::ceil, ScaleRounding::ocp_floor, ScaleRounding::rceil, ScaleRounding::even}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0));
    specs.back().scale.rounding = rounding;
  }
  for (const auto arithmetic :
       {numerics::ScaleArithmetic::dec_div, numerics::ScaleArithmetic::dec_div_recip}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 128}));
    specs.back().scale.arithmetic = arithmetic;
  }
  for (const auto choice : {numerics::FourOverSix::none, numerics::FourOverSix::mse}) {
    specs.push_back(quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level));
    specs.back().scale.four_over_six = choice;
  }
  specs.push_back(quantized(numerics::kE2M1, {16, 16}, ScaleFormat::nv_two_level));
  specs.push_back(quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level));
  specs.back().rounding = Rounding::stochastic;
  for (const auto choice : {numerics::FourOverSix::none, numerics::FourOverSix::mae}) {
    specs.push_back(quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level));
    specs.back().scale.outer = numerics::OuterScale::row;
    specs.back().scale.four_over_six = choice;
  }
  specs.push_back(quantized(numerics::kE2M1, {32, 32}, ScaleFormat::e8m0));
  for (const Rounding rounding : {Rounding::stochastic, Rounding::toward_zero}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 128}, ScaleFormat::pow2));
    specs.back().rounding = rounding;
  }
}

/// Casts with few random bits, or through a second format.
void add_casts(std::vector<QuantSpec>& specs) {
  for (const int bits : {8, 1, 16, 32}) {
    const bool two_level = bits == 8;
    specs.push_back(quantized(two_level ? numerics::kE2M1 : numerics::kE4M3,
                              {1, two_level ? 16 : 128},
                              two_level ? ScaleFormat::nv_two_level : ScaleFormat::fp32));
    specs.back().rounding = Rounding::stochastic;
    specs.back().random_bits = bits;
  }
  for (const FormatSpec& via : {numerics::kFP16, numerics::kBF16}) {
    specs.push_back(quantized(numerics::kE4M3, {1, 128}));
    specs.back().via = via;
    specs.push_back(quantized(numerics::kE5M2, {}));
    specs.back().via = via;
    specs.back().overflow = numerics::Overflow::special;
  }
  specs.back().rounding = Rounding::stochastic;
  specs.back().random_bits = 5;
  specs.push_back(quantized_behind("expand", numerics::kE4M3, {1, 32}));
  specs.back().rounding = Rounding::stochastic;
  specs.back().random_bits = 8;
  specs.back().via = numerics::kFP16;
  specs.push_back({});
  specs.back().format = numerics::kFP16;
  specs.back().via = numerics::kBF16;
}

void add_statistics(std::vector<QuantSpec>& specs) {
  using numerics::ScaleRounding;
  for (const TileShape& tile : {TileShape{1, 32}, TileShape{16, 16}, TileShape{1, 1024}}) {
    specs.push_back(quantized(numerics::kE2M1, tile, ScaleFormat::e8m0));
    specs.back().scale.rounding = ScaleRounding::floor;
    specs.back().scale.deviations = 2.92247856f;
  }
  specs.push_back(quantized(numerics::kE4M3, {1, 128}));
  specs.back().scale.deviations = 4.0f;
  for (const TileShape& tile : {TileShape{1, 32}, TileShape{}}) {
    specs.push_back(
        quantized(tile.is_tensor() ? numerics::kE4M3 : numerics::kE2M1, tile, ScaleFormat::pow2));
    specs.back().scale.rounding = ScaleRounding::ocp_floor;
    specs.back().scale.factor = 1.3333334f;
  }
}

void add_expansions(std::vector<QuantSpec>& specs) {
  for (const TileShape& tile :
       {TileShape{1, 128}, TileShape{1, 16}, TileShape{5, 9}, TileShape{}}) {
    specs.push_back(quantized_behind("expand", numerics::kE4M3, tile));
  }
  specs.push_back(quantized_behind("expand", numerics::kE4M3, {1, 32}));
  specs.back().rounding = Rounding::stochastic;
}

void add_scale_sources(std::vector<QuantSpec>& specs) {
  specs.push_back(quantized(numerics::kE5M2, {0, 0}));
  specs.back().scale_source = ScaleSource::delayed;
  specs.back().history_length = 20;
  specs.push_back(quantized(numerics::kE4M3, {0, 0}));
  specs.back().scale_source = ScaleSource::static_scale;
  specs.back().static_scale = 0.37f;
  for (const FormatSpec& format : {numerics::kE4M3, numerics::kBF16, numerics::kFP16}) {
    specs.push_back({});  // only cast
    specs.back().format = format;
  }
}

}  // namespace

QuantSpec quantized_behind(const char* transform, const FormatSpec& format, TileShape tile) {
  QuantSpec spec = quantized(format, tile);
  spec.transform = transform_from_name(transform).value();
  return spec;
}

std::vector<QuantSpec> every_quantizer() {
  std::vector<QuantSpec> specs;
  add_tiles(specs);
  add_formats(specs);
  add_scale_rules(specs);
  add_expansions(specs);
  add_scale_sources(specs);
  add_statistics(specs);
  add_casts(specs);
  return specs;
}

QuantSpec draw_quantizer(CaseDraw& draw) {
  const QuantSpec specs[] = {quantized(numerics::kE4M3, {1, 128}),
                             quantized(numerics::kE4M3, {0, 0}),
                             quantized(numerics::kE5M2, {1, 0}, ScaleFormat::pow2),
                             quantized(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level),
                             quantized(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0)};
  return specs[draw.word() % std::size(specs)];
}

std::int64_t draw_length(CaseDraw& draw, const Transform& transform, std::int64_t wanted) {
  constexpr std::int64_t kOrders[] = {2, 12, 16, 20, 96, 128, 172, 896, 1536, 4096, 9728};
  const auto* const hadamard = transform.as<Hadamard>();
  if (hadamard == nullptr) return wanted;
  if (hadamard->block == 0) return kOrders[draw.word() % std::size(kOrders)];
  return (wanted + hadamard->block - 1) / hadamard->block * hadamard->block;
}

QuantizedOperand operand_at(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                            const Views& t, std::size_t first) {
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = rows;
  operand.k = k;
  operand.codes = t[first];
  if (spec.has_scale()) operand.scales = t[first + 1];
  return operand;
}

HostTensor codes_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  return draw.output(spec.storage(), rows, k);
}

HostTensor scales_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  if (!spec.has_scale()) return draw.output(DType::f32, 1, 1);
  return draw.output(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
}

HostTensor draw_scales(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  HostTensor tensor = scales_of(draw, spec, rows, k);
  tensor.output = false;
  CaseGenerator generator(draw.word());
  for (std::size_t i = 0; i < tensor.data.size(); i += sizeof(float)) {
    const float scale = generator.scale();
    std::memcpy(tensor.data.data() + i, &scale, sizeof scale);
  }
  return tensor;
}

HostTensor state_of(CaseDraw& draw, const QuantSpec& spec) {
  const bool delayed = spec.scale_source == ScaleSource::delayed;
  return zeroed(flat(draw.output(DType::f32, 1, delayed ? DelayedState::length(spec) : 1)));
}

HostTensor bounds_of(CaseDraw& draw) { return flat(draw.output(DType::f32, 1, 2)); }

HostTensor record_of(CaseDraw& draw) {
  return flat(draw.output(DType::u8, 1, sizeof(OperandStatistics)));
}

}  // namespace fp8lab
