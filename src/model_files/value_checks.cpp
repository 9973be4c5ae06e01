// Codes, scales and values: what no trained weight holds, and what does not belong together.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "emulation/numerics/codec.hpp"
#include "src/model_files/code_scan.hpp"
#include "src/model_files/model_doctor.hpp"
#include "src/model_files/packed_experts.hpp"

namespace fp8lab {
namespace {

/// No weight of a trained linear layer is as large; a scale of the wrong sense makes such ones.
constexpr float kLargestPlausible = 200.0f;
/// The largest weights of like-named layers lie within far less of their median.
constexpr double kSiblingOctaves = 7;
/// Ratio of a scale to the nearest of its neighbours from which on it is reported, for tiles of at
/// least kLargeTile elements and for smaller ones, whose amax varies more.
constexpr float kJump = 32.0f, kJumpOfSmallTiles = 256.0f;
constexpr std::int64_t kLargeTile = 1024;

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The scales beside one: up, down, left and right; along one extent the next two.
std::vector<float> neighbours(const ScaleGrid& grid, std::size_t index) {
  const std::int64_t cols = grid.tile_cols(), rows = grid.tile_rows();
  const std::int64_t block = static_cast<std::int64_t>(index) % (rows * cols);
  const std::int64_t base = static_cast<std::int64_t>(index) - block;
  const std::int64_t row = block / cols, col = block % cols;
  std::vector<float> found;
  const auto take = [&](std::int64_t r, std::int64_t c) {
    if (r < 0 || r >= rows || c < 0 || c >= cols) return;
    const float value = grid.values()[static_cast<std::size_t>(base + r * cols + c)];
    if (value > 0 && std::isfinite(value)) found.push_back(value);
  };
  for (const std::int64_t step : {-1, 1}) {
    take(row + step, col);
    take(row, col + step);
    if (cols == 1) take(row + 2 * step, col);
    if (rows == 1) take(row, col + 2 * step);
  }
  return found;
}

class ValueChecks {
 public:
  ValueChecks(const ModelFolder& folder, std::vector<ModelFinding>& findings)
      : folder_(folder), findings_(findings) {}

  void check_weight(const StoredWeight& weight) {
    const ScaleGrid grid = ScaleGrid::read(weight);
    const CodeScan scan = scan_codes(weight, grid);
    const bool is_other_format = check_codes(weight, grid, scan);
    const bool is_sound = check_global(weight) && check_scales(weight, grid, scan);
    if (is_other_format || !is_sound) return;
    check_sense(weight, grid, scan);
    check_jumps(weight, grid, scan);
  }

  void check_plain(const StoredTensor& tensor) {
    if (!is_weight_type(tensor.type)) return;
    bool on_grid = tensor.type != StoredType::f8_e4m3 && tensor.type != StoredType::f8_e5m2;
    std::int64_t count = 0, first_at = 0;
    float amax = 0;
    std::vector<float> values;
    for (std::int64_t first = 0; first < tensor.size(); first += kElementsAtOnce) {
      values.resize(static_cast<std::size_t>(std::min(kElementsAtOnce, tensor.size() - first)));
      read_elements(tensor, first, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float value = values[i];
        amax = std::max(amax, std::abs(value));
        if (!std::isfinite(value) && count++ == 0) first_at = first + static_cast<std::int64_t>(i);
        on_grid = on_grid && is_e4m3(value);
      }
    }
    if (count > 0) report_nonfinite(tensor.name, tensor.shape, count, first_at);
    const bool is_linear = tensor.name.ends_with(".weight") && tensor.shape.size() == 2;
    if (!on_grid || !is_linear || amax < 16 || tensor.size() < 64) return;
    add(Severity::error, "scale_dropped", tensor.name, {}, 1,
        fmt::format("is {}, but every value is one of the 253 of E4M3, up to {}: FP8 codes written "
                    "as values without their scales; the weight is wrong by that factor",
                    stored_name(tensor.type), amax));
  }

  void check_experts(const PackedExperts& experts) {
    const std::vector<std::int64_t> shape = experts.shape();
    const std::int64_t size = shape[0] * shape[1] * shape[2];
    const PackedExpertBytes bytes = read_bytes(experts);
    std::int64_t count = 0, first_at = 0;
    std::vector<float> values;
    for (std::int64_t first = 0; first < size; first += kElementsAtOnce) {
      values.resize(static_cast<std::size_t>(std::min(kElementsAtOnce, size - first)));
      read_experts(experts, bytes, first, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isfinite(values[i]) || count++ > 0) continue;
        first_at = first + static_cast<std::int64_t>(i);
      }
    }
    if (count > 0) report_nonfinite(experts.name, shape, count, first_at);
  }

  void check_input_scales() {
    std::int64_t ones = 0, all = 0;
    const StoredTensor* first = nullptr;
    for (const StoredTensor* tensor : folder_.tensors) {
      const bool is_one = tensor->name.ends_with(".input_scale") ||
                          tensor->name.ends_with(".activation_scale") ||
                          tensor->name.ends_with(".input_global_scale") ||
                          tensor->name.ends_with(".k_scale") || tensor->name.ends_with(".v_scale");
      if (!is_one || !is_decodable(tensor->type) || tensor->size() == 0) continue;
      first = first == nullptr ? tensor : first;
      std::vector<float> values(static_cast<std::size_t>(tensor->size()));
      read_elements(*tensor, 0, values);
      ++all;
      ones += std::all_of(values.begin(), values.end(), [](float one) { return one == 1.0f; });
      const auto bad = std::find_if_not(values.begin(), values.end(), [](float value) {
        return value > 0 && std::isfinite(value);
      });
      if (bad == values.end()) continue;
      add(Severity::error, "input_scale_value", tensor->name, {}, 1,
          fmt::format("is {}: the layer's output is NaN, infinite or zero", *bad));
    }
    if (all < 2 || ones != all) return;
    add(Severity::warning, "input_scale_value", first->name, {}, all,
        fmt::format("and all {} scales of inputs and caches are 1: they were never calibrated",
                    all));
  }

  /// Weights that are far larger or smaller than those of the same name in other layers.
  void check_siblings() {
    for (const auto& [name, members] : siblings_) {
      if (members.size() < 3) continue;
      std::vector<float> octaves;
      for (const Member& one : members) octaves.push_back(one.octave);
      const float usual = median(octaves);
      for (const Member& one : members) {
        if (std::abs(one.octave - usual) <= kSiblingOctaves) continue;
        add(Severity::error, "scale_of_another", one.weight->scales->name, {}, 1,
            fmt::format("makes the largest weight {:.3g}, {:.0f} times {} than in the like-named "
                        "layers: the scale is another's, or applied twice or not at all",
                        std::exp2(one.octave), std::exp2(std::abs(one.octave - usual)),
                        one.octave > usual ? "larger" : "smaller"));
      }
    }
  }

 private:
  struct Member {
    const StoredWeight* weight;
    float octave;  ///< log2 of the largest weight
  };

  void add(Severity severity, const char* kind, const std::string& tensor,
           std::vector<std::int64_t> block, std::int64_t count, std::string text) {
    findings_.push_back({severity, kind, tensor, std::move(block), count, std::move(text)});
  }

  static bool is_e4m3(float value) {
    const std::uint32_t code = numerics::encode(numerics::kE4M3, numerics::float_bits(value));
    return numerics::decode(numerics::kE4M3, code) == value;
  }

  void report_nonfinite(const std::string& name, const std::vector<std::int64_t>& shape,
                        std::int64_t count, std::int64_t at) {
    std::vector<std::int64_t> place(shape.size());
    std::int64_t size = 1;
    for (std::size_t i = place.size(); i-- > 0;) {
      place[i] = at % shape[i];
      at /= shape[i];
      size *= shape[i];
    }
    add(Severity::error, "nonfinite", name, {}, count,
        fmt::format("{} of {} elements are NaN or infinite, the first at ({}): every output of the "
                    "layer becomes NaN",
                    count, size, fmt::join(place, ", ")));
  }

  /// Returns true if the codes are another format's, so that their values say nothing.
  bool check_codes(const StoredWeight& weight, const ScaleGrid& grid, const CodeScan& scan) {
    const numerics::FormatSpec format = weight.layout.format;
    if (weight.layout.is_packed()) return check_zero(weight, scan);
    const ExactBlocks exact = exact_blocks(grid, scan);
    if (const std::string other = other_format(weight, scan, exact); !other.empty()) {
      const bool is_fnuz = (other == "e4m3fnuz") != (format == numerics::kE4M3Fnuz);
      add(Severity::error, is_fnuz ? "fnuz" : "other_format", weight.codes->name,
          grid.indices(scan.first_block), std::max<std::int64_t>(scan.special_blocks(), 1),
          fmt::format("is read as {}, but its codes are those of {} ({}): {}", format_name(format),
                      other, evidence(format, scan, exact),
                      is_fnuz ? "values are wrong by a factor of 2, and some codes are NaN"
                              : "every value is another one"));
      return true;
    }
    if (scan.specials > 0) {
      add(Severity::error, "nan_code", weight.codes->name, grid.indices(scan.first_block),
          scan.specials,
          fmt::format("{} codes are NaN or infinite, the first at ({}, {}) in {}: every output of "
                      "the layer becomes NaN",
                      scan.specials, scan.row, scan.col, grid.place(scan.first_block)));
      return false;
    }
    return check_zero(weight, scan);
  }

  bool check_zero(const StoredWeight& weight, const CodeScan& scan) {
    if (scan.nonzero_blocks() > 0) return false;
    add(Severity::warning, "all_zero", weight.codes->name, {}, 1,
        "holds nothing but zeros: the layer's output is its bias");
    return true;
  }

  /// Blocks whose scale maps their amax to the largest number of the format, so that their largest
  /// code tells the format. A power of two does not: it is rounded up from that ratio, and correct
  /// codes end anywhere in the last octave. Such scales are told by their values, as F32 holds them
  /// too. Blocks of one scale count once: they share one amax, and are no independent evidence.
  struct ExactBlocks {
    std::int64_t count = 0;
    std::int64_t at_e5m2_limit = 0;  ///< of them, those that end at the largest number of E5M2
  };

  static constexpr std::uint8_t kE5M2Limit = 0x7B;  ///< 57344 in E5M2, 352 in E4M3

  static ExactBlocks exact_blocks(const ScaleGrid& grid, const CodeScan& scan) {
    std::map<float, std::uint8_t> largest;  // by scale
    for (std::size_t i = 0; i < grid.values().size(); ++i) {
      const float scale = grid.values()[i];
      int exponent = 0;
      if (!std::isfinite(scale) || scale <= 0 || std::frexp(scale, &exponent) == 0.5f) continue;
      if (scan.largest[i] == 0 && !scan.has_special[i]) continue;
      std::uint8_t& code = largest[scale];
      code = std::max(code, scan.largest[i]);
    }
    ExactBlocks exact;
    exact.count = static_cast<std::int64_t>(largest.size());
    for (const auto& [scale, code] : largest) exact.at_e5m2_limit += code == kE5M2Limit;
    return exact;
  }

  static std::string evidence(numerics::FormatSpec format, const CodeScan& scan,
                              const ExactBlocks& exact) {
    if (format == numerics::kE4M3Fnuz) {
      return fmt::format("{} codes 0x80, none 0x7F", scan.histogram[0x80]);
    }
    if (scan.specials == 0) {
      return fmt::format(
          "the largest code under each of {} scales is 0x7B, the last number of e5m2", exact.count);
    }
    return fmt::format("{} of {} blocks hold codes that are NaN or infinite in {}",
                       scan.special_blocks(), scan.nonzero_blocks(), format_name(format));
  }

  /// The format that the codes are those of; empty: the own one, or not certain. Codes without NaN
  /// are another format's only if four or more exact blocks say so, and none contradicts: under
  /// such scales E4M3 ends at 0x7E, E5M2 at 0x7B.
  static std::string other_format(const StoredWeight& weight, const CodeScan& scan,
                                  const ExactBlocks& exact) {
    const numerics::FormatSpec format = weight.layout.format;
    const std::int64_t blocks = scan.nonzero_blocks(), special = scan.special_blocks();
    const auto both = [&](std::size_t code) {
      return scan.histogram[code] + scan.histogram[code | 0x80];
    };
    const bool most_are_special = special > 0 && 2 * special >= blocks;
    if (format == numerics::kE4M3) {
      const bool never_at_448 = exact.count > 0 && both(0x7E) == 0;
      if (most_are_special && scan.histogram[0x80] == 0 && (blocks >= 4 || never_at_448)) {
        return "e4m3fnuz";
      }
      const std::uint8_t largest = *std::max_element(scan.largest.begin(), scan.largest.end());
      if (special == 0 && largest == kE5M2Limit && exact.count >= 4 &&
          exact.at_e5m2_limit == exact.count) {
        return "e5m2";
      }
    }
    if (format == numerics::kE4M3Fnuz && exact.count > 0 && scan.histogram[0x80] > 0 &&
        both(0x7F) == 0) {
      return "e4m3fn";
    }
    if (format == numerics::kE5M2 && most_are_special && blocks >= 4) return "e4m3fn";
    return {};
  }

  /// Returns false if the tensor's scale of two levels is no positive number: it spoils all others,
  /// which are then no evidence.
  bool check_global(const StoredWeight& weight) {
    if (weight.global == nullptr) return true;
    std::vector<float> values(static_cast<std::size_t>(weight.global->size()));
    read_elements(*weight.global, 0, values);
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !(value > 0) || std::isinf(value); });
    if (bad == values.end()) return true;
    add(Severity::error, "scale_value", weight.global->name, {}, 1,
        fmt::format("the tensor's scale is {}: every value of '{}' is wrong", *bad, weight.name));
    return false;
  }

  /// Returns false if a scale is no positive number.
  bool check_scales(const StoredWeight& weight, const ScaleGrid& grid, const CodeScan& scan) {
    struct Kind {
      const char* words;
      const char* effect;
      std::int64_t count = 0;
      std::size_t first = 0;
    };
    Kind kinds[] = {{"NaN", "their blocks become NaN"},
                    {"infinite", "their blocks become infinite, or NaN where a code is 0"},
                    {"negative", "the signs of their blocks are turned around"},
                    {"zero beside codes that are not", "their blocks read as 0"}};
    for (std::size_t i = 0; i < grid.values().size(); ++i) {
      const float value = grid.values()[i];
      const bool has_codes = scan.largest[i] != 0 || scan.has_special[i];
      Kind* const kind = std::isnan(value)           ? &kinds[0]
                         : std::isinf(value)         ? &kinds[1]
                         : value < 0                 ? &kinds[2]
                         : (value == 0 && has_codes) ? &kinds[3]
                                                     : nullptr;
      if (kind != nullptr && kind->count++ == 0) kind->first = i;
    }
    bool is_sound = true;
    for (const Kind& kind : kinds) {
      if (kind.count == 0) continue;
      is_sound = false;
      add(Severity::error, "scale_value", weight.scales->name, grid.indices(kind.first), kind.count,
          fmt::format("{} of {} scales are {}, the first of {}: {}", kind.count,
                      grid.values().size(), kind.words, grid.place(kind.first), kind.effect));
    }
    return is_sound;
  }

  static bool is_one(const StoredTensor& global) {
    std::vector<float> values(static_cast<std::size_t>(global.size()));
    read_elements(global, 0, values);
    return std::all_of(values.begin(), values.end(), [](float value) { return value == 1.0f; });
  }

  /// The largest weight, which a scale of the wrong sense makes implausible.
  void check_sense(const StoredWeight& weight, const ScaleGrid& grid, const CodeScan& scan) {
    float amax = 0, inverse = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < grid.values().size(); ++i) {
      const float code = numerics::decode(weight.layout.format, scan.largest[i]);
      if (code == 0) continue;
      const float value = grid.values()[i] * code;
      inverse = std::max(inverse, code / grid.values()[i]);
      if (value <= amax) continue;
      amax = value;
      at = i;
    }
    if (amax > kLargestPlausible && weight.global != nullptr && is_one(*weight.global)) {
      add(Severity::error, "scale_inverted", weight.global->name, {}, 1,
          fmt::format("is 1, which makes the largest weight of '{}' {:.4g}: the tensor's scale is "
                      "lost",
                      weight.name, amax));
    } else if (amax > kLargestPlausible) {
      const std::string why =
          std::all_of(grid.values().begin(), grid.values().end(), [](float s) { return s == 1.0f; })
              ? "all scales are 1, so that the codes themselves are the weights"
          : inverse < kLargestPlausible
              ? fmt::format("divided by the scale it is {:.3g}: the scale is stored as its inverse",
                            inverse)
              : "the scale is not this weight's";
      add(Severity::error, "scale_inverted", weight.scales->name, grid.indices(at), 1,
          fmt::format("makes the largest weight {:.4g}, in {}, which no trained layer has; {}",
                      amax, grid.place(at), why));
    } else if (amax > 0) {
      siblings_[leaf_of_module(module_of_tensor(weight.name))].push_back(
          {&weight, std::log2(amax)});
    }
  }

  /// Scales that differ from all of their neighbours.
  void check_jumps(const StoredWeight& weight, const ScaleGrid& grid, const CodeScan& scan) {
    const std::size_t count = grid.values().size();
    const bool is_large = grid.tile_height() * grid.tile_width() >= kLargeTile && grid.cols() > 1 &&
                          weight.layout.tile.cols != 0 && !weight.layout.tile.is_column();
    const float limit = is_large ? kJump : kJumpOfSmallTiles;
    std::int64_t jumps = 0;
    std::size_t first = 0;
    float first_ratio = 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (scan.largest[i] == 0) continue;
      const std::vector<float> beside = neighbours(grid, i);
      if (beside.size() < 2) continue;
      const auto [lowest, highest] = std::minmax_element(beside.begin(), beside.end());
      const float value = grid.values()[i];
      const bool jumps_up = value > limit * *highest,
                 jumps_down = is_large && value * limit < *lowest;
      const float ratio = value / (jumps_up ? *highest : *lowest);
      if (!jumps_up && !jumps_down) continue;
      if (jumps++ > 0) continue;
      first = i;
      first_ratio = ratio;
    }
    if (jumps == 0) return;
    add(Severity::warning, "scale_jump", weight.scales->name, grid.indices(first), jumps,
        fmt::format("{} of {} scales differ from all beside them, the first of {} by a factor of "
                    "{:.3g}: the block's weights are as much too {}, unless they were trained so",
                    jumps, count, grid.place(first), first_ratio,
                    first_ratio > 1 ? "large" : "small"));
  }

  const ModelFolder& folder_;
  std::vector<ModelFinding>& findings_;
  std::map<std::string, std::vector<Member>> siblings_;
};

}  // namespace

void check_values(const ModelFolder& folder, const PartReport& report,
                  std::vector<ModelFinding>& findings) {
  ValueChecks checks(folder, findings);
  std::uint64_t all = 0, done = 0;
  for (const StoredTensor* tensor : folder.tensors) all += tensor->bytes();
  const auto say = [&](const StoredTensor& tensor) {
    if (report) report("reading " + tensor.name, done / 1'000'000, all / 1'000'000 + 1, "MB");
    done += tensor.bytes();
  };
  for (const StoredWeight& weight : folder.weights) {
    say(*weight.codes);
    if (is_readable(weight)) checks.check_weight(weight);
  }
  for (const StoredTensor* tensor : folder.plain) {
    say(*tensor);
    checks.check_plain(*tensor);
  }
  std::vector<ModelFinding> reported;  // by check_claims
  for (const PackedExperts& experts : find_packed_experts(folder, reported)) {
    checks.check_experts(experts);
  }
  checks.check_input_scales();
  checks.check_siblings();
}

}  // namespace fp8lab
