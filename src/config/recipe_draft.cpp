#include "src/config/recipe_draft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

struct Operand {
  std::string_view name;
  std::vector<Slot> slots;
};

const std::vector<Operand>& operands() {
  static const std::vector<Operand> list = {
      {"x", {Slot::fprop_x, Slot::wgrad_x}},
      {"w", {Slot::fprop_w, Slot::dgrad_w}},
      {"dy", {Slot::dgrad_dy, Slot::wgrad_dy}},
  };
  return list;
}

bool is_weight(Slot slot) { return slot == Slot::fprop_w || slot == Slot::dgrad_w; }

// The other orientation of the tensor of a second-orientation slot.
std::optional<Slot> first_orientation(Slot slot) {
  if (slot == Slot::dgrad_w) return Slot::fprop_w;
  if (slot == Slot::wgrad_dy) return Slot::dgrad_dy;
  if (slot == Slot::wgrad_x) return Slot::fprop_x;
  return std::nullopt;
}

std::vector<Slot> only(const std::vector<Slot>& slots, bool (*wanted)(Slot)) {
  std::vector<Slot> kept;
  std::copy_if(slots.begin(), slots.end(), std::back_inserter(kept), wanted);
  return kept;
}

numerics::FormatSpec format_of(DType dtype) {
  return dtype == DType::f32 ? numerics::kFP32 : numerics::kBF16;
}

bool is_scale_rule_key(const std::string& key) {
  static const std::vector<std::string> keys = {
      "scale_rounding", "scale_arithmetic", "amax_epsilon",   "margin",
      "epsilon_mode",   "encode_limit",     "scale_overflow", "four_over_six"};
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string needed_for(const std::string& key) {
  if (key == "history" || key == "amax_algorithm" || key == "warmup_steps") {
    return "scale_source = \"delayed\"";
  }
  if (key == "static_scale") return "scale_source = \"static\"";
  if (key == "scale_rounding") return "scale_format = \"pow2\" or \"e8m0\"";
  if (key == "rounding" || key == "overflow" || key == "transform") {
    return "a format other than bf16 and fp32";
  }
  if (key == "epsilon_mode") return "amax_epsilon above 0";
  if (key == "encode_limit") {
    return "scale_format = \"fp32\", \"bf16\" or \"e4m3\" and scale_arithmetic = \"enc_div\"";
  }
  if (key == "scale_overflow") return "scale_format = \"e8m0\"";
  if (key == "four_over_six") return "scale_format = \"nv_two_level\"";
  if (key == "scale_arithmetic" || key == "amax_epsilon" || key == "margin") {
    return "scale_source = \"current\" or \"delayed\" and a scale_format other than "
           "\"nv_two_level\"";
  }
  return "a format of at most 8 bits with scale_source = \"current\" or \"delayed\"";
}

GemmSpec high_precision_gemm(DType activations, DType output) {
  GemmSpec spec;
  spec.accumulator = activations == DType::f32 ? Accumulator::ideal_fp32 : Accumulator::sm90_bf16;
  spec.output = output;
  return spec;
}

DType default_output(DType activations, GemmRole role) {
  return role == GemmRole::wgrad ? DType::f32 : activations;
}

// Location of `leaf` in a table reached by `path`, else of that table, else nothing.
std::string locate(const toml::table& document, const std::vector<std::string>& path,
                   const std::string& leaf, const std::string& origin) {
  const toml::table* table = &document;
  for (const std::string& part : path) {
    const toml::node* next = table->get(part);
    if (next == nullptr || !next->is_table()) return {};
    table = next->as_table();
  }
  if (leaf.empty()) return source_location(*table, origin);
  return table->contains(leaf) ? TomlReader(*table, "", origin).where(leaf) : std::string();
}

}  // namespace

bool has_effect(const std::string& key, const QuantSpec& spec, const SlotDraft& draft) {
  if (key == "rounding" || key == "overflow" || key == "transform") return spec.is_cast();
  if (key == "history" || key == "amax_algorithm" || key == "warmup_steps") {
    return spec.scale_source == ScaleSource::delayed;
  }
  if (key == "static_scale") return spec.scale_source == ScaleSource::static_scale;
  const bool derived = spec.has_scale() && spec.scale_source != ScaleSource::static_scale;
  if (key == "tile") return derived || (spec.is_quantized() && draft.spec.tile.is_tensor());
  if (key == "scale_source") {
    return spec.is_quantized() || draft.scale_source == ScaleSource::none;
  }
  const bool by_rule = derived && !spec.has_codebooks();
  if (key == "scale_format") return by_rule;
  return !is_scale_rule_key(key) || (by_rule && shapes_scale(key, spec.scale));
}

numerics::FormatSpec parse_format(const TomlReader& reader, const std::string& key,
                                  const std::string& name) {
  std::vector<std::string> names;
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const bool operand = named.format != numerics::kE8M0 && named.format != numerics::kFP16;
    if (operand) names.emplace_back(named.name);
  }
  // Taken for e4m3fn by most readers; as eXmY it would be the IEEE-like format with maximum 240.
  if (name == "e4m3") {
    reader.refuse(key, "the ambiguous 'e4m3'",
                  "e4m3fn (OCP, maximum 448), e4m3_240 (IEEE-like, maximum 240)");
  }
  const std::optional<numerics::FormatSpec> format = format_by_name(name);
  if (!format) {
    reader.refuse(
        key, "'" + name + "'",
        join_names(names) + ", or eXmY such as e5m1, intN, lnsBgG such as lns8g16, logfmtN");
  }
  return *format;
}

RecipeDraft RecipeDraft::inherited() const {
  RecipeDraft draft = *this;
  draft.uses_.clear();
  for (GemmDraft& gemm : draft.gemms_) gemm.is_inherited = true;
  return draft;
}

void RecipeDraft::read(TomlReader& reader) {
  if (std::optional<TomlReader> slots = reader.table("slots")) read_slots(*slots);
  if (std::optional<TomlReader> gemm = reader.table("gemm")) {
    read_gemm_table(*gemm, {kGemmRoles.begin(), kGemmRoles.end()});
    for (const GemmRole role : kGemmRoles) {
      if (std::optional<TomlReader> table = gemm->table(gemm_role_name(role))) {
        read_gemm_table(*table, {role});
        table->finish();
      }
    }
    gemm->finish();
  }
}

void RecipeDraft::read_slots(TomlReader& slots) {
  const auto read_if_present = [&](TomlReader& parent, std::string_view key,
                                   const std::vector<Slot>& reached) {
    if (std::optional<TomlReader> table = parent.table(key)) read_slot_table(*table, reached);
  };
  read_if_present(slots, "default", {kSlots.begin(), kSlots.end()});
  for (const Operand& operand : operands()) read_if_present(slots, operand.name, operand.slots);
  // Both [slots."wgrad.dy"] and [slots.wgrad.dy], which TOML reads as a table inside a table.
  for (const GemmRole role : kGemmRoles) {
    std::optional<TomlReader> nested = slots.table(gemm_role_name(role));
    for (const Slot slot : kSlots) {
      const std::string name = slot_name(slot);
      const std::string prefix = gemm_role_name(role) + ".";
      if (name.rfind(prefix, 0) != 0) continue;
      const std::string operand = name.substr(prefix.size());
      if (slots.has(name) && nested && nested->has(operand)) {
        nested->fail(operand, "written twice, also as \"" + name + "\"");
      }
      read_if_present(slots, name, {slot});
      if (nested) read_if_present(*nested, operand, {slot});
    }
    if (nested) nested->finish();
  }
  slots.finish();
}

void RecipeDraft::read_slot_table(TomlReader& table, const std::vector<Slot>& reached) {
  if (table.node("format") != nullptr) {
    const numerics::FormatSpec format = parse_format(table, "format", table.text("format", ""));
    for (const Slot slot : reached) slots_[static_cast<std::size_t>(slot)].format = format;
  }
  read_scale_keys(table, reached);
  read_orientation_keys(table, reached);
  read_transform(table, reached);
  table.finish();
}

void RecipeDraft::read_scale_keys(TomlReader& table, const std::vector<Slot>& reached) {
  std::optional<TileShape> tile;
  const bool mx = table.text("tile", "") == "mx32";
  const bool nv = table.text("tile", "") == "nv16";
  if (table.has("tile")) {
    const std::string name = table.text("tile", "");
    tile = mx ? TileShape{1, 32} : nv ? TileShape{1, 16} : tile_from_name(name);
    if (!tile) table.refuse("tile", "'" + name + "'", "tensor, row, RxC such as 1x128, mx32, nv16");
  }
  for (const Slot slot : reached) {
    SlotDraft& draft = slots_[static_cast<std::size_t>(slot)];
    QuantSpec& spec = draft.spec;
    numerics::ScaleRule& scale = spec.scale;
    if (tile) spec.tile = *tile;
    if (mx) scale.format = numerics::ScaleFormat::e8m0;
    if (mx || nv || table.has("scale_format")) draft.is_ocp_scaled = mx;
    if (nv) scale.format = numerics::ScaleFormat::nv_two_level;
    scale.format = table.choice("scale_format", kScaleFormatNames, scale.format);
    if (mx && scale.format != numerics::ScaleFormat::e8m0) {
      table.refuse("scale_format", "not that of tile mx32", "e8m0, or tile = \"1x32\"");
    }
    if (nv && scale.format != numerics::ScaleFormat::nv_two_level) {
      table.refuse("scale_format", "not that of tile nv16", "nv_two_level, or tile = \"1x16\"");
    }
    const numerics::ScaleRounding rounding =
        table.choice("scale_rounding", kScaleRoundingNames, scale.rounding);
    if (table.has("scale_rounding")) draft.scale_rounding = rounding;
    scale.arithmetic = table.choice("scale_arithmetic", kScaleArithmeticNames, scale.arithmetic);
    scale.amax_epsilon =
        static_cast<float>(table.number("amax_epsilon", scale.amax_epsilon, 0.0, 1.0));
    scale.epsilon_mode = table.choice("epsilon_mode", kEpsilonModeNames, scale.epsilon_mode);
    scale.encode_limit = table.choice("encode_limit", kEncodeLimitNames, scale.encode_limit);
    scale.scale_overflow =
        table.choice("scale_overflow", kScaleOverflowNames, scale.scale_overflow);
    scale.four_over_six = table.choice("four_over_six", kFourOverSixNames, scale.four_over_six);
    scale.margin = static_cast<int>(table.integer("margin", scale.margin, 0, 16));
    const ScaleSource source = table.choice("scale_source", kScaleSourceNames,
                                            draft.scale_source.value_or(ScaleSource::current));
    if (table.has("scale_source")) draft.scale_source = source;
    spec.rounding = table.choice("rounding", kRoundingNames, spec.rounding);
    spec.overflow = table.choice("overflow", kOverflowNames, spec.overflow);
    spec.history_length = static_cast<int>(table.integer("history", spec.history_length, 1, 65536));
    spec.amax_algorithm = table.choice("amax_algorithm", kAmaxAlgorithmNames, spec.amax_algorithm);
    spec.warmup_steps =
        static_cast<int>(table.integer("warmup_steps", spec.warmup_steps, 0, 65536));
    spec.static_scale =
        static_cast<float>(table.number("static_scale", spec.static_scale, 0x1p-126, 0x1p127));
  }
  for (const char* key :
       {"tile", "scale_format", "scale_rounding", "scale_arithmetic", "amax_epsilon",
        "epsilon_mode", "encode_limit", "scale_overflow", "four_over_six", "margin", "scale_source",
        "rounding", "overflow", "history", "amax_algorithm", "warmup_steps", "static_scale"}) {
    if (table.has(key)) uses_.push_back({table.where(key), table.path_of(key), key, reached});
  }
}

void RecipeDraft::read_transform(TomlReader& table, const std::vector<Slot>& reached) {
  if (table.node("transform") == nullptr) return;
  const std::string name = table.text("transform", "");
  const std::optional<Transform> transform = transform_from_name(name);
  if (!transform) table.refuse("transform", "'" + name + "'", std::string(kTransformNames));
  for (const Slot slot : reached) {
    slots_[static_cast<std::size_t>(slot)].spec.transform = *transform;
  }
  if (*transform) {
    uses_.push_back({table.where("transform"), table.path_of("transform"), "transform", reached});
  }
}

void RecipeDraft::read_orientation_keys(TomlReader& table, const std::vector<Slot>& reached) {
  const std::vector<Slot> second =
      only(reached, [](Slot slot) { return first_orientation(slot).has_value(); });
  const std::vector<Slot> weights = only(reached, is_weight);
  if (table.node("orientation_source") != nullptr) {
    const OrientationSource source = table.choice("orientation_source", kOrientationSourceNames,
                                                  OrientationSource::high_precision);
    if (second.empty()) {
      table.fail("orientation_source",
                 "is for the second orientations; accepted in: slots.default, "
                 "slots.x, slots.w, slots.dy, slots.dgrad.w, slots.wgrad.dy, slots.wgrad.x");
    }
    for (const Slot slot : second) {
      slots_[static_cast<std::size_t>(slot)].spec.orientation_source = source;
    }
    uses_.push_back({table.where("orientation_source"), table.path_of("orientation_source"),
                     "orientation_source", second});
  }
  if (table.node("weight_source") != nullptr) {
    const WeightSource source =
        table.choice("weight_source", kWeightSourceNames, WeightSource::bf16);
    if (weights.empty()) {
      table.fail("weight_source",
                 "only w has master weights; accepted in: slots.default, slots.w, "
                 "slots.fprop.w, slots.dgrad.w");
    }
    for (const Slot slot : weights) {
      slots_[static_cast<std::size_t>(slot)].spec.weight_source = source;
    }
  }
}

namespace {

/// A parameter of a custom accumulator as text.
std::string parameter_text(const TomlReader& table, std::string_view key, const toml::node& value) {
  if (const auto number = value.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto word = value.value_exact<std::string>()) return *word;
  table.fail("accumulator", fmt::format("{} is neither an integer nor a word", key));
}

Accumulator accumulator_of(const TomlReader& table, const toml::node& value) {
  if (const toml::table* const parameters = value.as_table()) {
    std::vector<AccumulatorParameter> given;
    for (const auto& [key, parameter] : *parameters) {
      given.push_back({std::string(key.str()), parameter_text(table, key.str(), parameter)});
    }
    return custom_accumulator(given);
  }
  std::vector<std::string> names;
  for (const TensorCoreProfile& known : tensor_core_profiles()) names.emplace_back(known.name);
  const std::string name = value.value_or(std::string());
  if (const std::optional<Accumulator> named = accumulator_by_name(name)) return *named;
  table.refuse("accumulator", "'" + name + "'" + did_you_mean(name, names),
               join_names(names) + ", or a table { products = ..., fraction_bits = ..., ... }");
}

/// The value of `accumulator`: a name, or a table of parameters; nothing when the key is absent.
std::optional<Accumulator> read_accumulator(TomlReader& table) {
  const toml::node* const value = table.node("accumulator");
  if (value == nullptr) return std::nullopt;
  if (!value->is_table()) table.text("accumulator", "");  // refuses other types
  try {
    return accumulator_of(table, *value);
  } catch (const AccumulatorError& error) {
    table.fail("accumulator", error.what());
  }
}

}  // namespace

void RecipeDraft::read_gemm_table(TomlReader& table, const std::vector<GemmRole>& reached) {
  const std::optional<Accumulator> accumulator = read_accumulator(table);
  std::optional<ScheduleChoice> schedule;
  if (table.node("schedule") != nullptr) {
    const std::string name = table.text("schedule", "");
    // A bare "promote" would leave the interval unsaid.
    if (name != "promote") schedule = schedule_from_name(name);
    if (!schedule)
      table.refuse("schedule", "'" + name + "'", "fast, promote:G such as promote:128");
  }
  for (const GemmRole role : reached) {
    GemmDraft& draft = gemms_[static_cast<std::size_t>(role)];
    if (accumulator) draft.accumulator = accumulator;
    if (schedule) {
      draft.spec.schedule = schedule->schedule;
      draft.spec.promote_interval = schedule->promote_interval;
    }
    draft.spec.scale_order = table.choice("scale_order", kScaleOrderNames, draft.spec.scale_order);
    draft.spec.split_k = static_cast<int>(table.integer("split_k", draft.spec.split_k, 1, 64));
    const DType output = table.choice("output", kStorageNames, DType::bf16);
    if (table.has("output")) draft.output = output;
    for (const char* key : {"accumulator", "schedule", "scale_order", "split_k"}) {
      if (table.has(key)) draft.is_inherited = false;
    }
  }
  // [gemm] states the output of activations and their gradients; weight gradients are always FP32.
  const bool general = reached.size() > 1;
  if (general && table.has("output")) {
    gemms_[static_cast<std::size_t>(GemmRole::wgrad)].output = DType::f32;
  }
}

QuantSpec RecipeDraft::resolve_slot(Slot slot) const {
  const SlotDraft& draft = slots_[static_cast<std::size_t>(slot)];
  QuantSpec spec = draft.spec;
  spec.format = draft.format.value_or(format_of(activations_));
  spec.scale_source = draft.scale_source.value_or(ScaleSource::current);
  spec.scale.rounding =
      draft.scale_rounding.value_or(default_scale_rounding(spec.scale.format, draft.is_ocp_scaled));
  return effective(spec);
}

GemmSpec RecipeDraft::resolve_gemm(GemmRole role, const QuantSpec& a, const QuantSpec& b) const {
  const GemmDraft& draft = gemms_[static_cast<std::size_t>(role)];
  const DType output = draft.output.value_or(default_output(activations_, role));
  const bool quantized = a.is_quantized() || b.is_quantized();
  const bool needs_fp32 = a.format == numerics::kFP32 || b.format == numerics::kFP32;
  const GemmSpec plain = high_precision_gemm(needs_fp32 ? DType::f32 : DType::bf16, output);
  const bool codes_unit = !draft.accumulator || draft.accumulator->takes_codes();
  // An override that takes a layer out of FP8 need not repeat that its GEMMs leave the FP8 unit.
  if (!quantized && codes_unit && draft.is_inherited) return plain;
  GemmSpec spec = draft.spec;
  spec.output = output;
  const bool both = a.is_quantized() && b.is_quantized();
  spec.accumulator =
      draft.accumulator.value_or(both ? Accumulator::sm90_wgmma_fp8 : plain.accumulator);
  if (spec.schedule == Schedule::fast) spec.promote_interval = plain.promote_interval;
  return spec;
}

LinearRecipe RecipeDraft::resolve() const {
  LinearRecipe recipe;
  for (const Slot slot : kSlots) recipe.slot(slot) = resolve_slot(slot);
  for (const SlotKeyUse& use : uses_) {
    const bool matters = std::any_of(use.reached.begin(), use.reached.end(), [&](Slot slot) {
      return has_effect(use.key, recipe.slot(slot), slots_[static_cast<std::size_t>(slot)]);
    });
    if (!matters) {
      throw Error(fmt::format("{}: '{}' has no effect on any operand it reaches; accepted with {}",
                              use.location, use.path, needed_for(use.key)));
    }
  }
  for (const Slot slot : kSlots) {
    const std::optional<Slot> first = first_orientation(slot);
    const bool written = std::any_of(uses_.begin(), uses_.end(), [&](const SlotKeyUse& use) {
      return use.key == "orientation_source" &&
             std::find(use.reached.begin(), use.reached.end(), slot) != use.reached.end();
    });
    // An inherited requantization ends with the quantized copy it read.
    QuantSpec& spec = recipe.slot(slot);
    if (first && !written && (!recipe.slot(*first).is_quantized() || !spec.is_quantized()) &&
        spec.orientation_source == OrientationSource::requantized) {
      spec.orientation_source = OrientationSource::high_precision;
    }
  }
  for (const GemmRole role : kGemmRoles) {
    const std::size_t index = static_cast<std::size_t>(role);
    recipe.gemm(role) = resolve_gemm(role, recipe.slots[2 * index], recipe.slots[2 * index + 1]);
  }
  return recipe;
}

LinearRecipe high_precision_recipe(DType activations) {
  LinearRecipe recipe;
  for (const Slot slot : kSlots) {
    recipe.slot(slot).format = format_of(activations);
    if (is_weight(slot) && activations == DType::f32) {
      recipe.slot(slot).weight_source = WeightSource::master;
    }
  }
  for (const GemmRole role : kGemmRoles) {
    recipe.gemm(role) = high_precision_gemm(activations, default_output(activations, role));
  }
  return recipe;
}

std::string locate_recipe_key(const toml::table& document, const std::string& key,
                              const std::string& origin) {
  const std::size_t first = key.find('.');
  const std::size_t last = key.rfind('.');
  const std::string top = key.substr(0, first);                        // slots | gemm
  const std::string middle = key.substr(first + 1, last - first - 1);  // wgrad.x | wgrad
  const std::string leaf = key.substr(last + 1);
  std::vector<std::vector<std::string>> tables;
  if (const std::size_t dot = middle.find('.'); dot != std::string::npos) {
    const std::string operand = middle.substr(dot + 1);
    tables = {
        {top, middle}, {top, middle.substr(0, dot), operand}, {top, operand}, {top, "default"}};
  } else {
    tables = {{top, middle}, {top}};
  }
  for (const std::string& wanted : {leaf, std::string()}) {
    for (const std::vector<std::string>& path : tables) {
      const std::string found = locate(document, path, wanted, origin);
      if (!found.empty()) return found;
    }
  }
  return source_location(document, origin);
}

}  // namespace fp8lab
