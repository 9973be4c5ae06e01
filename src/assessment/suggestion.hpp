// The cheapest change of a recipe that brings its loss under a margin.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/assessment/sensitivity.hpp"

namespace fp8lab {

/// A recipe that was run. Gaps are (loss - baseline) / baseline on the data of the map, fractions,
/// the baseline being SensitivityMap::baseline_loss().
struct TriedRecipe {
  std::string words;  ///< what was changed: "FP32 scales; layers.3.mlp.down in bf16"
  std::string text;   ///< a recipe file
  double gap = 0;
  std::optional<double> seconds;  ///< product_seconds of a step of kRatedTokens tokens
  std::int64_t layers = 0;        ///< linear layers that were taken to bf16
};

inline constexpr std::int64_t kRatedTokens = 8 * 2048;

struct Suggestion {
  double margin = 0;
  std::vector<TriedRecipe> tried;     ///< in the order in which they were run; the first as it is
  std::optional<std::size_t> chosen;  ///< nothing reached the margin: none
};

/// Plans by what was measured: first the changes of the whole recipe that its fields allow (FP32
/// scales in place of powers of two; tiles of 1x128 and 128x128 in place of the tensor's), then, of
/// each, the fewest layers to take to bf16 in the order of what they add by the map for the time
/// that they cost. Every candidate is run on the data of the map. Chosen is the one of least time
/// among those whose gap is at most `margin`, then of fewest layers; time that is not known counts
/// as longest.
class SuggestionPlanner {
 public:
  /// Loss of a recipe on the data of the map.
  using Loss = std::function<double(const Recipe&)>;
  using Progress = std::function<void(const std::string& words)>;

  /// `map` is that of `recipe`. Everything given must outlive this.
  SuggestionPlanner(const AssessedModel& model, const Recipe& recipe, const SensitivityMap& map,
                    Loss loss, Progress progress);

  Suggestion plan(double margin);

 private:
  struct Variant {
    std::string words;
    bool fp32_scales = false, block_tiles = false;

    bool is_plain() const { return !fp32_scales && !block_tiles; }
  };

  std::vector<Variant> variants() const;
  /// The variant with the first `count` of `order_` in bf16, run.
  TriedRecipe run(const Variant& variant, std::size_t count) const;
  /// The recipe file of it.
  std::string text_of(const Variant& variant, const std::string& words,
                      const std::vector<std::string>& layers) const;
  void order_layers();

  const AssessedModel& model_;
  const Recipe& recipe_;
  const SensitivityMap& map_;
  Loss loss_;
  Progress progress_;
  std::vector<std::string> order_;  ///< layers, the most worthwhile first
};

}  // namespace fp8lab
