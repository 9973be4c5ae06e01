#include "src/replay/gemm_arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "emulation/numerics/codec.hpp"
#include "emulation/ops/gemm/gemm.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

constexpr double kSplitShare = 0.1;  // of equal elements, below which no split of K is tried

bool are_powers_of_two(const std::vector<float>& scales) {
  return std::all_of(scales.begin(), scales.end(), [](float scale) {
    int exponent = 0;
    return std::frexp(scale, &exponent) == 0.5f;
  });
}

/// Returns the quantizer that the operand looks like.
QuantSpec quantizer_of(const RecordedOperand& operand) {
  QuantSpec spec;
  spec.format = operand.format;
  spec.tile = operand.tile;
  spec.scale_source = ScaleSource::current;
  if (operand.tile.cols == 32 && are_powers_of_two(operand.scales)) {
    spec.scale.format = numerics::ScaleFormat::e8m0;
  }
  return spec;
}

/// Sampled rows that share a row of square tiles, as an operand with its own memory.
struct RowGroup {
  std::vector<std::size_t> places;  ///< positions in the sample
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  QuantizedOperand operand;
};

/// Groups rows so that each group is an operand with the record's own tiles.
std::vector<RowGroup> row_groups(const RecordedOperand& recorded,
                                 const std::vector<std::int64_t>& rows) {
  const QuantSpec spec = quantizer_of(recorded);
  std::map<std::int64_t, RowGroup> by_tile;
  for (std::size_t place = 0; place < rows.size(); ++place) {
    const std::int64_t row = rows[place];
    RowGroup& group = by_tile[recorded.tile.rows > 1 ? row / recorded.tile.rows : 0];
    const auto first = recorded.codes.begin() + row * recorded.k;
    group.codes.insert(group.codes.end(), first, first + recorded.k);
    if (recorded.tile.rows == 1 || group.places.empty()) {
      const auto scales =
          recorded.scales.begin() + static_cast<std::ptrdiff_t>(recorded.scale_index(row, 0));
      group.scales.insert(group.scales.end(), scales, scales + recorded.scale_cols);
    }
    group.places.push_back(place);
  }
  std::vector<RowGroup> groups;
  for (auto& [tile, group] : by_tile) groups.push_back(std::move(group));
  for (RowGroup& group : groups) {
    QuantizedOperand& operand = group.operand;
    operand.spec = spec;
    operand.rows = static_cast<std::int64_t>(group.places.size());
    operand.k = recorded.k;
    operand.codes = {group.codes.data(), DType::u8, operand.rows, operand.k, operand.k};
    const auto high = static_cast<std::int64_t>(group.scales.size()) / recorded.scale_cols;
    operand.scales = {group.scales.data(), DType::f32, high, recorded.scale_cols,
                      recorded.scale_cols};
  }
  return groups;
}

/// Rounds a result to the type of D.
std::uint32_t result_code(const RecordedGemm& gemm, float value, std::int64_t col) {
  if (!gemm.bias.empty()) value = value + gemm.bias[static_cast<std::size_t>(col)];
  if (gemm.d_format == numerics::kFP32) return numerics::float_bits(value);
  const bool is_fp8 = gemm.d_format.bits() == 8;
  if (is_fp8) value = value * gemm.d_scale;
  return numerics::encode(gemm.d_format, numerics::float_bits(value), numerics::Rounding::nearest,
                          is_fp8 ? numerics::Overflow::saturate : numerics::Overflow::special);
}

void add_orders(std::vector<GemmArithmetic>& list, GemmSpec spec, const QuantSpec& a,
                const QuantSpec& b, bool in_blocks) {
  using numerics::ScaleOrder;
  std::vector<ScaleOrder> orders = {ScaleOrder::automatic};
  if (in_blocks && spec.schedule == Schedule::promote) {
    orders = {ScaleOrder::b_then_a, ScaleOrder::a_then_b, ScaleOrder::product_first};
  }
  for (const ScaleOrder order : orders) {
    spec.scale_order = order;
    for (const bool transposed : {false, true}) {
      const QuantSpec& left = transposed ? b : a;
      const QuantSpec& right = transposed ? a : b;
      if (gemm_refusal(spec, left, right).empty()) list.push_back({spec, transposed});
    }
  }
}

/// Returns the arithmetics with one range of K.
std::vector<GemmArithmetic> arithmetics(const RecordedGemm& gemm) {
  const QuantSpec a = quantizer_of(gemm.a), b = quantizer_of(gemm.b);
  const bool in_blocks = gemm.a.tile.cols > 0 || gemm.b.tile.cols > 0;
  std::vector<GemmArithmetic> list;
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    if (profile_of(profile.accumulator) != &profile) continue;  // the same unit of another chip
    GemmSpec spec;
    spec.accumulator = profile.accumulator;
    spec.output = DType::f32;
    spec.schedule = Schedule::fast;
    add_orders(list, spec, a, b, in_blocks);
    spec.schedule = Schedule::promote;
    for (const int interval : {32, 64, 128, 256, 512}) {
      if (interval >= gemm.k && interval > 128) continue;  // the same as a single chain
      spec.promote_interval = interval;
      add_orders(list, spec, a, b, in_blocks);
    }
  }
  return list;
}

std::size_t equal_results(const RecordedGemm& gemm, const ElementSample& sample,
                          const GemmArithmetic& arithmetic) {
  const std::vector<std::uint32_t> computed = computed_results(gemm, sample, arithmetic);
  std::size_t equal = 0, index = 0;
  for (const std::int64_t row : sample.rows) {
    for (const std::int64_t col : sample.cols) {
      equal += is_same_result(gemm.d_format, computed[index++], gemm.at(row, col)) ? 1 : 0;
    }
  }
  return equal;
}

/// Keeps those of `list` that have the bits of every element of growing samples.
void search(const RecordedGemm& gemm, const std::vector<GemmArithmetic>& list,
            ArithmeticSearch& found) {
  const ElementSample few = element_sample(gemm, 5), more = element_sample(gemm, 16);
  const auto size = [](const ElementSample& sample) {
    return sample.rows.size() * sample.cols.size();
  };
  std::vector<std::pair<std::size_t, const GemmArithmetic*>> ranked;
  for (const GemmArithmetic& arithmetic : list) {
    ranked.emplace_back(equal_results(gemm, few, arithmetic), &arithmetic);
  }
  found.tried += list.size();
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  const ElementSample all =
      element_sample(gemm, static_cast<std::size_t>(std::max(gemm.a.rows, gemm.b.rows)));
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    if (ranked[i].first < size(few) && i >= 3) break;  // the nearest ones are measured too
    std::size_t compared = size(more);
    std::size_t equal = equal_results(gemm, more, *ranked[i].second);
    if (equal == compared) {
      compared = size(all);
      equal = equal_results(gemm, all, *ranked[i].second);
    }
    if (equal == compared && compared == size(all)) {
      found.same.push_back(*ranked[i].second);
      continue;
    }
    const double share = static_cast<double>(equal) / static_cast<double>(compared);
    if (share > found.equal || (share == 0.0 && found.equal == 0.0 && i == 0)) {
      found.equal = share;
      found.compared = compared;
      found.nearest = *ranked[i].second;
    }
  }
}

}  // namespace

std::string GemmArithmetic::label() const {
  const std::string text = fp8lab::label(spec);
  return transposed ? text + " as D^T" : text;
}

bool is_same_result(const numerics::FormatSpec& format, std::uint32_t a, std::uint32_t b) {
  return a == b || (format.is_nan(a) && format.is_nan(b));
}

std::vector<std::uint32_t> computed_results(const RecordedGemm& gemm, const ElementSample& sample,
                                            const GemmArithmetic& arithmetic) {
  std::vector<RowGroup> a = row_groups(gemm.a, sample.rows), b = row_groups(gemm.b, sample.cols);
  std::vector<std::uint32_t> codes(sample.rows.size() * sample.cols.size());
  for (const RowGroup& x : a) {
    for (const RowGroup& y : b) {
      const RowGroup& left = arithmetic.transposed ? y : x;
      const RowGroup& right = arithmetic.transposed ? x : y;
      std::vector<float> d(left.places.size() * right.places.size());
      const TensorView view{d.data(), DType::f32, left.operand.rows, right.operand.rows,
                            right.operand.rows};
      reference::gemm(ops::Gemm{.spec = arithmetic.spec,
                                .a = left.operand,
                                .b = right.operand,
                                .bias = {},
                                .accumulate = false,
                                .d = view});
      for (std::size_t i = 0; i < x.places.size(); ++i) {
        for (std::size_t j = 0; j < y.places.size(); ++j) {
          const float value =
              arithmetic.transposed ? d[j * x.places.size() + i] : d[i * y.places.size() + j];
          codes[x.places[i] * sample.cols.size() + y.places[j]] =
              result_code(gemm, value, sample.cols[y.places[j]]);
        }
      }
    }
  }
  return codes;
}

ArithmeticSearch find_arithmetic(const RecordedGemm& gemm) {
  ArithmeticSearch found;
  const std::vector<GemmArithmetic> whole = arithmetics(gemm);
  search(gemm, whole, found);
  // Another order of the same sums changes few elements: others are no matter of splits.
  if (!found.same.empty() || found.equal < kSplitShare) return found;
  for (int split = 2; split <= 8; ++split) {
    std::vector<GemmArithmetic> list;
    for (GemmArithmetic arithmetic : whole) {
      if (arithmetic.spec.schedule == Schedule::promote &&
          arithmetic.spec.promote_interval != GemmSpec{}.promote_interval) {
        continue;
      }
      arithmetic.spec.split_k = split;
      const QuantSpec a = quantizer_of(gemm.a), b = quantizer_of(gemm.b);
      try {
        plan_gemm(arithmetic.spec, arithmetic.transposed ? b : a, arithmetic.transposed ? a : b,
                  gemm.k);
      } catch (const Error&) {
        continue;  // a range of K would be empty
      }
      list.push_back(arithmetic);
    }
    if (!list.empty()) search(gemm, list, found);
    if (!found.same.empty()) break;
  }
  return found;
}

std::vector<float> element_sums(const RecordedGemm& gemm, std::int64_t row, std::int64_t col,
                                const GemmArithmetic& arithmetic, std::int64_t every) {
  const std::vector<RowGroup> a = row_groups(gemm.a, {row}), b = row_groups(gemm.b, {col});
  const QuantizedOperand& x = a.front().operand;
  const QuantizedOperand& y = b.front().operand;
  return arithmetic.transposed ? reference::partial_sums(arithmetic.spec, y, x, every)
                               : reference::partial_sums(arithmetic.spec, x, y, every);
}

}  // namespace fp8lab
