// The data that a run was trained and evaluated on, for its run file.
#pragma once

#include <string>
#include <vector>

#include "src/data/mixture.hpp"

namespace fp8lab {

struct ManifestEntry {
  std::string stage;
  std::string use;  ///< "train" or "eval"
  const DataSources* sources = nullptr;
};

/// Returns JSON: for every entry its sources with weight, hash, number of chosen documents,
/// tokenizer and files, and for each file format, documents, tokens and hash (src/io/README.md).
std::string data_manifest(const std::vector<ManifestEntry>& entries);

}  // namespace fp8lab
