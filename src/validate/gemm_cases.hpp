// Test inputs for tensor-core instructions and whole GEMMs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "src/validate/suite.hpp"

namespace fp8lab {

/// A tensor-core instruction and the formats of its operands.
struct Instruction {
  const char* name;
  numerics::GroupModel group;
  bool mma_sync_fp8;
  numerics::FormatSpec format_a, format_b;
};

inline constexpr Instruction kInstructions[] = {
    {"wgmma e4m3 e4m3", numerics::kSm90WgmmaFp8F32, false, numerics::kE4M3, numerics::kE4M3},
    {"wgmma e4m3 e5m2", numerics::kSm90WgmmaFp8F32, false, numerics::kE4M3, numerics::kE5M2},
    {"wgmma e5m2 e5m2", numerics::kSm90WgmmaFp8F32, false, numerics::kE5M2, numerics::kE5M2},
    {"wgmma e4m3 e4m3 to f16", numerics::kSm90WgmmaFp8F16, false, numerics::kE4M3, numerics::kE4M3},
    {"mma.sync e4m3 e4m3", numerics::kSm90Fp16F32, true, numerics::kE4M3, numerics::kE4M3},
    {"mma.sync e5m2 e4m3 to f16", numerics::kSm90Fp16F16, true, numerics::kE5M2, numerics::kE4M3},
    {"bf16", numerics::kSm90Bf16F32, false, numerics::kBF16, numerics::kBF16},
    {"f16", numerics::kSm90Fp16F32, false, numerics::kFP16, numerics::kFP16},
    {"f16 to f16", numerics::kSm90Fp16F16, false, numerics::kFP16, numerics::kFP16},
};

/// Instructions of other chips, by the names of their profiles (tensor_core.hpp),
/// either replayed or published.
inline constexpr Instruction kOtherInstructions[] = {
    {"sm70_f16", numerics::kSm70Fp16F32, false, numerics::kFP16, numerics::kFP16},
    {"sm70_f16_f16acc", numerics::kSm70Fp16F16, false, numerics::kFP16, numerics::kFP16},
    {"sm80_bf16", numerics::kSm80Bf16F32, false, numerics::kBF16, numerics::kBF16},
    {"sm80_f16", numerics::kSm80Bf16F32, false, numerics::kFP16, numerics::kFP16},
    {"sm80_f16_f16acc", numerics::kSm80Fp16F16, false, numerics::kFP16, numerics::kFP16},
    {"sm80_tf32", numerics::kSm80Tf32F32, false, numerics::kTF32, numerics::kTF32},
    {"sm89_mma_fp8", numerics::kSm89MmaFp8F32, false, numerics::kE4M3, numerics::kE5M2},
    {"sm89_mma_fp8_f16", numerics::kSm89MmaFp8F16, false, numerics::kE4M3, numerics::kE4M3},
    {"sm90_tf32", numerics::kSm90Tf32F32, false, numerics::kTF32, numerics::kTF32},
    {"cdna3_fp8", numerics::kCdna3Fp8F32, false, numerics::kE4M3Fnuz, numerics::kE5M2Fnuz},
};

/// One instruction with its result.
struct ExpectedGroup {
  const Instruction* instruction = nullptr;
  std::vector<std::uint32_t> a, b;
  std::uint32_t c_bits = 0;
  std::uint32_t result = 0;

  /// The result points into this object.
  GroupProblem problem() const {
    MmaModel model;
    model.known = true;
    model.mma_sync_fp8 = instruction->mma_sync_fp8;
    model.group = instruction->group;
    return {model,
            instruction->format_a,
            instruction->format_b,
            a.data(),
            b.data(),
            static_cast<int>(a.size()),
            c_bits};
  }
};

/// Draws every pair of case kinds for one instruction, with zero, chained and arbitrary
/// accumulators; results from `expected`.
std::vector<ExpectedGroup> draw_groups(const Instruction& instruction,
                                       const Implementation& expected, CaseGenerator& cases);

/// Returns a scale from 2^-5 to 2^3.
float ordinary_scale(CaseGenerator& cases);

/// Codes and scales of one operand, contiguous.
struct SuiteOperand {
  QuantSpec spec;
  std::int64_t rows = 0, k = 0;
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  SuiteOperand() = default;
  SuiteOperand(const QuantSpec& wanted, std::int64_t operand_rows, std::int64_t operand_k,
               CaseGenerator& cases, bool specials);

  QuantizedOperand view();  ///< points into this object
};

/// A GEMM and the memory of its tensors.
struct GemmProblem {
  GemmSpec spec;
  SuiteOperand a, b;
  std::vector<float> bias;  ///< empty: no bias
  bool accumulate = false;
  std::vector<float> d;               ///< f32 output; contains the addend before run()
  std::vector<std::uint16_t> d_bf16;  ///< bf16 output

  void run(const Implementation& implementation);

  std::uint32_t result(std::size_t i) const;  ///< returns the bits of element i

  /// Describes element i of the result, for messages.
  std::string describe(std::size_t i) const;
};

/// The quantizers and the schedule of a GEMM.
struct OperandPair {
  const char* format;
  TileShape a, b;
  const char* gemm;
  std::int64_t m, n;  ///< largest extents
};

/// Square tiles of B need more than 128 columns to have a second row of scales.
inline constexpr OperandPair kPairs[] = {
    {"e4m3fn", {0, 0}, {0, 0}, "fast", 12, 20},
    {"e4m3fn", {0, 0}, {0, 0}, "promote:128", 12, 20},
    {"e5m2", {1, 0}, {1, 0}, "promote:64", 12, 20},
    {"e4m3fn", {1, 128}, {1, 128}, "promote:128", 12, 20},
    {"e4m3fn", {1, 128}, {128, 128}, "promote:128", 3, 300},
    {"e4m3fn", {128, 128}, {1, 128}, "promote:128", 12, 20},
    {"e2m1", {1, 32}, {1, 32}, "promote:32", 12, 20},
    {"bf16", {0, 0}, {0, 0}, "fast", 12, 20},
};

/// Draws random codes, scales, shape and epilogue of a pair; does not run the GEMM.
GemmProblem draw_gemm(const OperandPair& pair, CaseGenerator& cases);

}  // namespace fp8lab
