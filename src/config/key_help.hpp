// All keys of run files, recipes and studies in words, from the tables that read them.
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

/// The keys of study files.
std::vector<KeyHelp> study_keys();

/// All keys in words, without an example.
std::string run_key_list();
std::string recipe_key_list();
std::string study_key_list();

/// The page that `fp8lab help config`, `help recipe` or `help study` prints: the keys, and a file.
std::string run_key_page();
std::string recipe_key_page();
std::string study_key_page();

}  // namespace fp8lab
