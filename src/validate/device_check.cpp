#include "src/validate/device_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {
namespace {

using numerics::Alignment;
using numerics::ChainUnit;
using numerics::ElementGemm;
using numerics::FormatSpec;
using numerics::GroupModel;

/// Profiles of mma.sync by compute capability (emulation/specification.md, "Tensor cores").
struct CardProfiles {
  int major, minor;
  std::string_view cards;  ///< whose results are recorded; empty: none
  std::string_view fp8, fp8_f16, bf16, f16, f16_f16, tf32;  ///< empty: no profile
};

constexpr CardProfiles kCards[] = {
    {8, 0, "A100", "", "", "sm80_bf16", "sm80_f16", "sm80_f16_f16acc", "sm80_tf32"},
    {8, 6, "A2", "", "", "sm80_bf16", "sm80_f16", "sm80_f16_f16acc", "sm80_tf32"},
    {8, 9, "Ada, L40S", "sm89_mma_fp8", "sm89_mma_fp8_f16", "sm89_bf16", "sm89_f16",
     "sm89_f16_f16acc", "sm89_tf32"},
    {9, 0, "H100, H200", "sm90_mma_sync_fp8", "sm90_mma_sync_fp8_f16", "sm90_bf16", "sm90_f16",
     "sm90_f16_f16acc", "sm90_tf32"},
    {10, 0, "B200", "sm100_mma_sync_fp8", "sm100_mma_sync_fp8_f16", "sm100_bf16", "sm100_f16",
     "sm100_f16_f16acc", "sm100_tf32"},
    {12, 0, "", "sm120_mma_fp8", "", "", "", "", ""},
};

const CardProfiles* profiles_of(int major, int minor) {
  for (const CardProfiles& card : kCards) {
    if (card.major == major && card.minor == minor) return &card;
  }
  return nullptr;
}

const TensorCoreProfile* profile_named(std::string_view name) {
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

std::uint32_t canonical(const FormatSpec& format, std::uint32_t bits) {
  if (!format.is_nan(bits)) return bits;
  return format == numerics::kFP32 ? numerics::kF32NaN : format.nan_code();
}

/// Index of a result in D and the operands that it is made of.
struct Element {
  const std::uint32_t *a, *b;
  std::uint32_t c;
};

Element element_of(const DeviceProducts& products, std::int64_t index) {
  const std::int64_t row = index / products.columns;  // of all tiles
  const std::int64_t column = index % products.columns + row / products.rows * products.columns;
  return {products.a.data() + row * products.k, products.b.data() + column * products.k,
          products.c.empty() ? 0u : products.c[static_cast<std::size_t>(index)]};
}

std::uint32_t emulated(const DeviceProducts& products, const Accumulator& accumulator,
                       std::int64_t index, std::int64_t promote) {
  ElementGemm spec;
  spec.unit = accumulator.unit;
  spec.group = accumulator.group;
  spec.format_a = products.format_a;
  spec.format_b = products.format_b;
  spec.promote_interval = promote;
  const Element one = element_of(products, index);
  const FormatSpec format = products.result_format();
  if (promote > 0) {
    const float sum =
        numerics::accumulate_element(spec, one.a, one.b, products.k, nullptr, nullptr);
    return canonical(format, numerics::float_bits(sum));
  }
  std::uint32_t bits = one.c;
  for (std::int64_t k = 0; k < products.k; k += accumulator.products()) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(accumulator.products(), products.k - k));
    bits = numerics::chain_step(spec, one.a, one.b, k, count, nullptr, nullptr, bits);
  }
  return canonical(format, bits);
}

/// An accumulator that may be what the card has, and what it changes.
struct Candidate {
  Accumulator accumulator;
  std::int64_t promote = 0;
  std::string text;
};

/// Returns true if a candidate has all results. `telling` is a result that refuted another one,
/// with which the comparison begins: most candidates fail there too.
bool explains(const DeviceProducts& products, const Candidate& candidate, std::int64_t& telling) {
  const FormatSpec format = products.result_format();
  const auto agrees = [&](std::int64_t i) {
    const std::uint32_t found = canonical(format, products.d[static_cast<std::size_t>(i)]);
    return emulated(products, candidate.accumulator, i, candidate.promote) == found;
  };
  if (!agrees(telling)) return false;
  for (std::int64_t i = 0; i < products.results(); ++i) {
    if (agrees(i)) continue;
    telling = i;
    return false;
  }
  return true;
}

/// True for a profile of one group's kind that multiplies these operands into this result.
bool fits(const Accumulator& accumulator, const DeviceProducts& products) {
  const bool is_chain =
      accumulator.unit == ChainUnit::fused_group || accumulator.unit == ChainUnit::mma_sync_fp8;
  const bool takes_a =
      products.format_a == accumulator.operand || products.format_a == accumulator.second_operand();
  const bool takes_b =
      products.format_b == accumulator.operand || products.format_b == accumulator.second_operand();
  return is_chain && takes_a && takes_b && !accumulator.group.block_scales &&
         numerics::accumulator_format(accumulator.group.output) == products.result_format();
}

/// One changed parameter of a group.
struct Change {
  std::string text;
  std::function<void(GroupModel&)> apply;
};

std::vector<Change> changes_of(const GroupModel& from) {
  std::vector<Change> changes;
  const auto add = [&](std::string_view name, int old_value, int value, int GroupModel::*member) {
    if (value == old_value) return;
    changes.push_back({fmt::format("{} {} instead of {}", name, value, old_value),
                       [=](GroupModel& group) { group.*member = value; }});
  };
  for (int bits = 6; bits <= 40; ++bits) {
    add("fraction_bits", from.fraction_bits, bits, &GroupModel::fraction_bits);
  }
  for (const int products : {1, 2, 4, 8, 16, 32}) {
    add("products", from.products, products, &GroupModel::products);
  }
  const auto other = [](Alignment now) {
    return now == Alignment::truncate ? Alignment::nearest_even : Alignment::truncate;
  };
  const auto word = [](Alignment now) {
    return now == Alignment::truncate ? "truncate" : "nearest";
  };
  if (from.output == numerics::OutputKind::f32_truncated) {
    for (int bits = 8; bits <= 23; ++bits) {
      add("output_mantissa_bits", from.output_mantissa_bits, bits,
          &GroupModel::output_mantissa_bits);
    }
    changes.push_back(
        {fmt::format("output_rounding {} instead of {}", word(other(from.output_rounding)),
                     word(from.output_rounding)),
         [=](GroupModel& group) { group.output_rounding = other(from.output_rounding); }});
  }
  changes.push_back(
      {fmt::format("alignment {} instead of {}", word(other(from.alignment)), word(from.alignment)),
       [=](GroupModel& group) { group.alignment = other(from.alignment); }});
  for (const int floor : {numerics::kNoExponentFloor, -126, -132, -133}) {
    if (floor == from.min_exponent) continue;
    const auto name = [](int value) {
      return value == numerics::kNoExponentFloor ? std::string("none") : std::to_string(value);
    };
    changes.push_back(
        {fmt::format("min_exponent {} instead of {}", name(floor), name(from.min_exponent)),
         [=](GroupModel& group) { group.min_exponent = floor; }});
  }
  return changes;
}

/// Calls visit(candidate) until it returns true: profiles, other promotions, one change, two.
void for_each_candidate(const DeviceProducts& products, const Accumulator& expected,
                        const std::function<bool(const Candidate&)>& visit) {
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    if (!fits(profile.accumulator, products)) continue;
    if (visit(
            {profile.accumulator, products.promote, fmt::format("the bits of {}", profile.name)})) {
      return;
    }
  }
  if (products.promote > 0) {
    for (const std::int64_t promote : {0, 32, 64, 128, 256, 512}) {
      if (promote == products.promote) continue;
      const std::string text =
          promote == 0 ? "no promotion" : fmt::format("promoted every {}", promote);
      if (visit(
              {expected, promote, text + fmt::format(" instead of every {}", products.promote)})) {
        return;
      }
    }
  }
  if (expected.unit != ChainUnit::fused_group) return;  // no parameters
  const std::vector<Change> changes = changes_of(expected.group);
  const auto changed = [&](const Change& first, const Change* second) {
    Candidate candidate{expected, products.promote, first.text};
    first.apply(candidate.accumulator.group);
    if (second != nullptr) {
      second->apply(candidate.accumulator.group);
      candidate.text += ", " + second->text;
    }
    return accumulator_refusal(candidate.accumulator).empty() && visit(candidate);
  };
  for (const Change& change : changes) {
    if (changed(change, nullptr)) return;
  }
  for (std::size_t i = 0; i < changes.size(); ++i) {
    for (std::size_t j = i + 1; j < changes.size(); ++j) {
      if (changed(changes[i], &changes[j])) return;
    }
  }
}

std::string explanation(const DeviceProducts& products, const Accumulator& expected) {
  std::string found;
  std::int64_t telling = 0;
  for_each_candidate(products, expected, [&](const Candidate& candidate) {
    if (!explains(products, candidate, telling)) return false;
    found = candidate.text;
    return true;
  });
  return found;
}

DeviceFinding check_products(const DeviceFacts& facts, const DeviceProducts& products) {
  DeviceFinding finding;
  finding.what = products.label();
  const TensorCoreProfile* const profile = expected_profile(facts, products);
  if (profile == nullptr) {
    finding.unchecked = static_cast<std::uint64_t>(products.results());
    const Accumulator start = products.format_a.bits() <= 8 ? Accumulator::sm90_wgmma_fp8
                              : products.to_f16             ? Accumulator::sm90_f16_f16acc
                                                            : Accumulator::sm90_bf16;
    Accumulator expected = start;
    if (products.format_a.bits() <= 8 && products.to_f16)
      expected = Accumulator::sm90_wgmma_fp8_f16;
    const std::string known = explanation(products, expected);
    finding.deviation = known.empty() ? "of no known unit"
                        : known.starts_with("the bits")
                            ? known
                            : fmt::format("{} of {}", known, accumulator_name(expected));
    return finding;
  }
  finding.expected = fmt::format("{} ({})", profile->name, evidence_name(profile->evidence));
  const FormatSpec format = products.result_format();
  const std::vector<std::uint32_t> expected = emulated_products(products, profile->accumulator);
  finding.results = expected.size();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::uint32_t found = canonical(format, products.d[i]);
    if (found == expected[i]) continue;
    if (finding.different++ > 0) continue;
    const auto row = static_cast<std::int64_t>(i) / products.columns;
    finding.first = fmt::format(
        "tile {} row {} column {}: expected {:#x}, found {:#x}", row / products.rows,
        row % products.rows, static_cast<std::int64_t>(i) % products.columns, expected[i], found);
  }
  if (finding.different == 0) return finding;
  finding.deviation = explanation(products, profile->accumulator);
  if (finding.deviation.empty()) {
    finding.deviation = fmt::format("of no known unit; {} of {} results are equal",
                                    finding.results - finding.different, finding.results);
  }
  return finding;
}

/// The kind of an FP32 input that is converted, by which a wrong rule shows.
std::string_view input_kind(const FormatSpec& format, std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > numerics::kF32Infinity) return "NaN";
  if (magnitude == numerics::kF32Infinity) return "infinities";
  const float value = numerics::bits_float(magnitude);
  if (value > numerics::max_finite(format)) return "values above the largest finite code";
  const std::uint32_t down = numerics::encode(format, magnitude, numerics::Rounding::toward_zero);
  const float low = numerics::decode(format, down);
  if (low == value) return "values of a code";
  const float high = numerics::decode(format, down + 1);
  if (value - low == high - value) return "ties";
  return value < numerics::decode(format, 1u << format.mantissa_bits) ? "subnormals"
                                                                      : "values between codes";
}

DeviceFinding check_conversions(const DeviceConversions& conversions) {
  DeviceFinding finding;
  finding.what = conversions.label();
  finding.expected = conversions.format.bits() <= 8 ? "nearest even, saturating" : "nearest even";
  finding.results = conversions.inputs.size();
  const auto overflow =
      conversions.format.bits() <= 8 ? numerics::Overflow::saturate : numerics::Overflow::special;
  std::vector<std::string_view> kinds;
  for (std::size_t i = 0; i < conversions.inputs.size(); ++i) {
    const std::uint32_t input = conversions.inputs[i];
    const std::uint32_t expected = canonical(
        conversions.format,
        numerics::encode(conversions.format, input, numerics::Rounding::nearest, overflow));
    const std::uint32_t found = canonical(conversions.format, conversions.codes[i]);
    if (found == expected) continue;
    if (finding.different++ == 0) {
      finding.first =
          fmt::format("input {:#010x}: expected {:#x}, found {:#x}", input, expected, found);
    }
    const std::string_view kind = input_kind(conversions.format, input);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  if (!kinds.empty()) finding.deviation = fmt::format("other codes of {}", fmt::join(kinds, ", "));
  return finding;
}

}  // namespace

const TensorCoreProfile* expected_profile(const DeviceFacts& facts,
                                          const DeviceProducts& products) {
  const CardProfiles* const card = profiles_of(facts.major, facts.minor);
  if (card == nullptr) return nullptr;
  const bool is_fp8 = products.format_a.bits() <= 8;
  if (products.instruction == "wgmma") {
    return facts.major == 9 && is_fp8 && !products.to_f16 ? profile_named("sm90_wgmma_fp8")
                                                          : nullptr;
  }
  if (products.instruction != "mma.sync") return nullptr;
  if (is_fp8) return profile_named(products.to_f16 ? card->fp8_f16 : card->fp8);
  if (products.format_a == numerics::kBF16) return profile_named(card->bf16);
  if (products.format_a == numerics::kTF32) return profile_named(card->tf32);
  return profile_named(products.to_f16 ? card->f16_f16 : card->f16);
}

std::string_view recorded_cards(int major, int minor) {
  const CardProfiles* const card = profiles_of(major, minor);
  return card == nullptr ? "" : card->cards;
}

std::vector<std::uint32_t> emulated_products(const DeviceProducts& products,
                                             const Accumulator& accumulator) {
  std::vector<std::uint32_t> results(static_cast<std::size_t>(products.results()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i] = emulated(products, accumulator, static_cast<std::int64_t>(i), products.promote);
  }
  return results;
}

std::vector<DeviceFinding> check_device_pack(const DevicePack& pack) {
  std::vector<DeviceFinding> findings;
  for (const DeviceProducts& products : pack.products) {
    findings.push_back(check_products(pack.facts, products));
  }
  for (const DeviceConversions& conversions : pack.conversions) {
    findings.push_back(check_conversions(conversions));
  }
  return findings;
}

}  // namespace fp8lab
