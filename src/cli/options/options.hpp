// Declares, reads and looks up the options of a command. Only options.cpp uses
// Boost.Program_options, because its templates are slow to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fp8lab::cli {

/// The value of an option: none (a flag), a single one, or one for each time that it is given.
using OptionValue =
    std::variant<std::monostate, std::string, std::int32_t, std::int64_t, std::uint32_t,
                 std::uint64_t, float, double, std::vector<std::string>, std::vector<std::int64_t>>;

/// The type of an option, and its default if it has one.
struct OptionType {
  OptionValue held;
  bool has_default = false;
  std::string default_text = {};           ///< default shown in the help; empty: the value itself
  std::vector<std::string> accepted = {};  ///< accepted words of a text; empty: any
};

template <class T>
OptionType value() {
  return {T{}};
}

template <class T>
OptionType value(T usual, std::string text = {}) {
  return {std::move(usual), true, std::move(text)};
}

/// Returns the type of a text that must be one of `accepted`: the help lists them, and
/// parse_arguments refuses others.
OptionType one_of(std::vector<std::string> accepted);
/// Like the above with a default.
OptionType one_of(std::vector<std::string> accepted, std::string usual);

struct Option {
  std::string name;
  OptionType type;
  std::string help;
};

class Options {
 public:
  /// `usage` is the first line of the help.
  explicit Options(std::string usage) : usage_(std::move(usage)) {}

  void add(std::string name, OptionType type, std::string help) {
    options_.push_back({std::move(name), std::move(type), std::move(help)});
  }
  void add(std::string name, std::string help) { add(std::move(name), {}, std::move(help)); }

  /// Adds --set KEY=VALUE for keys of the table `table` of a run file, "stages.eval."; "": for all.
  void add_set(std::string help, std::string table = {}) {
    add("set", value<std::vector<std::string>>(), std::move(help));
    table_of_set_ = std::move(table);
  }

  const std::string& usage() const { return usage_; }
  const std::vector<Option>& all() const { return options_; }
  const std::optional<std::string>& table_of_set() const { return table_of_set_; }

 private:
  std::string usage_;
  std::vector<Option> options_;
  std::optional<std::string> table_of_set_;
};

/// An option for positional arguments, and their number; -1: all that follow.
struct Positional {
  std::string option;
  int count = 1;
};

/// The value of one option.
struct Value {
  OptionValue held;
  bool is_default = false;

  template <class T>
  const T& as() const {
    return std::get<T>(held);
  }
};

/// The parsed command line: an entry for each option that was given or has a default.
class Values {
 public:
  /// `places` are the options of positional arguments, `usage` the first line of the help.
  Values(std::map<std::string, Value> values,
         std::map<std::string, std::vector<std::string>> accepted, std::vector<std::string> places,
         std::string usage)
      : values_(std::move(values)),
        accepted_(std::move(accepted)),
        places_(std::move(places)),
        usage_(std::move(usage)) {}

  std::size_t count(const std::string& option) const { return values_.count(option); }
  /// Precondition: count() finds the option.
  const Value& operator[](const std::string& option) const { return values_.at(option); }
  const std::map<std::string, Value>& all() const { return values_; }
  /// Returns the accepted words of an option of type one_of, given or not.
  const std::vector<std::string>& accepted(const std::string& option) const {
    return accepted_.at(option);
  }
  /// Returns how to give an option: "--spec", or "SOURCE" for a positional argument.
  std::string spelled(const std::string& option) const;
  const std::string& usage() const { return usage_; }

 private:
  std::map<std::string, Value> values_;
  std::map<std::string, std::vector<std::string>> accepted_;
  std::vector<std::string> places_;
  std::string usage_;
};

/// As the only argument of a command: prints its usage and options as one line of JSON.
inline constexpr std::string_view kHelpAsJson = "--help=json";

/// Parses `arguments` of the subcommand `name`. Adds --help and -h, and prints the options if it is
/// given. Throws Error with one line for abbreviated names, single-valued options given twice,
/// negative numbers for counts, and words that an option does not accept.
Values parse_arguments(const std::string& name, const Options& options,
                       const std::vector<std::string>& arguments,
                       const std::vector<Positional>& positional = {});

/// Returns "cpu, truth or cuda".
std::string alternatives(const std::vector<std::string>& words);

/// Returns the values of a repeatable text option, in order; empty if it was not given.
std::vector<std::string> words_of(const Values& values, const std::string& option);

/// Returns the value of a text option; `otherwise` if it was not given and has no default.
std::string text_of(const Values& values, const std::string& option,
                    const std::string& otherwise = {});

/// Returns true if the option was given, false if it has its default.
bool given(const Values& values, std::string_view option);

/// Returns the value of an option of type int. Throws InputError if it is below 1.
std::size_t positive_count(const Values& values, const std::string& command,
                           const std::string& option);

/// Throws InputError "COMMAND: --OPTION WHY" for the first of `options` that was given.
void refuse_given(const Values& values, const std::string& command,
                  const std::vector<std::string_view>& options, const std::string& why);

}  // namespace fp8lab::cli
