// Quantizers and GEMMs in a few words, for the command line and Python: the forms that label()
// prints, and more.
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

/// "FORMAT[/WORD...]", for example "e4m3fn/1x128/pow2/enc_floor", "e5m2", "e2m1/mx32/stochastic",
/// or "RECIPE:SLOT" such as "infir2:fprop.x", the quantizer of a recipe's operand.
///
/// Words, in any order: a tile; a scale format; a scale rounding (default_scale_rounding where none
/// is given; the nearest one is "scale_rounding:nearest"); a scale arithmetic; a scale statistic
/// such as "std:3"; mae or mse, the choice between 6 and 4 of two-level scales; "delayed" or
/// "static:NUMBER"; a rounding other than nearest; a transform; and as KEY:VALUE the other keys of
/// a recipe's slot table that shape codes and scales: amax_epsilon, epsilon_mode, margin,
/// encode_limit, scale_overflow, scale_factor, history, amax_algorithm, overflow. A word about the
/// scale asks for current scaling unless another source is given; without one the values are only
/// cast. The result is effective().
///
/// parse_quant_spec(label(spec)) is effective(spec) but for orientation_source, weight_source and
/// estimator.
///
/// Throws Error naming the word: also for a word about what an earlier one has said, for a word
/// without effect, and for a slot that is made from the codes of another.
QuantSpec parse_quant_spec(const std::string& words);

/// A state of the optimizer (spec/state_rules.hpp) in such words; formats of more than 8 bits may
/// have a scale, "fp16/tensor/pow2". parse_state_spec(state_label(spec)) is spec, where
/// refuse_state does not refuse it.
QuantSpec parse_state_spec(const std::string& words);

/// True for the name of a built-in recipe.
bool is_builtin_recipe(const std::string& word);

/// An operand of a recipe.
struct RecipeSlot {
  std::string recipe;  ///< name or file
  Slot slot = Slot::fprop_x;
};

/// "RECIPE:SLOT"; nothing for other texts, such as the words of a quantizer. Throws Error for an
/// unknown slot of what can be nothing else.
std::optional<RecipeSlot> recipe_slot_from_text(const std::string& text);

/// A key of a recipe's slot table and its value.
using SpecKey = std::pair<std::string, std::variant<std::string, std::int64_t, double>>;

/// False for keys that relate two orientations or name the weights' source.
bool describes_one_operand(std::string_view key);

/// One operand from the keys of a slot table, with the recipe file's defaults and checks (a format
/// of at most 8 bits is scaled by its current amax unless the keys say otherwise). Keys that relate
/// two orientations or name the weights' source do not describe one operand and are refused.
/// Throws Error naming the key.
QuantSpec parse_quant_keys(const std::vector<SpecKey>& keys);

/// "ACCUMULATOR[/SCHEDULE][/OUTPUT][/SCALE_ORDER][/split_k:N]", for example
/// "sm90_wgmma_fp8/promote:128/fp32"; the defaults are fast and bf16. Throws Error naming the word,
/// also one about what an earlier one has said.
GemmSpec parse_gemm_spec(const std::string& words);

/// A GEMM and the quantizers of its operands.
struct GemmRequest {
  GemmSpec gemm;
  QuantSpec a;
  QuantSpec b;
};

/// "RECIPE:ROLE", for example "infir2:fprop", with the recipe's operands, or the words of
/// parse_gemm_spec with operands of the multiplier's own format (bf16 for the ideal sums), unscaled
/// unless the instruction takes block scales. Throws Error.
GemmRequest parse_gemm_problem(const std::string& text);

/// The words between the slashes of "A/B/C".
std::vector<std::string> split_at_slashes(const std::string& text);

/// N of "split_k:N", as label() prints it, or of "split_k=N", with 1 <= N <= 64; nothing otherwise.
std::optional<int> split_k_from_word(const std::string& word);

}  // namespace fp8lab
