// Builds the TOML document of a run before it is read: replaces references to model and stage files
// by their contents and applies assignments.
#pragma once

#include <string>
#include <vector>

#include <toml++/toml.h>

#include "src/config/config.hpp"

namespace fp8lab {

/// Parses `text`, replaces `model = "NAME"` and `base = "NAME"` in a model or stage by the files of
/// experiments/models and experiments/stages overlaid with the keys beside them, and applies the
/// assignments in order. Throws Error with file:line:column or the assignment.
toml::table build_run_document(const std::string& text, const std::string& origin,
                               const std::vector<Assignment>& assignments);

/// Returns the keys of `model` that differ from the model which the file of the initial weights
/// `start` describes, "model.rope_theta: 10000.0 -> 500000.0"; none if it describes no model. Keys
/// without an effect on given weights do not count, nor with `grows` the number of layers. Throws
/// Error for a file that cannot be read.
std::vector<std::string> differences_from_start(const std::string& start, const ModelConfig& model,
                                                bool grows);

/// Returns the name of an assignment in messages: "assignment 'KEY=VALUE'", followed by its place
/// in a study file, if it has one.
std::string origin_of(const Assignment& assignment);

}  // namespace fp8lab
