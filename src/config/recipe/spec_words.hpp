// Short notation of quantizers and GEMMs for the command line and Python: the forms that
// label() prints, and more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "emulation/spec/recipe.hpp"

namespace fp8lab {

/// Parses "FORMAT[/WORD...]", for example "e4m3fn/1x128/pow2/enc_floor", "e5m2",
/// "e2m1/mx32/stochastic", or "RECIPE:SLOT" such as "infir2:fprop.x", the
/// quantizer of a recipe's operand.
///
/// Words, in any order: a tile; a scale format; a scale rounding (default: default_scale_rounding;
/// rounding to nearest is written "scale_rounding:nearest"); a scale arithmetic; a scale statistic
/// such as "std:3"; mae or mse, the choice between 6 and 4 of two-level scales; "delayed" or
/// "static:NUMBER"; a rounding other than nearest; a transform; and, as KEY:VALUE, the other keys
/// of a recipe's slot table that affect codes and scales: amax_epsilon, epsilon_mode, margin,
/// encode_limit, scale_overflow, scale_factor, history, amax_algorithm, overflow. A word about the
/// scale selects current scaling unless another source is given. Without any such word the values
/// are only cast. The result is effective().
///
/// parse_quant_spec(label(spec)) equals effective(spec) except for orientation_source,
/// weight_source and estimator.
///
/// Throws Error that names the word if it is unknown, sets what an earlier word has set, or has no
/// effect, and for a slot that is made from the codes of another slot.
QuantSpec parse_quant_spec(const std::string& words);

/// Parses an optimizer state (spec/state_rules.hpp) in the same notation; formats of more than 8
/// bits may have a scale, "fp16/tensor/pow2". parse_state_spec(state_label(spec)) equals spec,
/// unless refuse_state refuses it.
QuantSpec parse_state_spec(const std::string& words);

/// Returns true for the name of a built-in recipe.
bool is_builtin_recipe(const std::string& word);

/// One operand of a recipe.
struct RecipeSlot {
  std::string recipe;  ///< name or file
  Slot slot = Slot::fprop_x;
};

/// Parses "RECIPE:SLOT"; returns nothing for other texts, such as the words of a quantizer. Throws
/// Error for an unknown slot if the text can be nothing else.
std::optional<RecipeSlot> recipe_slot_from_text(const std::string& text);

/// A key of a recipe's slot table and its value.
using SpecKey = std::pair<std::string, std::variant<std::string, std::int64_t, double>>;

/// Returns false for keys that relate two orientations or name the weights' source.
bool describes_one_operand(std::string_view key);

/// Reads one operand from the keys of a slot table, with the recipe file's defaults and checks (a
/// format of at most 8 bits is scaled by its current amax unless the keys say otherwise). Refuses
/// keys that relate two orientations or name the weights' source, since they do not describe one
/// operand. Throws Error that names the key.
QuantSpec parse_quant_keys(const std::vector<SpecKey>& keys);

/// Parses "ACCUMULATOR[/SCHEDULE][/OUTPUT][/SCALE_ORDER][/split_k:N]", for example
/// "sm90_wgmma_fp8/promote:128/fp32"; the defaults are fast and bf16. Throws Error that names the
/// word, also if it sets what an earlier word has set.
GemmSpec parse_gemm_spec(const std::string& words);

/// A GEMM and the quantizers of its operands.
struct GemmRequest {
  GemmSpec gemm;
  QuantSpec a;
  QuantSpec b;
};

/// Parses "RECIPE:ROLE", for example "infir2:fprop", with the recipe's operands, or the words of
/// parse_gemm_spec with operands of the multiplier's own format (bf16 for the ideal sums). The
/// latter are unscaled unless the instruction takes block scales. Throws Error.
GemmRequest parse_gemm_problem(const std::string& text);

/// Splits "A/B/C" at its slashes.
std::vector<std::string> split_at_slashes(const std::string& text);

/// Returns N of "split_k:N", as label() prints it, or of "split_k=N", with 1 <= N <= 64;
/// nothing for other words.
std::optional<int> split_k_from_word(const std::string& word);

}  // namespace fp8lab
