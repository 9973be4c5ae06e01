// Documents of the command line as held-out data of a run.
#pragma once

#include <string>
#include <vector>

namespace fp8lab::cli {

/// The value of `[stages.eval] data` that reads `paths`, all of the kind of the first: .jsonl and
/// .txt files, else token shards.
std::string data_table_of(const std::vector<std::string>& paths);

}  // namespace fp8lab::cli
