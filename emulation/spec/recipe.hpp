// A recipe: the quantization of each operand and the accumulation of each GEMM of a linear layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/attention_recipe.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "emulation/spec/slot.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {

/// Complete numerics of one linear layer.
struct LinearRecipe {
  PerSlot<QuantSpec> slots{};
  PerGemm<GemmSpec> gemms{};

  const QuantSpec& slot(Slot s) const { return slots[s]; }
  QuantSpec& slot(Slot s) { return slots[s]; }
  const GemmSpec& gemm(GemmRole r) const { return gemms[r]; }
  GemmSpec& gemm(GemmRole r) { return gemms[r]; }
  /// Return the quantizers of the operands A and B of a GEMM.
  const QuantSpec& a(GemmRole r) const { return slot(a_slot(r)); }
  const QuantSpec& b(GemmRole r) const { return slot(b_slot(r)); }
  bool operator==(const LinearRecipe&) const = default;
};

/// An exception for the layers whose names match `match`; the first match wins.
struct RecipeOverride {
  std::string match;  ///< name pattern, for example "layers.{first,last}.mlp.down"
  LinearRecipe recipe;
};

/// What the backward pass reads in place of an activation of the forward pass.
struct SavedActivation {
  std::string name;  ///< as a layer declares it, "mlp.inner"; empty: every one without a row
  /// Nothing is saved: the backward pass computes it again from what is saved of its input.
  bool is_recomputed = false;
  /// Otherwise: codes and scales are saved, and dequantized for the backward pass. Without a cast
  /// the activation itself is saved.
  QuantSpec spec{};

  bool operator==(const SavedActivation&) const = default;
};

/// Returns why an activation cannot be saved by `spec`, without a key; empty if it can: a history
/// of its own, or a transform that is not undone.
std::optional<ErrorFields> refuse_saved_activation(const QuantSpec& spec);

/// A recipe as resolved from its TOML file. Names of layers, such as "layers.0.mlp.down", are those
/// of the model that it is for.
struct Recipe {
  std::string name;
  std::string summary;
  std::string system;           ///< the published system with these numerics, or an arm of it
  std::string source;           ///< where the numerics are published
  std::string text;             ///< the TOML source; needs no other files
  std::string hash;             ///< 16 hex digits: XXH3-64 of the canonical resolved form
  LinearRecipe linear;          ///< all linear layers that no override or exception names
  LinearRecipe high_precision;  ///< layers kept in high precision (bf16, or fp32 for recipe fp32)
  std::vector<std::string> keep_high_precision;  ///< name patterns
  std::vector<RecipeOverride> overrides;
  DType activation_dtype = DType::bf16;  ///< storage of activations and their gradients
  /// Of the tensors that layers save for their backward passes; the same in all layers.
  std::vector<SavedActivation> saved_activations;
  AttentionRecipe attention;  ///< the same in all layers

  /// Returns the row of an activation, by name or for all; null without one.
  const SavedActivation* saved_activation(const std::string& activation) const;
  /// Returns the numerics of one layer: keep_high_precision first, then the overrides in order.
  /// Products of low-rank adapters (names ending in ".lora_a", ".lora_b") are in high precision,
  /// unless an override is their name itself.
  /// `layer_count` resolves "first" and "last" in patterns.
  const LinearRecipe& for_layer(const std::string& layer_name, int layer_count) const;
};

/// Returns true if `pattern` matches `name`: "*" spans characters within a dot-separated part,
/// "{a,b}" lists alternatives, and the layer indices "first" and "last" mean 0 and layer_count - 1.
/// A pattern also matches every name below it ("layers.0" matches "layers.0.mlp.down").
bool layer_pattern_matches(const std::string& pattern, const std::string& name, int layer_count);

/// What validate() throws for an impossible recipe; the key is "slots.wgrad.x.tile",
/// "gemm.fprop.schedule", ...
class RecipeError : public InputError {
 public:
  using InputError::InputError;
};

/// Throws RecipeError naming `where` and the key if the combination is impossible: delayed scaling
/// of a tile other than the tensor, a scale that changes inside an accumulation chunk, an FP8
/// accumulator with a 16-bit format, ...
void validate(const LinearRecipe& recipe, const std::string& where);

/// Throws RecipeError naming `where` and the key if a layer y(tokens, out) = x(tokens, in) W^T
/// cannot run: a transform does not fit an operand.
void validate_shape(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in,
                    std::int64_t out, const std::string& where);
/// As above, for one of the layer's GEMMs.
void validate_shape(const LinearRecipe& recipe, GemmRole role, std::int64_t tokens, std::int64_t in,
                    std::int64_t out, const std::string& where);

/// Returns warnings, one sentence each, for a layer y(tokens, out) = x(tokens, in) W^T.
std::vector<std::string> warnings(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in,
                                  std::int64_t out);

/// Returns the evidence that the recipe's GEMMs return what the hardware would: the weakest one of
/// the accumulators of all layers. An accumulator without a name has Evidence::definition.
Evidence evidence(const Recipe& recipe);

/// Returns the per-operand table that `recipes show` prints and a run stores.
std::string describe(const Recipe& recipe);

}  // namespace fp8lab
