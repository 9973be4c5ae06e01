// Numbers that records of JSON lines give their documents, beside the tokens.
#pragma once

#include <memory>
#include <span>

#include "src/data/batch.hpp"
#include "src/data/corpus.hpp"

namespace fp8lab {

/// Throws Error unless records of `source` can have the numbers of `columns` (ColumnSpec).
void require_records(const SourceConfig& source, std::span<const ColumnSpec> columns);

/// Returns `documents`, the corpus of `source`, with the number of each of `columns` for each
/// document, rounded to FP32. They are part of its hash. Throws Error with file:line for a record
/// without a finite number.
std::shared_ptr<const Corpus> with_values(std::shared_ptr<const Corpus> documents,
                                          const SourceConfig& source,
                                          std::span<const ColumnSpec> columns);

}  // namespace fp8lab
