#include "src/assessment/suggestion.hpp"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "src/assessment/gemm_time.hpp"

namespace fp8lab {
namespace {

/// Sets scale_format = "fp32" in every slot table with another format, and removes the keys that
/// apply only to that format.
void give_fp32_scales(toml::table& slots) {
  for (auto&& [key, node] : slots) {
    toml::table* const table = node.as_table();
    if (table == nullptr) continue;
    give_fp32_scales(*table);
    const auto format = (*table)["scale_format"].value<std::string>();
    if (!format || *format == "fp32") continue;
    for (const char* gone : {"scale_rounding", "scale_overflow", "scale_factor"})
      table->erase(gone);
    table->insert_or_assign("scale_format", "fp32");
  }
}

toml::table& table_at(toml::table& parent, const char* key) {
  if (parent[key].as_table() == nullptr) parent.insert_or_assign(key, toml::table{});
  return *parent[key].as_table();
}

void give_block_tiles(toml::table& recipe) {
  toml::table& slots = table_at(recipe, "slots");
  for (auto&& [key, node] : slots) {
    if (toml::table* const table = node.as_table()) table->erase("tile");
  }
  table_at(slots, "x").insert_or_assign("tile", "1x128");
  table_at(slots, "w").insert_or_assign("tile", "128x128");
  table_at(slots, "dy").insert_or_assign("tile", "1x128");
  table_at(recipe, "gemm").insert_or_assign("schedule", "promote:128");
}

std::optional<Recipe> recipe_if_possible(const std::string& text) {
  try {
    return parse_recipe(text, "suggestion");
  } catch (const Error&) {
    return std::nullopt;  // incompatible fields
  }
}

}  // namespace

SuggestionPlanner::SuggestionPlanner(const AssessedModel& model, const Recipe& recipe,
                                     const SensitivityMap& map, Loss loss, Progress progress)
    : model_(model),
      recipe_(recipe),
      map_(map),
      loss_(std::move(loss)),
      progress_(std::move(progress)) {
  order_layers();
}

void SuggestionPlanner::order_layers() {
  struct Worth {
    std::string layer;
    double nats_a_weight = 0;  // GEMM time is proportional to the number of weights
  };
  std::vector<Worth> worths;
  for (const LayerSensitivity& entry : map_.layers) {
    const LinearDeclaration& linear = model_.linears()[entry.linear];
    const double added = entry.layer.loss() - map_.baseline_loss();
    worths.push_back({linear.name, added / static_cast<double>(linear.in * linear.out)});
  }
  std::stable_sort(worths.begin(), worths.end(), [](const Worth& a, const Worth& b) {
    return a.nats_a_weight > b.nats_a_weight;
  });
  for (const Worth& worth : worths) order_.push_back(worth.layer);
}

std::vector<SuggestionPlanner::Variant> SuggestionPlanner::variants() const {
  std::vector<Variant> result = {{"as it is"}};
  const LinearRecipe& linear = recipe_.linear;
  const auto any = [&](auto is) {
    return std::any_of(kSlots.begin(), kSlots.end(), [&](Slot slot) {
      const QuantSpec& spec = linear.slot(slot);
      return spec.has_scale() && is(spec);
    });
  };
  const bool powers =
      any([](const QuantSpec& spec) { return spec.scale.format != numerics::ScaleFormat::fp32; });
  const bool whole = any([](const QuantSpec& spec) { return spec.tile == TileShape{}; });
  if (powers) result.push_back({"FP32 scales", true, false});
  if (whole) result.push_back({"tiles of 1x128 and 128x128", false, true});
  if (powers && whole) {
    result.push_back({"FP32 scales; tiles of 1x128 and 128x128", true, true});
  }
  return result;
}

std::string SuggestionPlanner::text_of(const Variant& variant, const std::string& words,
                                       const std::vector<std::string>& layers) const {
  toml::table recipe = toml::parse(recipe_.text);
  recipe.insert_or_assign("name", recipe_.name + "_suggested");
  recipe.insert_or_assign("summary", recipe_.name + ": " + words);
  if (variant.fp32_scales) give_fp32_scales(table_at(recipe, "slots"));
  if (variant.block_tiles) give_block_tiles(recipe);
  toml::table& kept = table_at(recipe, "keep_high_precision");
  toml::array modules;
  for (const std::string& pattern : recipe_.keep_high_precision) modules.push_back(pattern);
  for (const std::string& layer : layers) modules.push_back(layer);
  kept.insert_or_assign("modules", std::move(modules));
  std::ostringstream text;
  text << recipe << "\n";
  return text.str();
}

TriedRecipe SuggestionPlanner::run(const Variant& variant, std::size_t count) const {
  TriedRecipe tried;
  const std::vector<std::string> layers(order_.begin(),
                                        order_.begin() + static_cast<std::ptrdiff_t>(count));
  tried.words = variant.words;
  tried.layers = static_cast<std::int64_t>(count);
  if (count > 0) {
    const std::string in_bf16 =
        count == 1 ? layers.front() + " in bf16" : fmt::format("{} layers in bf16", count);
    tried.words = variant.is_plain() ? in_bf16 : tried.words + "; " + in_bf16;
  }
  tried.text = text_of(variant, tried.words, layers);
  tried.gap = std::numeric_limits<double>::infinity();
  const std::optional<Recipe> recipe = recipe_if_possible(tried.text);
  if (!recipe) return tried;
  progress_(tried.words);
  tried.gap = loss_(*recipe) / map_.baseline_loss() - 1.0;
  tried.seconds =
      product_seconds(*recipe, model_.linears(), model_.model().layer_count(), kRatedTokens);
  return tried;
}

Suggestion SuggestionPlanner::plan(double margin) {
  Suggestion result;
  result.margin = margin;
  for (const Variant& variant : variants()) {
    const TriedRecipe whole = run(variant, 0);
    if (!(whole.gap < std::numeric_limits<double>::infinity())) continue;
    result.tried.push_back(whole);
    if (whole.gap <= margin) continue;
    // Finds the fewest layers: doubles their number up to the margin, then bisects.
    std::size_t low = 0, high = 1;
    std::optional<TriedRecipe> best;
    while (low < order_.size()) {
      high = std::min(high, order_.size());
      TriedRecipe tried = run(variant, high);
      result.tried.push_back(tried);
      if (tried.gap <= margin) {
        best = std::move(tried);
        break;
      }
      low = high;
      high *= 2;
    }
    while (best && high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      TriedRecipe tried = run(variant, middle);
      result.tried.push_back(tried);
      (tried.gap <= margin ? high : low) = middle;
    }
  }
  const auto cost = [&](std::size_t i) {
    const TriedRecipe& tried = result.tried[i];
    return std::make_pair(tried.seconds.value_or(std::numeric_limits<double>::infinity()),
                          tried.layers);
  };
  for (std::size_t i = 0; i < result.tried.size(); ++i) {
    if (result.tried[i].gap > margin) continue;
    if (!result.chosen || cost(i) < cost(*result.chosen)) result.chosen = i;
  }
  return result;
}

}  // namespace fp8lab
