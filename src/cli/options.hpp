// The options of a command: declared, read, looked up. Boost.Program_options does the reading, in
// options.cpp alone, because its templates are slow to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fp8lab::cli {

/// What an option may hold: nothing (it is given or not), one value, or one for each time that it
/// is given.
using OptionValue =
    std::variant<std::monostate, std::string, std::int32_t, std::int64_t, std::uint32_t,
                 std::uint64_t, float, double, std::vector<std::string>, std::vector<std::int64_t>>;

/// The type of an option, and its default if it has one.
struct OptionType {
  OptionValue held;
  bool has_default = false;
  std::string default_text = {};           ///< in the help; empty: as it is
  std::vector<std::string> accepted = {};  ///< the only words of a text; empty: any
};

template <class T>
OptionType value() {
  return {T{}};
}

template <class T>
OptionType value(T usual, std::string text = {}) {
  return {std::move(usual), true, std::move(text)};
}

/// A text that is one of `accepted`: the help lists these, and parse_arguments refuses others.
OptionType one_of(std::vector<std::string> accepted);
/// The same with a default.
OptionType one_of(std::vector<std::string> accepted, std::string usual);

struct Option {
  std::string name;
  OptionType type;
  std::string help;
};

class Options {
 public:
  /// `usage` heads the help.
  explicit Options(std::string usage) : usage_(std::move(usage)) {}

  void add(std::string name, OptionType type, std::string help) {
    options_.push_back({std::move(name), std::move(type), std::move(help)});
  }
  void add(std::string name, std::string help) { add(std::move(name), {}, std::move(help)); }

  const std::string& usage() const { return usage_; }
  const std::vector<Option>& all() const { return options_; }

 private:
  std::string usage_;
  std::vector<Option> options_;
};

/// Which option holds words that stand without a name, and how many of them; -1: all that follow.
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

/// What a command line says: an entry for each option that was given or has a default.
class Values {
 public:
  /// `places` are the options that stand without a name, `usage` the first line of the help.
  Values(std::map<std::string, Value> values,
         std::map<std::string, std::vector<std::string>> accepted, std::vector<std::string> places,
         std::string usage)
      : values_(std::move(values)),
        accepted_(std::move(accepted)),
        places_(std::move(places)),
        usage_(std::move(usage)) {}

  std::size_t count(const std::string& option) const { return values_.count(option); }
  /// Of an option that count() finds.
  const Value& operator[](const std::string& option) const { return values_.at(option); }
  const std::map<std::string, Value>& all() const { return values_; }
  /// The words of an option that is one_of() some, given or not.
  const std::vector<std::string>& accepted(const std::string& option) const {
    return accepted_.at(option);
  }
  /// How to give an option: "--spec", or "SOURCE" of one that stands without a name.
  std::string spelled(const std::string& option) const;
  const std::string& usage() const { return usage_; }

 private:
  std::map<std::string, Value> values_;
  std::map<std::string, std::vector<std::string>> accepted_;
  std::vector<std::string> places_;
  std::string usage_;
};

/// Parses `arguments` of the subcommand `name`. Adds --help and -h, and prints the options when it
/// is given. Abbreviated names, options given twice that hold one value, numbers below 0 for
/// options that count, and other words than an option accepts are refused. Throws Error with one
/// line.
Values parse_arguments(const std::string& name, const Options& options,
                       const std::vector<std::string>& arguments,
                       const std::vector<Positional>& positional = {});

/// "cpu, truth or cuda".
std::string alternatives(const std::vector<std::string>& words);

/// What a repeatable option of text was given, in order; nothing where it was not.
std::vector<std::string> words_of(const Values& values, const std::string& option);

/// The value of an option of text; `otherwise` where it was not given and has no default.
std::string text_of(const Values& values, const std::string& option,
                    const std::string& otherwise = {});

/// Was the option given, not left at its default?
bool given(const Values& values, std::string_view option);

/// Throws Error "COMMAND: --OPTION WHY" for the first of `options` that was given.
void refuse_given(const Values& values, const std::string& command,
                  const std::vector<std::string_view>& options, const std::string& why);

}  // namespace fp8lab::cli
