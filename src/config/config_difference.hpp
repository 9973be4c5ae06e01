// What tells two resolved run configurations apart, key by key, for messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fp8lab {

/// One entry per key whose value differs between two texts of to_toml, in the order of the new one:
/// "stages.cpt.learning_rate.peak: 0.001 -> 0.002". A key or table that only one of them has is
/// "(none)" in the other; stages are told apart by name, other tables of a list by number. Empty
/// when the two mean the same. Throws Error when a text is not TOML.
std::vector<std::string> differences(const std::string& stored_toml, const std::string& new_toml);

/// The same of two runs. What keys mean that the stored text does not have, being older than they
/// are, is filled in where it can still be read.
std::vector<std::string> run_differences(const std::string& stored_toml,
                                         const std::string& new_toml);

/// The first `most` of them on one line: "a; b; and 3 more".
std::string join_differences(const std::vector<std::string>& all, std::size_t most = 5);

}  // namespace fp8lab
