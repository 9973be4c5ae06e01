// All keys of run files and recipes in words, from the tables that read them.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// What is said about one key.
struct KeyHelp {
  std::string path;       ///< "stages.learning_rate.peak"
  std::string accepted;   ///< "a number from 0 to 10"
  std::string usual;      ///< "default 0.001", "default batch_sequences", "required"
  std::string needs;      ///< when it matters: kind = "wsd"; empty: always
  std::string help;       ///< what it is for
  bool is_table = false;  ///< a heading, [path] or [[path]]
};

/// The keys of run files, which are also those of --set, with their tables as headings.
std::vector<KeyHelp> run_keys();
/// The keys of recipe files.
std::vector<KeyHelp> recipe_keys();

/// The page that `fp8lab help config` or `fp8lab help recipe` prints.
std::string run_key_page();
std::string recipe_key_page();

}  // namespace fp8lab
