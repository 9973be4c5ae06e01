// Options that set keys of a run configuration, and errors in the words of the command line.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// Returns the keys for --set, those of the table `table` of a run file, that are named `word` here
/// or that other programs call so: "stages.*.steps"; of a table its keys. Empty if there are none.
std::string keys_named(const std::string& word, const std::string& table);

/// The assignments that the options of a command stand for. An error about one of them names the
/// option and its value as they were given, not the key of the configuration.
class OptionAssignments {
 public:
  /// `values` must outlive this object; `command` begins the messages.
  OptionAssignments(const Values& values, std::string command)
      : values_(values), command_(std::move(command)) {}

  /// Assigns the value of `option`, if it was given, to `key` ("stages.cpt.eval.sequences"). Like
  /// the next two it throws Error if another option assigned that key.
  void add(const std::string& option, const std::string& key);
  /// Assigns `toml` to `key` if `option` was given.
  void add(const std::string& option, const std::string& key, const std::string& toml);
  /// Assigns the keys of --set, which are those of the table `table` ("stages.cpt.eval."; "": of
  /// the whole configuration).
  void add_set(const std::string& table = {});
  /// Adds all of `others`, which are of the same command.
  void append(const OptionAssignments& others);
  /// Makes messages about the assignment 'KEY=VALUE' name `option`; assigns nothing.
  void explain(const std::string& option, const std::string& key, const std::string& value);

  /// Makes messages about an option name `option` instead of `key`; assigns nothing.
  void name_key(const std::string& option, const std::string& key);
  /// Makes messages say `words` instead of `phrase`, such as "data.form = \"prompt_response\"".
  void reword(const std::string& phrase, const std::string& words) { phrases_[phrase] = words; }

  const std::vector<Assignment>& all() const { return all_; }

  /// Returns `read()`, which reads a configuration with these assignments. Throws its Error in the
  /// words of the command line.
  template <class Read>
  auto reading(Read&& read) const {
    try {
      return read();
    } catch (const Error& error) {
      throw InputError(in_options(fields_of(error)));
    }
  }

 private:
  /// An assignment as messages name it, and what was typed.
  struct Written {
    std::string key;
    std::string origin;  ///< "assignment 'stages.cpt.eval.sequences=-1'"
    std::string words;   ///< "--sequences -1"
    std::string path;    ///< "stages.eval.sequences", the key as messages name it
    std::string table;   ///< of --set: the path that precedes its key
  };

  /// Throws Error if other words than `words` assign `key` too.
  void refuse_twice(const std::string& key, const std::string& words) const;
  /// Replaces the key and the value by the option and the value that were typed.
  void name_option(const Written& about, ErrorFields& fields) const;
  /// Returns the fields of an error about an assignment in the words of the command line.
  ErrorFields in_options(ErrorFields fields) const;
  const Written* find_written(const std::string& message) const;

  const Values& values_;
  std::string command_;
  std::vector<Assignment> all_;
  std::vector<Written> written_;
  std::map<std::string, std::string> options_;  ///< the option of each path, given or not
  std::map<std::string, std::string> phrases_;
};

}  // namespace fp8lab::cli
