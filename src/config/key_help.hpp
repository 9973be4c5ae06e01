// Help texts of all keys of run files, recipes and studies, from the tables that read them.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// The help of one key.
struct KeyHelp {
  std::string path;      ///< "stages.learning_rate.peak"
  std::string accepted;  ///< "a number from 0 to 10"
  std::string usual;     ///< "default 0.001", "default batch_sequences", "required"
  std::string needs;  ///< condition under which the key has an effect: kind = "wsd"; empty: always
  std::string help;   ///< purpose of the key
  bool is_table = false;                ///< true for a heading, [path] or [[path]]
  std::vector<std::string> names = {};  ///< accepted words, if they can be listed
};

/// Returns the keys of run files, which --set also accepts, with their tables as headings.
std::vector<KeyHelp> run_keys();
/// Returns the keys of recipe files.
std::vector<KeyHelp> recipe_keys();

/// Returns the keys of study files.
std::vector<KeyHelp> study_keys();

/// Returns the help of all keys, without an example.
std::string run_key_list();
std::string recipe_key_list();
std::string study_key_list();

/// Returns the help of the keys whose path ends in `word`, "shards" or "learning_rate.peak", each
/// with the kind of its file and its table; empty if there are none.
std::string key_help(const std::string& word);
/// Returns the last parts of the paths of all keys.
std::vector<std::string> key_words();

/// Returns the page that `fp8lab help config`, `help recipe` or `help study` prints: the
/// keys and an example file.
std::string run_key_page();
std::string recipe_key_page();
std::string study_key_page();

}  // namespace fp8lab
