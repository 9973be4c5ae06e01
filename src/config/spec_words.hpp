// Quantizers and GEMMs in a few words, for the command line: the forms that label() prints, and
// more.
#pragma once

#include <string>

#include "emulation/api/gemm_spec.hpp"
#include "emulation/api/quant_spec.hpp"

namespace fp8lab {

/// "FORMAT[/WORD...]", for example "e4m3fn/1x128/pow2/enc_floor", "e5m2", "e2m1/mx32/stochastic".
/// Words, in any order: a tile; a scale format; a scale rounding other than nearest, which is the
/// default; a scale arithmetic; mae or mse, the choice between 6 and 4 of two-level scales;
/// "static:NUMBER"; a rounding other than nearest. A tile or scale word asks for current scaling;
/// without one the values are only cast. Throws Error naming the word.
QuantSpec parse_quant_spec(const std::string& words);

/// "ACCUMULATOR[/SCHEDULE][/OUTPUT][/SCALE_ORDER][/split_k:N]", for example
/// "sm90_wgmma_fp8/promote:128/fp32"; the defaults are fast and bf16. Throws Error naming the word.
GemmSpec parse_gemm_spec(const std::string& words);

}  // namespace fp8lab
