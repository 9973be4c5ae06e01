// Turns documents of the command line into held-out data of a run.
#pragma once

#include <string>
#include <vector>

#include "src/cli/options/option_assignments.hpp"
#include "src/cli/options/options.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab::cli {

/// Returns the value of `[stages.eval] data` that reads `paths`, all of the kind and form of the
/// first: .jsonl and .txt files, else token shards; running_text for text, records of `text`, and
/// shards without a loss mask.
std::string data_table_of(const std::vector<std::string>& paths);

/// Adds the held-out data of `stage` that --data and --form name.
void add_data(const Values& values, const std::string& stage, OptionAssignments& assignments);

/// Returns a note for each plain text file of --data that holds more than one document: how they
/// are read. `data` is what `config` opens.
std::vector<std::string> document_notes(const Values& values, const DataConfig& config,
                                        const DataSources& data);

}  // namespace fp8lab::cli
