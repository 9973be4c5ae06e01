// The state of a recipe while its tables are read: the settings so far of each operand and GEMM.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {

/// The settings of one operand. Values that no table has set yet depend on the others.
struct SlotDraft {
  QuantSpec spec;
  std::set<std::string> said;  ///< keys set by some table
  bool is_ocp_scaled = false;  ///< true if the scale format is that of mx32

  bool says(const std::string& key) const { return said.count(key) != 0; }
};

/// Returns true if `field` may be written for an operand: it has an effect on the resolved `spec`,
/// or `written` states the value that holds anyway.
bool may_say(const Field<QuantSpec>& field, const QuantSpec& spec, const QuantSpec& written);

/// The settings of one GEMM.
struct GemmDraft {
  GemmSpec spec;
  std::set<std::string> said;
  bool is_inherited = false;  ///< true if the override being read does not mention this GEMM

  bool says(const std::string& key) const { return said.count(key) != 0; }
};

/// A key that was set and the operands it applies to; it must have an effect
/// on at least one of them.
struct SlotKeyUse {
  std::string location;  ///< file:line:column
  std::string path;      ///< "slots.default.history"
  const Field<QuantSpec>* field = nullptr;
  std::vector<Slot> reached;
};

/// All settings of a linear layer.
class RecipeDraft {
 public:
  explicit RecipeDraft(DType activations) : activations_(activations) {}

  /// Returns the draft that an override starts from.
  RecipeDraft inherited() const;

  /// Reads [slots...] and [gemm...] below `reader`: first default, then x, w and
  /// dy, then single operands.
  void read(TomlReader& reader);

  /// Returns the complete numerics; fields without effect have their defaults. Throws Error if a
  /// key that was read has no effect on any operand.
  LinearRecipe resolve() const;

 private:
  void read_slots(TomlReader& slots);
  void read_slot_table(TomlReader& table, const std::vector<Slot>& reached);
  void read_tile_alias(TomlReader& table, const std::vector<Slot>& reached);
  void read_gemm_table(TomlReader& table, const std::vector<GemmRole>& reached);
  QuantSpec resolve_slot(const SlotDraft& draft) const;
  [[noreturn]] void refuse_idle(const SlotKeyUse& use) const;
  GemmSpec resolve_gemm(GemmRole role, const QuantSpec& a, const QuantSpec& b) const;

  DType activations_;
  PerSlot<SlotDraft> slots_{};
  PerGemm<GemmDraft> gemms_{};
  std::vector<SlotKeyUse> uses_;
};

/// Returns the numerics of a layer kept in high precision: operands in the activations' type, the
/// BF16 tensor core for bf16 and ideal FP32 sums for fp32.
LinearRecipe high_precision_recipe(DType activations);

/// Returns the location of the value behind a key of RecipeError within the tables of `document`,
/// trying the most specific table first; the location of the document if no table sets it.
std::string locate_recipe_key(const toml::table& document, const std::string& key,
                              const std::string& origin);

}  // namespace fp8lab
