// One suite of checks for every implementation of the arithmetic: a backend, the scalar reference,
// or a deliberately wrong variant. The suite does not depend on a backend.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/numerics/schedule.hpp"
#include "src/validate/golden_file.hpp"

namespace fp8lab {

/// One conversion, with the parameters of numerics::encode.
struct CastProblem {
  numerics::FormatSpec format;
  std::uint32_t f32_bits = 0;
  numerics::Rounding rounding = numerics::Rounding::nearest;
  numerics::Overflow overflow = numerics::Overflow::saturate;
  std::uint32_t random_bits = 0;
};

/// One tensor-core instruction on n products and an accumulator
/// (emulation/specification.md, "Tensor cores").
struct GroupProblem {
  MmaModel model;
  numerics::FormatSpec format_a, format_b;
  const std::uint32_t* a = nullptr;  ///< codes
  const std::uint32_t* b = nullptr;
  int n = 0;
  std::uint32_t c_bits = 0;
};

/// One output element of a GEMM with all its inputs (emulation/specification.md, "K
/// schedules and scale orders").
struct ElementProblem {
  numerics::ElementGemm element;
  numerics::Epilogue epilogue;
  const std::uint32_t* a = nullptr;  ///< k codes
  const std::uint32_t* b = nullptr;
  std::int64_t k = 0;
  std::vector<float> sa{1.0f};  ///< scales along K, at least one
  std::vector<float> sb{1.0f};
  float c = 0.0f;
  std::optional<float> bias;
};

/// The implementation under test. Functions that it does not offer are empty, and their checks are
/// skipped. Tensors are contiguous and in host memory.
struct Implementation {
  /// Returns a code, as numerics::encode does.
  std::function<std::uint32_t(const CastProblem&)> cast;
  /// Returns the scale of a tile from its amax, as numerics::tile_scale does.
  std::function<numerics::TileScale(const numerics::ScaleRule&, const numerics::FormatSpec&,
                                    float amax)>
      scale;
  /// Performs ops::Quantize without delayed state.
  std::function<void(const TensorView& source, bool transpose, const RandomKey& key,
                     QuantizedOperand& operand)>
      quantize;
  /// Returns the accumulator bits after one instruction.
  std::function<std::uint32_t(const GroupProblem&)> group;
  /// Returns the output bits of one element.
  std::function<std::uint32_t(const ElementProblem&)> element;
  /// Performs ops::Gemm.
  std::function<void(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                     const TensorView& bias, bool accumulate, const TensorView& d)>
      gemm;
};

/// Returns the quantization and GEMM of a backend; the other functions are empty.
Implementation backend_implementation(Backend& backend);

/// Result of one check. A case is one code, scale or output element.
struct CheckReport {
  std::string name;
  bool offered = true;  ///< false: the implementation lacks the function; nothing was compared
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
  std::string first;  ///< first mismatch: case, expected and actual bits
};

/// Collects the comparisons of one check; see suite_checks.hpp.
class CheckTally;

/// A check with its cases and their expected results.
struct SuiteCheck {
  std::string name;
  std::function<bool(const Implementation&)> offered;
  std::function<void(const Implementation&, CheckTally&)> run;
};

/// The generated cases with their expected results, and recorded hardware results if their files
/// are present. Created once, run on many implementations.
class ValidationSuite {
 public:
  /// Computes the expected results with `expected`. Precondition: it offers every function.
  /// `golden` is a folder with mma.bin, gemm.bin and gemm_edge.bin (each optional), or empty for
  /// none. Throws Error for malformed files.
  ValidationSuite(const Implementation& expected, const std::filesystem::path& golden,
                  std::uint64_t seed);

  /// Runs the checks in order. With `stop_at_mismatch`, the first mismatch ends its
  /// check and the whole run.
  std::vector<CheckReport> run(const Implementation& tested, bool stop_at_mismatch) const;

 private:
  std::vector<SuiteCheck> checks_;
};

}  // namespace fp8lab
