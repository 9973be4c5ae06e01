// Examines the files of a Hugging Face model, quantized or not, of any family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/model/part_report.hpp"
#include "src/model_files/model_folder.hpp"

namespace fp8lab {

/// How far a weight is from that of the reference.
struct ComparedWeight {
  std::string name;
  double sqnr_db = 0;         ///< 10 log10(sum x^2 / sum (x - y)^2); infinity: equal
  double max_error = 0;       ///< largest |x - y|
  double worst_block_db = 0;  ///< the lowest SQNR of a block of the scales' grid
  std::vector<std::int64_t> worst_block = {};  ///< empty without blocks
};

struct ModelExamination {
  std::vector<ModelFinding> findings;  ///< in the order of the files
  std::size_t tensors = 0;
  std::vector<std::string> layouts;      ///< "fp8 e4m3fn/128x128, scales F32: 14 weights"
  std::vector<ComparedWeight> compared;  ///< with a reference

  /// Returns the number of findings of a severity.
  std::size_t count(Severity severity) const;
};

/// Reads every byte of the tensors of `model` once, one tensor at a time, and checks: index against
/// shards; quantization_config against tensors (method, block, ignored modules, type, inputs);
/// scales that are missing, of no weight, or in a grid that does not fit; codes and scales that are
/// no numbers; codes of another FP8 format; scales that do not belong to their blocks; blocks over
/// fused rows; tied heads; with `reference`, a folder of the same model, the SQNR of each tensor.
/// Throws Error if there is no model.
ModelExamination examine_model(const std::filesystem::path& model,
                               const std::filesystem::path& reference, const PartReport& report);

// The parts of it. Each appends to the findings.

/// Names, shapes, configuration, packed experts and mixtures.
void check_claims(ModelFolder& folder, std::vector<ModelFinding>& findings);
/// Experts and their projections that are missing, differ, or have names that no loader looks for.
void check_mixtures(const ModelFolder& folder, std::vector<ModelFinding>& findings);
/// Codes, scales and values. Needs the tiles that check_claims sets.
void check_values(const ModelFolder& folder, const PartReport& report,
                  std::vector<ModelFinding>& findings);
/// Heads that are stated both to be and not to be the embedding; blocks over fused rows.
void check_structure(const ModelFolder& folder, std::vector<ModelFinding>& findings);
/// SQNR against another folder of the same model.
std::vector<ComparedWeight> compare_with_reference(const ModelFolder& folder,
                                                   const std::filesystem::path& reference,
                                                   const PartReport& report,
                                                   std::vector<ModelFinding>& findings);

/// Returns true for weights whose tensors are all there and fit.
bool is_readable(const StoredWeight& weight);

}  // namespace fp8lab
