// Key-by-key differences between two resolved run configurations, for messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fp8lab {

/// Returns one entry for each key whose value differs between two texts of to_toml, in the order of
/// the new one: "stages.cpt.learning_rate.peak: 0.001 -> 0.002". A key or table that only one text
/// has is "(none)" in the other. Stages are matched by name, other tables of a list by number.
/// Empty if the two mean the same. Throws Error if a text is not TOML.
std::vector<std::string> differences(const std::string& stored_toml, const std::string& new_toml);

/// Like `differences` for two runs. Keys that are newer than the stored text are filled in with the
/// values that they imply, if the stored text can still be read.
std::vector<std::string> run_differences(const std::string& stored_toml,
                                         const std::string& new_toml);

/// Joins the first `most` entries on one line: "a; b; and 3 more".
std::string join_differences(const std::vector<std::string>& all, std::size_t most = 5);

}  // namespace fp8lab
