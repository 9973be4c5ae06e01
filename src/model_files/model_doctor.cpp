#include "src/model_files/model_doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/model_files/packed_experts.hpp"

namespace fp8lab {

std::size_t ModelExamination::count(Severity severity) const {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const ModelFinding& one) { return one.severity == severity; }));
}

ModelExamination examine_model(const std::filesystem::path& model,
                               const std::filesystem::path& reference, const PartReport& report) {
  ModelExamination result;
  ModelFolder folder = open_model_folder(model, result.findings);
  check_claims(folder, result.findings);
  check_structure(folder, result.findings);
  check_values(folder, report, result.findings);
  if (!reference.empty()) {
    result.compared = compare_with_reference(folder, reference, report, result.findings);
  }
  result.tensors = folder.tensors.size();
  std::map<std::string, std::size_t> layouts;
  for (const StoredWeight& weight : folder.weights) {
    if (is_readable(weight)) ++layouts[layout_text(weight.layout)];
  }
  std::vector<ModelFinding> reported;  // by check_claims
  if (const std::size_t count = find_packed_experts(folder, reported).size(); count > 0) {
    layouts["mxfp4 experts"] = count;
  }
  for (const auto& [layout, count] : layouts) {
    result.layouts.push_back(fmt::format("{}: {} weights", layout, count));
  }
  return result;
}

}  // namespace fp8lab
