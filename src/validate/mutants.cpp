#include "src/validate/mutants.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "src/validate/scalar_arithmetic.hpp"

namespace fp8lab {
namespace {

using numerics::Alignment;
using numerics::bits_float;
using numerics::encode;
using numerics::EpilogueScales;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::GroupModel;
using numerics::Overflow;
using numerics::Rounding;
using numerics::ScaleOrder;
using numerics::ScaleRule;
using numerics::TileScale;

std::uint32_t encode_problem(const CastProblem& p) {
  return encode(p.format, p.f32_bits, p.rounding, p.overflow, p.random_bits);
}

/// Collects mutants: a name, a description of the fault, and the change to one step.
class MutantList {
 public:
  template <class Change>
  void add(const char* name, const char* broken, Change&& change) {
    ScalarSteps steps;
    change(steps);
    mutants_.push_back({name, broken, scalar_implementation(steps)});
  }

  template <class Change>  // void(CastProblem&)
  void add_cast(const char* name, const char* broken, Change change) {
    add(name, broken, [change](ScalarSteps& steps) {
      steps.cast = [change](CastProblem p) {
        change(p);
        return encode_problem(p);
      };
    });
  }

  template <class Change>  // void(ScaleRule&)
  void add_rule(const char* name, const char* broken, Change change) {
    add(name, broken, [change](ScalarSteps& steps) {
      steps.scale = [change](ScaleRule rule, const FormatSpec& format, float amax) {
        change(rule);
        return numerics::tile_scale(rule, format, amax);
      };
    });
  }

  template <class Change>  // void(GroupModel&), for single instructions and inside GEMMs
  void add_group(const char* name, const char* broken, Change change) {
    add(name, broken, [change](ScalarSteps& steps) {
      steps.group = [change](GroupProblem p) {
        change(p.model.group);
        return scalar_group(p);
      };
      steps.element = [change](ElementProblem p) {
        change(p.element.group);
        return scalar_element(p);
      };
    });
  }

  template <class Change>  // void(ElementProblem&)
  void add_element(const char* name, const char* broken, Change change) {
    add(name, broken, [change](ScalarSteps& steps) {
      steps.element = [change](ElementProblem p) {
        change(p);
        return scalar_element(p);
      };
    });
  }

  std::vector<Mutant> take() { return std::move(mutants_); }

 private:
  std::vector<Mutant> mutants_;
};

/// Rounds to `detour` first; infinity if the detour overflows.
void round_through(CastProblem& p, const FormatSpec& detour) {
  if (p.rounding != Rounding::nearest || p.format.bits() > 8) return;
  const std::uint32_t code = encode(detour, p.f32_bits, Rounding::nearest, Overflow::special);
  p.f32_bits = numerics::decode_bits(detour, code);
}

void add_casts(MutantList& list) {
  list.add_cast("cast_toward_zero", "the cast truncates instead of rounding to nearest even",
                [](CastProblem& p) {
                  if (p.rounding == Rounding::nearest) p.rounding = Rounding::toward_zero;
                });
  list.add_cast("cast_through_fp16", "the cast rounds to FP16 first and then to the format",
                [](CastProblem& p) { round_through(p, numerics::kFP16); });
  list.add_cast("cast_through_bf16", "the cast rounds to BF16 first and then to the format",
                [](CastProblem& p) { round_through(p, numerics::kBF16); });
  list.add_cast("cast_overflow_swapped", "saturation and infinity or NaN on overflow are exchanged",
                [](CastProblem& p) {
                  p.overflow =
                      p.overflow == Overflow::saturate ? Overflow::special : Overflow::saturate;
                });
  list.add_cast("cast_flushes_inputs", "FP32 subnormals count as zero", [](CastProblem& p) {
    if ((p.f32_bits & 0x7F800000u) == 0u) p.f32_bits &= 0x80000000u;
  });
  list.add_cast("cast_stochastic_bits", "stochastic rounding uses 8 random bits only",
                [](CastProblem& p) { p.random_bits &= 0xFFu; });
  list.add("cast_ties_away", "ties are rounded away from zero", [](ScalarSteps& steps) {
    steps.cast = [](CastProblem p) {
      const std::uint32_t above = p.f32_bits + 1u;
      const bool finite = (p.f32_bits & 0x7FFFFFFFu) < numerics::kF32MaxFinite;
      if (p.rounding == Rounding::nearest && finite) p.f32_bits = above;
      return encode_problem(p);
    };
  });
  list.add("cast_flushes_subnormals", "subnormal codes become zero", [](ScalarSteps& steps) {
    steps.cast = [](const CastProblem& p) {
      const std::uint32_t code = encode_problem(p);
      const bool normal = (code & p.format.magnitude_mask()) >> p.format.mantissa_bits != 0;
      return normal ? code : code & p.format.sign_mask();
    };
  });
  list.add("cast_drops_zero_sign", "-0 becomes +0", [](ScalarSteps& steps) {
    steps.cast = [](const CastProblem& p) {
      const std::uint32_t code = encode_problem(p);
      return code == p.format.sign_mask() ? 0u : code;
    };
  });
}

void add_scales(MutantList& list) {
  using numerics::ScaleArithmetic;
  using numerics::ScaleRounding;
  list.add_rule("scale_floor_for_ceil", "power-of-two scales are rounded down instead of up",
                [](ScaleRule& rule) {
                  if (rule.rounding == ScaleRounding::ceil) {
                    rule.rounding = ScaleRounding::ocp_floor;
                  }
                });
  list.add_rule("scale_ceil_for_floor", "power-of-two scales are rounded up instead of down",
                [](ScaleRule& rule) {
                  if (rule.rounding == ScaleRounding::ocp_floor) {
                    rule.rounding = ScaleRounding::ceil;
                  }
                });
  list.add_rule("scale_nearest_for_floor",
                "log2 of amax over the largest code is rounded to nearest instead of down",
                [](ScaleRule& rule) {
                  if (rule.rounding == ScaleRounding::floor) {
                    rule.rounding = ScaleRounding::nearest;
                  }
                });
  list.add_rule("scale_ocp_floor_for_floor",
                "log2 of the amax is rounded down instead of that of amax over the largest code",
                [](ScaleRule& rule) {
                  if (rule.rounding == ScaleRounding::floor) {
                    rule.rounding = ScaleRounding::ocp_floor;
                  }
                });
  list.add_rule("scale_factor_ignored", "the factor of power-of-two scales is not applied",
                [](ScaleRule& rule) { rule.factor = 1.0f; });
  list.add("scale_factor_not_cast", "the factor is in the stored scale and not in what is cast",
           [](ScalarSteps& steps) {
             steps.scale = [](ScaleRule rule, const FormatSpec& format, float amax) {
               TileScale scale = numerics::tile_scale(rule, format, amax);
               rule.factor = 1.0f;
               scale.multiplier = numerics::tile_scale(rule, format, amax).multiplier;
               return scale;
             };
           });
  list.add_rule("scale_reciprocal", "x is multiplied by RN(1/scale) instead of divided",
                [](ScaleRule& rule) {
                  if (rule.arithmetic == ScaleArithmetic::dec_div) {
                    rule.arithmetic = ScaleArithmetic::dec_div_recip;
                  }
                });
  list.add_rule("scale_ignores_epsilon", "the lower limit of the amax is not applied",
                [](ScaleRule& rule) { rule.amax_epsilon = 0.0f; });
  list.add("amax_signed", "the amax is the largest value instead of the largest magnitude",
           [](ScalarSteps& steps) {
             steps.magnitude = [](float x) {
               const std::uint32_t bits = float_bits(x);
               return (bits & 0x80000000u) != 0 ? 0u : bits;
             };
           });
  list.add("amax_skips_nan", "a NaN does not reach the amax of its tile", [](ScalarSteps& steps) {
    steps.magnitude = [](float x) {
      const std::uint32_t bits = float_bits(x) & 0x7FFFFFFFu;
      return bits > numerics::kF32Infinity ? 0u : bits;
    };
  });
  list.add("tile_16_for_32", "tiles of 32 are quantized as two tiles of 16",
           [](ScalarSteps& steps) {
             steps.amax_tile = [](const TileShape& tile) {
               return tile.cols == 32 ? TileShape{tile.rows, 16} : tile;
             };
           });
}

/// The sums of numerics::TileDeviation over a tile of finite elements.
struct TileSums {
  TileSums(std::uint32_t amax, std::span<const float> tile)
      : exponent(std::ilogb(bits_float(amax))), count(static_cast<std::int64_t>(tile.size())) {
    for (const float x : tile) {
      const std::int64_t v = std::llround(std::ldexp(double{x}, 20 - exponent));
      sum += v;
      squares += v * v;
    }
  }
  std::int64_t variance() const { return count * squares - sum * sum; }

  int exponent;
  std::int64_t count, sum = 0, squares = 0;
};

using Tile = std::span<const float>;

void add_deviations(MutantList& list) {
  const auto add = [&](const char* name, const char* broken, auto change) {
    list.add(name, broken, [change](ScalarSteps& steps) {
      steps.deviation = [change, correct = steps.deviation](std::uint32_t amax, Tile tile,
                                                            float deviations) {
        // The variants below require finite elements that are not all zero.
        if (amax == 0u || amax >= numerics::kF32Infinity) return correct(amax, tile, deviations);
        return change(correct, amax, tile, deviations);
      };
    });
  };
  add("deviation_ignored", "the amax of a tile is taken where its deviations are asked for",
      [](const auto&, std::uint32_t amax, Tile, float) { return amax; });
  add("deviation_about_zero", "deviations are those from zero instead of the mean",
      [](const auto&, std::uint32_t amax, Tile tile, float deviations) {
        const TileSums sums(amax, tile);
        const float root = std::sqrt(static_cast<float>(sums.count * sums.squares));
        const float scaled = deviations * root / static_cast<float>(sums.count);
        return std::min(float_bits(std::ldexp(scaled, sums.exponent - 20)),
                        numerics::kF32MaxFinite);
      });
  add("deviation_of_sample", "squares are divided by n - 1 instead of n",
      [](const auto& correct, std::uint32_t amax, Tile tile, float deviations) {
        const auto n = static_cast<float>(tile.size());
        return correct(amax, tile, n > 1 ? deviations * std::sqrt(n / (n - 1)) : deviations);
      });
  add("deviation_drops_last", "the last element of a tile is left out of its deviation",
      [](const auto& correct, std::uint32_t amax, Tile tile, float deviations) {
        return correct(amax, tile.first(tile.size() - 1), deviations);
      });
  add("deviation_truncated", "elements are cut to 20 bits below the amax instead of rounded",
      [](const auto& correct, std::uint32_t amax, Tile tile, float deviations) {
        const int exponent = std::ilogb(bits_float(amax)) - 20;
        std::vector<float> cut;
        for (const float x : tile) {
          cut.push_back(std::ldexp(std::trunc(std::ldexp(x, -exponent)), exponent));
        }
        return correct(amax, cut, deviations);
      });
  add("deviation_rounded_once", "deviations are rounded to FP32 at the end alone",
      [](const auto& correct, std::uint32_t amax, Tile tile, float deviations) {
        const TileSums sums(amax, tile);
        if (sums.variance() == 0) return correct(amax, tile, deviations);
        const double sigma =
            std::sqrt(static_cast<double>(sums.variance())) / static_cast<double>(sums.count);
        const double scaled = std::ldexp(deviations * sigma, sums.exponent - 20);
        const double largest = bits_float(numerics::kF32MaxFinite);
        return float_bits(static_cast<float>(std::min(scaled, largest)));
      });
  add("deviation_of_constant", "equal elements have a deviation of zero instead of their amax",
      [](const auto& correct, std::uint32_t amax, Tile tile, float deviations) {
        const bool is_constant = tile.size() > 1 && TileSums(amax, tile).variance() == 0;
        return is_constant ? 0u : correct(amax, tile, deviations);
      });
}

void add_groups(MutantList& list) {
  list.add_group("fraction_bits_12", "one fraction bit less below the largest exponent",
                 [](GroupModel& group) { --group.fraction_bits; });
  list.add_group("fraction_bits_14", "one fraction bit more below the largest exponent",
                 [](GroupModel& group) { ++group.fraction_bits; });
  list.add_group("alignment_nearest", "terms are rounded to nearest even instead of truncated",
                 [](GroupModel& group) { group.alignment = Alignment::nearest_even; });
  list.add_group("products_normalised", "the largest exponent is that of normalised products",
                 [](GroupModel& group) { group.normalize_products = true; });
  list.add_group("zero_products_count", "a zero product takes part in the largest exponent",
                 [](GroupModel& group) { group.zero_products_count = true; });
  list.add_group("output_nearest", "the result is rounded to nearest even instead of truncated",
                 [](GroupModel& group) { group.output_rounding = Alignment::nearest_even; });
  list.add_group("accumulator_not_truncated", "the FP8 accumulator keeps 23 mantissa bits",
                 [](GroupModel& group) { group.output_mantissa_bits = 23; });
  list.add_group("exponent_floor_126", "the largest exponent is at least -126",
                 [](GroupModel& group) { group.min_exponent = -126; });
  list.add_element("group_of_16", "FP8 groups of 16 products instead of 32",
                   [](ElementProblem& p) { p.element.group.products = 16; });
  list.add("mma_sync_one_group", "mma.sync on FP8 is one group of 32 with its accumulator",
           [](ScalarSteps& steps) {
             steps.group = [](GroupProblem p) {
               p.model.mma_sync_fp8 = false;
               return scalar_group(p);
             };
           });
}

void add_schedules(MutantList& list) {
  list.add_element("k_tail_dropped", "products beyond the last whole group of 32 are left out",
                   [](ElementProblem& p) { p.k = p.k / 32 * 32; });
  list.add_element("promotion_missing", "partial sums are not promoted to FP32",
                   [](ElementProblem& p) {
                     if (p.element.order == ScaleOrder::epilogue) p.element.promote_interval = 0;
                   });
  list.add_element("promotion_too_often", "partial sums are promoted every 64 products",
                   [](ElementProblem& p) {
                     if (p.element.promote_interval == 128) p.element.promote_interval = 64;
                   });
  list.add_element("scale_product_first", "sA * sB is rounded first in the 1x128 by 1x128 mode",
                   [](ElementProblem& p) {
                     if (p.element.order == ScaleOrder::b_then_a) {
                       p.element.order = ScaleOrder::product_first;
                     }
                   });
  list.add_element("scale_a_first", "A's scale is applied before B's in the 1x128 by 1x128 mode",
                   [](ElementProblem& p) {
                     if (p.element.order == ScaleOrder::b_then_a) {
                       p.element.order = ScaleOrder::a_then_b;
                     }
                   });
  list.add_element(
      "scale_of_next_tile", "block scales are those of the next tile along K",
      [](ElementProblem& p) { std::rotate(p.sa.begin(), p.sa.begin() + 1, p.sa.end()); });
  list.add_element("split_ignored", "split-K ranges are summed in one chain",
                   [](ElementProblem& p) { p.element.range_width = 0; });
}

/// Computes the element with FP32 output and no bias, then applies `finish` to the value.
template <class Finish>
std::uint32_t finished_late(const ElementProblem& p, Finish finish) {
  ElementProblem plain = p;
  plain.bias.reset();
  plain.epilogue.output = numerics::kFP32;
  return finish(bits_float(scalar_element(plain)));
}

void add_epilogues(MutantList& list) {
  list.add_element("alpha_folded", "alpha is multiplied into the outer scales",
                   [](ElementProblem& p) {
                     if (p.epilogue.scales != EpilogueScales::outer) return;
                     p.sa[0] *= p.epilogue.alpha;
                     p.epilogue.alpha = 1.0f;
                   });
  list.add_element("split_epilogue", "the split-K epilogue is used without split-K",
                   [](ElementProblem& p) { p.epilogue.split_k = true; });
  list.add_element("bias_ignored", "the bias is not added",
                   [](ElementProblem& p) { p.bias.reset(); });
  list.add("bias_after_rounding", "the bias is added to the rounded output and rounded again",
           [](ScalarSteps& steps) {
             steps.element = [](const ElementProblem& p) {
               const bool wide = p.epilogue.output.bits() > 8;
               if (!p.bias || !wide) return scalar_element(p);
               ElementProblem unbiased = p;
               unbiased.bias.reset();
               const float rounded = numerics::decode(p.epilogue.output, scalar_element(unbiased));
               return encode(p.epilogue.output, float_bits(rounded + *p.bias), Rounding::nearest,
                             Overflow::special);
             };
           });
  list.add("output_through_fp16", "the output passes through FP16 on its way to BF16",
           [](ScalarSteps& steps) {
             steps.element = [](const ElementProblem& p) {
               if (!(p.epilogue.output == numerics::kBF16)) return scalar_element(p);
               return finished_late(p, [&](float v) {
                 const float sum = p.bias ? v + *p.bias : v;
                 const std::uint32_t half =
                     encode(numerics::kFP16, float_bits(sum), Rounding::nearest, Overflow::special);
                 return encode(numerics::kBF16, numerics::decode_bits(numerics::kFP16, half),
                               Rounding::nearest, Overflow::special);
               });
             };
           });
  list.add("output_zero", "every output is zero",
           [](ScalarSteps& steps) { steps.element = [](const ElementProblem&) { return 0u; }; });
}

void add_operands(MutantList& list) {
  list.add("operands_swapped", "the operands change places: element (m, n) is that of (n, m)",
           [](ScalarSteps& steps) {
             steps.operand_rows = [](std::int64_t m, std::int64_t n, std::int64_t rows,
                                     std::int64_t cols) {
               return OperandRows{n % rows, m % cols};
             };
           });
  list.add("scale_index_transposed",
           "scales of the second operand are read at the transposed index", [](ScalarSteps& steps) {
             steps.scale_index_b = [](ScaleIndex wanted, std::int64_t rows, std::int64_t cols) {
               return ScaleIndex{wanted.col % rows, wanted.row % cols};
             };
           });
  list.add("column_off_by_one", "the last column is computed from the row before its own",
           [](ScalarSteps& steps) {
             steps.operand_rows = [](std::int64_t m, std::int64_t n, std::int64_t,
                                     std::int64_t cols) {
               return OperandRows{m, n == cols - 1 && n > 0 ? n - 1 : n};
             };
           });
}

}  // namespace

std::vector<Mutant> all_mutants() {
  MutantList list;
  add_casts(list);
  add_scales(list);
  add_deviations(list);
  add_groups(list);
  add_schedules(list);
  add_epilogues(list);
  add_operands(list);
  return list.take();
}

bool MutantOutcome::good() const {
  return std::all_of(unmutated.begin(), unmutated.end(),
                     [](const CheckReport& check) { return check.mismatches == 0; }) &&
         std::all_of(mutants.begin(), mutants.end(),
                     [](const MutantReport& mutant) { return mutant.killed; });
}

MutantOutcome validate_mutants(const Implementation& expected, const std::vector<Mutant>& mutants,
                               const MutantOptions& options) {
  const auto announce = [&](const std::string& name) {
    if (options.progress) options.progress(name);
  };
  announce("expected results");
  const ValidationSuite suite(expected, options.golden, options.seed);
  MutantOutcome outcome;
  announce("the unmutated reference");
  outcome.unmutated = suite.run(scalar_implementation(), false);
  for (const Mutant& mutant : mutants) {
    announce(mutant.name);
    const CheckReport last = suite.run(mutant.implementation, true).back();
    MutantReport report{mutant.name, mutant.broken, last.mismatches > 0, {}, {}};
    if (report.killed) {
      report.check = last.name;
      report.first_mismatch = last.first;
    }
    outcome.mutants.push_back(std::move(report));
  }
  return outcome;
}

}  // namespace fp8lab
