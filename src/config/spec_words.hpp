// Quantizers and GEMMs in a few words, for the command line and Python: the forms that label()
// prints, and more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/api/gemm_spec.hpp"
#include "emulation/api/quant_spec.hpp"

namespace fp8lab {

/// "FORMAT[/WORD...]", for example "e4m3fn/1x128/pow2/enc_floor", "e5m2", "e2m1/mx32/stochastic".
/// Words, in any order: a tile; a scale format; a scale rounding other than nearest, which is the
/// default; a scale arithmetic; mae or mse, the choice between 6 and 4 of two-level scales;
/// "static:NUMBER"; a rounding other than nearest; a transform. A tile or scale word asks for
/// current scaling; without one the values are only cast. Throws Error naming the word.
QuantSpec parse_quant_spec(const std::string& words);

/// A key of a recipe's slot table and its value.
using SpecKey = std::pair<std::string, std::variant<std::string, std::int64_t, double>>;

/// One operand from the keys of a slot table, with the recipe file's defaults and checks (a format
/// of at most 8 bits is scaled by its current amax unless the keys say otherwise). Keys that relate
/// two orientations or name the weights' source do not describe one operand and are refused.
/// Throws Error naming the key.
QuantSpec parse_quant_keys(const std::vector<SpecKey>& keys);

/// "ACCUMULATOR[/SCHEDULE][/OUTPUT][/SCALE_ORDER][/split_k:N]", for example
/// "sm90_wgmma_fp8/promote:128/fp32"; the defaults are fast and bf16. Throws Error naming the word.
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
