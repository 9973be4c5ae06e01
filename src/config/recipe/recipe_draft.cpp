#include "src/config/recipe/recipe_draft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

std::vector<Slot> only(const std::vector<Slot>& slots, bool (*wanted)(Slot)) {
  std::vector<Slot> kept;
  std::copy_if(slots.begin(), slots.end(), std::back_inserter(kept), wanted);
  return kept;
}

numerics::FormatSpec format_of(DType dtype) {
  return dtype == DType::f32 ? numerics::kFP32 : numerics::kBF16;
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

// Returns the operands among `reached` whose quantizer a key of a slot table sets.
std::vector<Slot> slots_of_key(const TomlReader& table, const std::string& key,
                               const std::vector<Slot>& reached) {
  if (key == "orientation_source") {
    const std::vector<Slot> slots = only(reached, is_second_orientation);
    if (!slots.empty()) return slots;
    table.fail(key, {.reason = "is for the second orientations",
                     .accepted = "in slots.default, slots.x, slots.w, slots.dy, slots.dgrad.w, "
                                 "slots.wgrad.dy, slots.wgrad.x"});
  }
  if (key == "estimator") {
    const std::vector<Slot> slots = only(reached, is_of_forward_pass);
    if (!slots.empty()) return slots;
    table.fail(key,
               {.reason = "is for x and w of the forward pass",
                .accepted = "in slots.default, slots.x, slots.w, slots.fprop.x, slots.fprop.w"});
  }
  if (key != "weight_source") return reached;
  const std::vector<Slot> weights = only(reached, is_weight);
  if (!weights.empty()) return weights;
  table.fail(key, {.reason = "only w has master weights",
                   .accepted = "in slots.default, slots.w, slots.fprop.w, slots.dgrad.w"});
}

// Returns the location of `leaf` in the table at `path`, else the location of that
// table, else an empty text.
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

bool may_say(const Field<QuantSpec>& field, const QuantSpec& spec, const QuantSpec& written) {
  if (field.matters(spec)) return true;
  return field.default_may_be_said && field.get(written) == field.get(QuantSpec{});
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
  for (const Tensor tensor : kTensors) {
    read_if_present(slots, tensor_name(tensor),
                    {first_orientation(tensor), second_orientation(tensor)});
  }
  // Accepts both [slots."wgrad.dy"] and [slots.wgrad.dy], which TOML reads as a nested table.
  for (const GemmRole role : kGemmRoles) {
    std::optional<TomlReader> nested = slots.table(gemm_role_name(role));
    for (const Slot slot : {a_slot(role), b_slot(role)}) {
      const std::string name = slot_name(slot), operand = tensor_name(tensor_of(slot));
      if (slots.has(name) && nested && nested->has(operand)) {
        nested->fail(operand, {.reason = fmt::format("written twice, also as \"{}\"", name)});
      }
      read_if_present(slots, name, {slot});
      if (nested) read_if_present(*nested, operand, {slot});
    }
    if (nested) nested->finish();
  }
  slots.finish();
}

void RecipeDraft::read_slot_table(TomlReader& table, const std::vector<Slot>& reached) {
  for (const Field<QuantSpec>& field : quant_fields()) {
    if (table.node(field.word) == nullptr) continue;
    const std::vector<Slot> slots = slots_of_key(table, field.word, reached);
    for (const Slot slot : slots) {
      SlotDraft& draft = slots_[slot];
      table.read(field, draft.spec);
      draft.said.insert(field.word);
    }
    uses_.push_back({table.where(field.word), table.path_of(field.word), &field, slots});
  }
  read_tile_alias(table, reached);
  table.finish();
}

// mx32 and nv16 also set the scale format, and mx32 the rounding of its scales.
void RecipeDraft::read_tile_alias(TomlReader& table, const std::vector<Slot>& reached) {
  const std::string tile = table.text("tile", "");
  const bool mx = tile == "mx32", nv = tile == "nv16";
  for (const Slot slot : reached) {
    SlotDraft& draft = slots_[slot];
    const numerics::ScaleFormat format = draft.spec.scale.format;
    if (mx || nv || table.has("scale_format")) draft.is_ocp_scaled = mx;
    if (mx && format != numerics::ScaleFormat::e8m0) {
      table.refuse("scale_format",
                   {.found = "not that of tile mx32", .accepted = "e8m0, or tile = \"1x32\""});
    }
    if (nv && format != numerics::ScaleFormat::nv_two_level) {
      table.refuse("scale_format", {.found = "not that of tile nv16",
                                    .accepted = "nv_two_level, or tile = \"1x16\""});
    }
  }
}

namespace {

/// A parameter of a custom accumulator as text.
std::string parameter_text(const TomlReader& table, std::string_view key, const toml::node& value) {
  if (const auto number = value.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto word = value.value_exact<std::string>()) return *word;
  table.fail("accumulator",
             {.found = std::string(key), .reason = "is neither an integer nor a word"});
}

/// Reads the value of `accumulator`: a name, or a table of parameters.
void read_accumulator(TomlReader& table, const Field<GemmSpec>& field, GemmSpec& spec) {
  const toml::table* const parameters = table.node(field.word)->as_table();
  try {
    if (parameters == nullptr) return table.read(field, spec);
    std::vector<AccumulatorParameter> given;
    for (const auto& [key, parameter] : *parameters) {
      given.push_back({std::string(key.str()), parameter_text(table, key.str(), parameter)});
    }
    spec.accumulator = custom_accumulator(given);
  } catch (const AccumulatorError& error) {
    ErrorFields fields = error.fields();
    fields.where = table.where(field.word);
    fields.key = table.path_of(field.word) + (fields.key.empty() ? "" : "." + fields.key);
    throw InputError(std::move(fields));
  }
}

}  // namespace

void RecipeDraft::read_gemm_table(TomlReader& table, const std::vector<GemmRole>& reached) {
  for (const Field<GemmSpec>& field : gemm_fields()) {
    if (table.node(field.word) == nullptr) continue;
    for (const GemmRole role : reached) {
      GemmDraft& draft = gemms_[role];
      if (field.word == "accumulator") {
        read_accumulator(table, field, draft.spec);
      } else {
        table.read(field, draft.spec);
      }
      draft.said.insert(field.word);
      if (field.word != "output") draft.is_inherited = false;
    }
  }
  // [gemm] sets the output of activations and their gradients; weight gradients are always FP32.
  const bool general = reached.size() > 1;
  if (general && table.has("output")) {
    gemms_[GemmRole::wgrad].spec.output = DType::f32;
  }
}

QuantSpec RecipeDraft::resolve_slot(const SlotDraft& draft) const {
  QuantSpec spec = draft.spec;
  if (!draft.says("format")) spec.format = format_of(activations_);
  if (!draft.says("scale_source")) spec.scale_source = ScaleSource::current;
  if (!draft.says("scale_rounding")) {
    spec.scale.rounding = default_scale_rounding(spec.scale.format, draft.is_ocp_scaled);
  }
  return effective(spec);
}

GemmSpec RecipeDraft::resolve_gemm(GemmRole role, const QuantSpec& a, const QuantSpec& b) const {
  const GemmDraft& draft = gemms_[role];
  const DType output =
      draft.says("output") ? draft.spec.output : default_output(activations_, role);
  const bool quantized = a.is_quantized() || b.is_quantized();
  const bool needs_fp32 = a.format == numerics::kFP32 || b.format == numerics::kFP32;
  const GemmSpec plain = high_precision_gemm(needs_fp32 ? DType::f32 : DType::bf16, output);
  const bool codes_unit = !draft.says("accumulator") || draft.spec.accumulator.takes_codes();
  // An override that takes a layer out of FP8 need not state that its GEMMs no longer
  // use the FP8 tensor core.
  if (!quantized && codes_unit && draft.is_inherited) return plain;
  GemmSpec spec = draft.spec;
  spec.output = output;
  const bool both = a.is_quantized() && b.is_quantized();
  if (!draft.says("accumulator")) {
    spec.accumulator = both ? Accumulator::sm90_wgmma_fp8 : plain.accumulator;
  }
  if (spec.schedule == Schedule::fast) spec.promote_interval = plain.promote_interval;
  return spec;
}

// Throws Error for a key without effect: about the format of an operand where a file says one that
// takes no scale and the key would have an effect with a narrower one, else about the key.
void RecipeDraft::refuse_idle(const SlotKeyUse& use) const {
  for (const Slot slot : use.reached) {
    const SlotDraft& draft = slots_[slot];
    if (!draft.says("format") || !draft.spec.is_cast() || draft.spec.is_quantized()) continue;
    SlotDraft narrow = draft;
    narrow.spec.format = numerics::kE4M3;
    if (!may_say(*use.field, resolve_slot(narrow), narrow.spec)) continue;
    for (auto format = uses_.rbegin(); format != uses_.rend(); ++format) {
      const std::vector<Slot>& of = format->reached;
      if (format->field->word != "format" || std::find(of.begin(), of.end(), slot) == of.end()) {
        continue;
      }
      throw InputError({.where = format->location,
                        .key = format->path,
                        .found = quoted_word(format_name(draft.spec.format)),
                        .reason = fmt::format(", of {} bits: {} is for formats of at most 8",
                                              draft.spec.format.bits(), use.path),
                        .accepted = quantized_format_names()});
    }
  }
  throw InputError({.where = use.location,
                    .key = use.path,
                    .reason = "has no effect on any operand it reaches",
                    .accepted = fmt::format("with {}", use.field->needs)});
}

LinearRecipe RecipeDraft::resolve() const {
  LinearRecipe recipe;
  for (const Slot slot : kSlots) recipe.slot(slot) = resolve_slot(slots_[slot]);
  for (const SlotKeyUse& use : uses_) {
    const bool matters = std::any_of(use.reached.begin(), use.reached.end(), [&](Slot slot) {
      const QuantSpec& written = slots_[slot].spec;
      return may_say(*use.field, recipe.slot(slot), written);
    });
    if (!matters) refuse_idle(use);
  }
  for (const Slot slot : kSlots) {
    if (!is_second_orientation(slot)) continue;
    const bool written = std::any_of(uses_.begin(), uses_.end(), [&](const SlotKeyUse& use) {
      return use.field->word == "orientation_source" &&
             std::find(use.reached.begin(), use.reached.end(), slot) != use.reached.end();
    });
    // If an override removes the quantized copy that an inherited requantization
    // reads, the requantization ends too; if it removes the transform, so does a copy
    // in the transformed space.
    QuantSpec& spec = recipe.slot(slot);
    const QuantSpec& first = recipe.slot(other_orientation(slot));
    const bool reads_copy = first.is_quantized() && spec.is_quantized();
    const bool ends = (spec.orientation_source == OrientationSource::requantized && !reads_copy) ||
                      (spec.orientation_source == OrientationSource::transformed &&
                       (!reads_copy || !first.transform.is_along_k()));
    if (!written && ends) spec.orientation_source = OrientationSource::high_precision;
  }
  for (const GemmRole role : kGemmRoles) {
    recipe.gemm(role) = resolve_gemm(role, recipe.a(role), recipe.b(role));
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
