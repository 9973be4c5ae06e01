// Finds the cheapest change of a recipe that brings its loss under a margin.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/assessment/sensitivity.hpp"

namespace fp8lab {

/// A recipe that was run.
struct TriedRecipe {
  std::string words;  ///< the change: "FP32 scales; layers.3.mlp.down in bf16"
  std::string text;   ///< contents of the recipe file
  /// (loss - baseline) / baseline on the data of the map; baseline:
  /// SensitivityMap::baseline_loss().
  double gap = 0;
  std::optional<double> seconds;  ///< product_seconds of a step of kRatedTokens tokens
  std::int64_t layers = 0;        ///< number of linear layers changed to bf16
};

inline constexpr std::int64_t kRatedTokens = 8 * 2048;

struct Suggestion {
  double margin = 0;
  std::vector<TriedRecipe> tried;     ///< in the order of their runs; the first is unchanged
  std::optional<std::size_t> chosen;  ///< index in `tried`; none if no recipe reached the margin
};

/// Tries the changes of the whole recipe that its fields allow: FP32 scales instead of powers of
/// two, tiles of 1x128 and 128x128 instead of whole tensors, and both. For each, finds the fewest
/// layers to change to bf16, in descending order of the loss per weight that they add in the map.
/// Every candidate is run on the data of the map. Chooses the candidate with the least time among
/// those with a gap of at most `margin`, then the one with the fewest layers. Unknown time counts
/// as infinite.
class SuggestionPlanner {
 public:
  /// Loss of a recipe on the data of the map.
  using Loss = std::function<double(const Recipe&)>;
  using Progress = std::function<void(const std::string& words)>;

  /// Precondition: `map` is the map of `recipe`; all references outlive this.
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
  /// Runs the variant with the first `count` layers of `order_` in bf16.
  TriedRecipe run(const Variant& variant, std::size_t count) const;
  /// Returns the recipe file of the variant with `layers` in bf16; `words` describes it.
  std::string text_of(const Variant& variant, const std::string& words,
                      const std::vector<std::string>& layers) const;
  void order_layers();

  const AssessedModel& model_;
  const Recipe& recipe_;
  const SensitivityMap& map_;
  Loss loss_;
  Progress progress_;
  std::vector<std::string> order_;  ///< layers in descending order of added loss per weight
};

}  // namespace fp8lab
