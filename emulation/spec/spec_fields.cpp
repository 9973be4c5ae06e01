#include "emulation/spec/spec_fields.hpp"

#include "emulation/spec/estimator.hpp"
#include "emulation/spec/quant_rules.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;
using numerics::ScaleRounding;
using numerics::ScaleRule;

constexpr int kLongestHistory = 65536;

bool is_two_level(const ScaleRule& rule) { return rule.format == ScaleFormat::nv_two_level; }
bool is_one_level(const ScaleRule& rule) { return !is_two_level(rule); }
bool is_e8m0(const ScaleRule& rule) { return rule.format == ScaleFormat::e8m0; }
bool is_power_of_two(const ScaleRule& rule) { return rule.is_power_of_two(); }
bool is_pow2(const ScaleRule& rule) { return rule.format == ScaleFormat::pow2; }
bool has_epsilon(const ScaleRule& rule) { return is_one_level(rule) && rule.amax_epsilon != 0.0f; }
bool has_encode_factor(const ScaleRule& rule) {
  return is_one_level(rule) && !rule.is_power_of_two() &&
         rule.arithmetic == numerics::ScaleArithmetic::enc_div;
}

Fields<ScaleRule> scale_fields() {
  using namespace fields;  // NOLINT: the vocabulary of this table
  using S = ScaleRule;
  const std::string one_level =
      "scale_source = \"current\" or \"delayed\" and a scale_format other than \"nv_two_level\"";
  return {
      choice("scale_format", &S::format, kScaleFormatNames, "values that a scale may take").alone(),
      choice("scale_rounding", &S::rounding, kScaleRoundingNames,
             "how the power of two is derived from the amax")
          .by_default("enc_floor for pow2, rceil for e8m0, ocp_floor for tile = \"mx32\"")
          .when(is_power_of_two, "scale_format = \"pow2\" or \"e8m0\", or tile = \"mx32\"")
          .alone(),
      choice("scale_arithmetic", &S::arithmetic, kScaleArithmeticNames,
             "FP32 operations between amax and codes")
          .when(is_one_level, one_level)
          .alone(),
      number("amax_epsilon", &S::amax_epsilon, 0.0, 1.0,
             "what keeps the amax from zero, in units of the tensor")
          .when(is_one_level, one_level),
      choice("epsilon_mode", &S::epsilon_mode, kEpsilonModeNames,
             "amax_epsilon is the least amax, or is added to it")
          .when(has_epsilon, "amax_epsilon above 0"),
      integer("margin", &S::margin, 0, 16, "the largest code is meant for 2^margin times the amax")
          .when(is_one_level, one_level),
      choice("encode_limit", &S::encode_limit, kEncodeLimitNames,
             "largest number of which type an infinite encode factor becomes")
          .when(has_encode_factor,
                "scale_format = \"fp32\", \"bf16\" or \"e4m3\" and scale_arithmetic = "
                "\"enc_div\""),
      choice("scale_overflow", &S::scale_overflow, kScaleOverflowNames,
             "what a scale above 2^127 becomes")
          .when(is_e8m0, "scale_format = \"e8m0\", or tile = \"mx32\""),
      choice("four_over_six", &S::four_over_six, kFourOverSixNames,
             "error by which a tile may map its amax to two thirds of the largest code")
          .when(is_two_level, "scale_format = \"nv_two_level\", or tile = \"nv16\"")
          .alone(),
      choice("outer_scale", &S::outer, kOuterScaleNames,
             "what shares the FP32 factor of two-level scales")
          .when(is_two_level, "scale_format = \"nv_two_level\", or tile = \"nv16\""),
      spelled(
          "scale_statistic", &S::deviations, statistic_from_name, statistic_name,
          std::string(kStatisticNames),
          "what a tile's scale is derived from: its largest magnitude, or C standard deviations "
          "of its elements")
          .when(is_one_level, one_level)
          .alone(),
      number("scale_factor", &S::factor, 0.5, 2.0, "the scale is the power of two times this")
          .when(is_pow2, "scale_format = \"pow2\""),
  };
}

bool is_quantized(const QuantSpec& spec) { return spec.is_quantized(); }
bool is_cast(const QuantSpec& spec) { return spec.is_cast(); }
bool is_delayed(const QuantSpec& spec) {
  return spec.is_quantized() && spec.scale_source == ScaleSource::delayed;
}
bool is_static(const QuantSpec& spec) {
  return spec.is_quantized() && spec.scale_source == ScaleSource::static_scale;
}
/// Returns whether the scale derives from an amax of its tile, current or earlier.
bool has_derived_scale(const QuantSpec& spec) {
  return spec.is_quantized() && spec.has_scale() && !is_static(spec);
}
bool has_scale_rule(const QuantSpec& spec) {
  return has_derived_scale(spec) && !spec.has_codebooks();
}

constexpr const char* kDerived =
    "a format of at most 8 bits with scale_source = \"current\" or \"delayed\"";
constexpr const char* kCast = "a format other than bf16 and fp32";

/// Returns the names of the formats of operands, of at most `bits` bits.
std::vector<std::string> operand_formats(int bits) {
  std::vector<std::string> names;
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const bool operand = named.format != numerics::kE8M0 && named.format != numerics::kFP16;
    if (operand && named.format.bits() <= bits) names.emplace_back(named.name);
  }
  return names;
}

Field<QuantSpec> format_field() {
  const std::vector<std::string> names = operand_formats(32);
  // Most readers take it for e4m3fn; as eXmY it would be the IEEE-like format with maximum 240.
  const auto read = [](std::string_view name) {
    return name == "e4m3" ? std::nullopt : format_by_name(name);
  };
  Field<QuantSpec> field =
      fields::spelled("format", &QuantSpec::format, read, format_name,
                      fields::listed(names) +
                          ", or eXmY such as e5m1, intN, lnsBgG such as lns8g16, logfmtN, "
                          "binaryKpP such as binary8p4se; e4m3 alone is ambiguous: "
                          "e4m3fn (OCP, maximum 448) or e4m3_240 (IEEE-like, maximum 240)",
                      "type of the codes, or of values that are only cast");
  field.names = names;
  return std::move(field).by_default("that of the activations");
}

/// mx32 and nv16 set the scale format as well.
Field<QuantSpec> tile_field() {
  Field<QuantSpec> field = fields::spelled(
      "tile", &QuantSpec::tile, tile_from_name, tile_name,
      "tensor, row, RxC such as 1x128, mx32, nv16",
      "elements that share a scale, rows by columns along K; mx32: 1x32 with e8m0 scales, nv16: "
      "1x16 with nv_two_level scales");
  field.names = {"tensor", "row", "RxC", "mx32", "nv16"};
  field.set = [plain = field.set](QuantSpec& spec, const FieldValue& value) {
    const bool mx = value == FieldValue("mx32"), nv = value == FieldValue("nv16");
    if (!mx && !nv) return plain(spec, value);
    spec.tile = {1, mx ? 32 : 16};
    spec.scale.format = mx ? ScaleFormat::e8m0 : ScaleFormat::nv_two_level;
    return true;
  };
  return std::move(field).when(has_derived_scale, kDerived).default_always().alone();
}

/// One key for two members.
Field<QuantSpec> rounding_field() {
  Field<QuantSpec> field = fields::choice("rounding", &QuantSpec::rounding, kRoundingNames,
                                          "how elements are rounded to codes");
  field.accepted += ", or stochastic:N with N random bits from 1 to 32";
  field.names.emplace_back("stochastic:N");
  field.get = [](const QuantSpec& spec) { return rounding_name(spec.rounding, spec.random_bits); };
  field.set = [](QuantSpec& spec, const FieldValue& value) {
    const std::string* const name = std::get_if<std::string>(&value);
    const std::optional<RoundingChoice> choice =
        name == nullptr ? std::nullopt : rounding_from_name(*name);
    if (!choice) return false;
    spec.rounding = choice->rounding;
    spec.random_bits = choice->random_bits;
    return true;
  };
  field.copy = [](QuantSpec& to, const QuantSpec& from) {
    to.rounding = from.rounding;
    to.random_bits = from.random_bits;
  };
  return std::move(field).when(is_cast, kCast).alone();
}

/// The formats that a value can be rounded to first are those of conversion instructions, and
/// others that overflow to infinity as they do.
Field<QuantSpec> via_field() {
  const auto read = [](std::string_view name) {
    const std::optional<numerics::FormatSpec> format = format_by_name(name);
    return format && is_via_format(*format) ? format : std::nullopt;
  };
  Field<QuantSpec> field = fields::spelled(
      "via", &QuantSpec::via, read, format_name,
      "fp32, bf16, fp16, or eXmY with infinity and more than 8 bits such as e8m10",
      "format to which scaled values are rounded before they are rounded to codes; fp32 is their "
      "own");
  field.names = {"fp32", "bf16", "fp16"};
  return std::move(field).when(is_cast, kCast);
}

Field<QuantSpec> static_scale_field() {
  Field<QuantSpec> field = fields::number("static_scale", &QuantSpec::static_scale, 0x1p-126,
                                          0x1p127, "decode factor of the tensor");
  field.accepted = "a number from 2^-126 to 2^127";
  return std::move(field).when(is_static, "scale_source = \"static\"");
}

Fields<QuantSpec> make_quant_fields() {
  using namespace fields;  // NOLINT: the vocabulary of this table
  using S = QuantSpec;
  Fields<S> rows = {format_field(), tile_field()};
  for (const Field<ScaleRule>& rule : scale_fields()) {
    Field<S> field = lifted(rule, &S::scale);
    const auto inner = field.condition;
    const auto both = [inner](const S& spec) {
      return has_scale_rule(spec) && (!inner || inner(spec));
    };
    rows.push_back(std::move(field).when(both, rule.needs.empty() ? kDerived : rule.needs));
  }
  const Fields<S> rest = {
      choice("scale_source", &S::scale_source, kScaleSourceNames,
             "where the amax behind a scale comes from")
          .by_default("current")
          .when(is_quantized, "a format of at most 8 bits")
          .default_always(),
      static_scale_field(),
      integer("history", &S::history_length, 1, kLongestHistory, "steps whose amaxes are kept")
          .when(is_delayed, "scale_source = \"delayed\""),
      choice("amax_algorithm", &S::amax_algorithm, kAmaxAlgorithmNames,
             "which amax of the history counts")
          .when(is_delayed, "scale_source = \"delayed\""),
      integer("warmup_steps", &S::warmup_steps, 0, kLongestHistory,
              "first steps of a history, scaled by their own amax")
          .when(is_delayed, "scale_source = \"delayed\""),
      via_field(),
      rounding_field(),
      choice("overflow", &S::overflow, kOverflowNames,
             "beyond the largest code: that code, or infinity or NaN")
          .when(is_cast, kCast),
      spelled("transform", &S::transform, transform_from_name, transform_name,
              std::string(kTransformNames), "what happens to the operand before it is quantized")
          .when(is_cast, kCast)
          .default_always()
          .alone(),
      choice("orientation_source", &S::orientation_source, kOrientationSourceNames,
             "what the second orientation of a tensor is made from"),
      choice("weight_source", &S::weight_source, kWeightSourceNames,
             "which copy of a weight is quantized"),
      spelled("estimator", &S::estimator, estimator_from_name, estimator_name,
              std::string(kEstimatorNames),
              "fprop.x and fprop.w: what the gradient of the tensor is multiplied by, 1, 1 within "
              "the range of the format and 0 outside, or the slope between two codes")
          .when(is_quantized, "a format of at most 8 bits")
          .default_always(),
  };
  rows.insert(rows.end(), rest.begin(), rest.end());
  return rows;
}

/// "fast" or "promote:G": one key for two members.
Field<GemmSpec> schedule_field() {
  Field<GemmSpec> field = fields::row(
      "schedule", &GemmSpec::schedule, "fast, promote:128 or another interval",
      "how partial sums along K are combined: one chain over all of K, or one restarted "
      "after every 128 elements, or as many as the number says, and added in FP32");
  field.is_text = true;
  field.names = {"fast", "promote:128"};
  field.get = [](const GemmSpec& spec) { return schedule_name(spec); };
  field.set = [](GemmSpec& spec, const FieldValue& value) {
    const std::string* const name = std::get_if<std::string>(&value);
    // A bare "promote" would leave the interval unspecified.
    if (name == nullptr || *name == "promote") return false;
    const std::optional<ScheduleChoice> schedule = schedule_from_name(*name);
    if (!schedule) return false;
    spec.schedule = schedule->schedule;
    spec.promote_interval = schedule->promote_interval;
    return true;
  };
  field.copy = [](GemmSpec& to, const GemmSpec& from) {
    to.schedule = from.schedule;
    to.promote_interval = from.promote_interval;
  };
  return field;
}

Field<GemmSpec> accumulator_field() {
  std::vector<std::string> names;
  for (const TensorCoreProfile& known : tensor_core_profiles()) names.emplace_back(known.name);
  Field<GemmSpec> field =
      fields::spelled("accumulator", &GemmSpec::accumulator, accumulator_by_name, accumulator_name,
                      fields::listed(names) + ", or { products = ..., fraction_bits = ..., ... }",
                      "unit that multiplies and adds (fp8lab info)");
  field.names = names;
  return std::move(field).by_default(
      "sm90_wgmma_fp8 for two operands of at most 8 bits, ideal_fp32 for fp32, else sm90_bf16");
}

}  // namespace

std::string quantized_format_names() {
  return fields::listed(operand_formats(8)) + ", or another of at most 8 bits";
}

const Fields<QuantSpec>& quant_fields() {
  static const Fields<QuantSpec> rows = make_quant_fields();
  return rows;
}

const Fields<GemmSpec>& gemm_fields() {
  using namespace fields;  // NOLINT: the vocabulary of this table
  using S = GemmSpec;
  static const Fields<S> rows = {
      accumulator_field(),
      schedule_field(),
      choice("scale_order", &S::scale_order, kScaleOrderNames, "where scales enter the sum"),
      integer("split_k", &S::split_k, 1, 64, "ranges of K summed apart, then left to right"),
      choice("output", &S::output, kStorageNames, "type of the result; of wgrad always fp32")
          .by_default("that of the activations"),
  };
  return rows;
}

QuantSpec effective(const QuantSpec& spec) {
  QuantSpec result = spec;
  reset_idle(quant_fields(), result);
  return result;
}

ScaleRounding default_scale_rounding(ScaleFormat format, bool is_ocp) {
  if (format == ScaleFormat::pow2) return ScaleRounding::enc_floor;
  if (format == ScaleFormat::e8m0) return is_ocp ? ScaleRounding::ocp_floor : ScaleRounding::rceil;
  return ScaleRule{}.rounding;
}

}  // namespace fp8lab
