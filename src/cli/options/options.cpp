#include "src/cli/options/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cctype>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <type_traits>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/cli/options/option_assignments.hpp"
#include "src/config/reading/nearest_name.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

/// Returns "cpu|cuda" for an option with accepted words, "arg" for others.
std::string placeholder_of(const OptionType& type) {
  return type.accepted.empty() ? "arg" : fmt::format("{}", fmt::join(type.accepted, "|"));
}

/// Describes the option for the library, which takes ownership of the result.
const po::value_semantic* semantic_of(const OptionType& type) {
  return std::visit(
      [&](const auto& held) -> const po::value_semantic* {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return new po::untyped_value(true);
        } else {
          po::typed_value<T>* const semantic = po::value<T>();
          semantic->value_name(placeholder_of(type));
          if (!type.has_default) return semantic;
          if (!type.default_text.empty()) return semantic->default_value(held, type.default_text);
          if constexpr (std::is_floating_point_v<T>) {
            semantic->default_value(held, fmt::format("{}", held));
          } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
            semantic->default_value(held);
          }
          return semantic;
        }
      },
      type.held);
}

/// Converts the library's value to the type of the option.
OptionValue held_value(const OptionType& type, const po::variable_value& read) {
  return std::visit(
      [&](const auto& held) -> OptionValue {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return {};
        } else {
          return read.as<T>();
        }
      },
      type.held);
}

/// Refuses negative numbers: the library reads "-1" of an unsigned option as the largest value.
void refuse_negative_count(const std::string& command, const Option& option,
                           const po::parsed_options& parsed) {
  if (!std::holds_alternative<std::uint32_t>(option.type.held) &&
      !std::holds_alternative<std::uint64_t>(option.type.held)) {
    return;
  }
  for (const po::option& word : parsed.options) {
    if (word.string_key != option.name || word.value.empty()) continue;
    if (word.value.front().find('-') == std::string::npos) continue;
    throw InputError({.where = command,
                      .key = "--" + option.name,
                      .found = word.value.front(),
                      .accepted = "numbers from 0 on; " + option.help});
  }
}

void refuse_other_word(const std::string& command, const Option& option, const Value& value) {
  const std::vector<std::string>& accepted = option.type.accepted;
  if (accepted.empty()) return;
  const std::string& word = value.as<std::string>();
  if (std::find(accepted.begin(), accepted.end(), word) != accepted.end()) return;
  throw InputError({.where = command,
                    .key = "--" + option.name,
                    .found = word,
                    .nearest = did_you_mean(word, accepted),
                    .accepted = alternatives(accepted)});
}

/// Describes the accepted values of an option type, for error messages.
std::string accepted_by(const OptionType& type) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_floating_point_v<T>) {
          return "a number such as 0.1";
        } else if constexpr (std::is_unsigned_v<T>) {
          return fmt::format("a whole number from 0 to {}", std::numeric_limits<T>::max());
        } else if constexpr (std::is_integral_v<T>) {
          if constexpr (sizeof(T) == sizeof(std::int64_t)) return "a whole number";
          return fmt::format("a whole number, at most {}", std::numeric_limits<T>::max());
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          return "a whole number";
        } else {
          return "a text";
        }
      },
      type.held);
}

/// Checks each value separately, so that the error names the wrong one.
void refuse_other_type(const std::string& command, const Option& option,
                       const po::parsed_options& parsed) {
  for (const po::option& word : parsed.options) {
    if (word.string_key != option.name || word.value.size() != 1) continue;
    po::options_description one;
    one.add_options()(option.name.c_str(), semantic_of(option.type), "");
    po::parsed_options alone(&one);
    alone.options = {word};
    po::variables_map ignored;
    try {
      po::store(alone, ignored);
    } catch (const po::validation_error&) {
      throw InputError({.where = command,
                        .key = "--" + option.name,
                        .found = word.value.front(),
                        .accepted = accepted_by(option.type) + "; " + option.help});
    }
  }
}

bool is_place(const std::vector<Positional>& positional, const std::string& option) {
  return std::any_of(positional.begin(), positional.end(),
                     [&](const Positional& place) { return place.option == option; });
}

std::string upper(std::string word) {
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

/// Prints the help; positional arguments come first, in the order in which they are typed.
void print_help(const Options& options, const std::vector<Positional>& positional) {
  po::options_description described("options");
  std::string words;
  for (const Option& option : options.all()) {
    if (is_place(positional, option.name)) {
      const std::string word = upper(option.name);
      if (option.help != word) words += fmt::format("  {:<20} {}\n", word, option.help);
    } else {
      described.add_options()(option.name.c_str(), semantic_of(option.type), option.help.c_str());
    }
  }
  described.add_options()("help,h", "this text");
  std::ostringstream text;
  text << described;
  fmt::print("{}\n{}{}{}", options.usage(), words.empty() ? "" : "\n", words, "\n" + text.str());
}

/// Prints what print_help prints as one JSON object, for man pages and the completion of shells.
void print_help_json(const std::string& name, const Options& options,
                     const std::vector<Positional>& positional) {
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  for (const Option& option : options.all()) {
    const bool is_flag = std::holds_alternative<std::monostate>(option.type.held);
    const std::unique_ptr<const po::value_semantic> semantic(semantic_of(option.type));
    described.push_back({{"name", option.name},
                         {"value", is_flag ? "" : semantic->name()},
                         {"is_positional", is_place(positional, option.name)},
                         {"accepted", option.type.accepted},
                         {"help", option.help}});
  }
  fmt::print("{}\n", nlohmann::ordered_json(
                         {{"command", name}, {"usage", options.usage()}, {"options", described}})
                         .dump());
}

/// What an unknown option may mean.
struct Meant {
  std::string nearest;  ///< as did_you_mean
  std::string setting;  ///< keys for --set
};

/// Other programs' word for an option takes precedence, then a key for --set, then a likeness.
/// `table` is that of --set; nothing without it.
Meant meaning_of(const std::string& unknown, const std::vector<std::string>& options,
                 const std::vector<std::string>& places, const std::optional<std::string>& table) {
  const std::string word = unknown.substr(std::min(unknown.find_first_not_of('-'), unknown.size()));
  std::vector<std::string> bare;
  for (const std::string& option : options) bare.push_back(option.substr(2));
  if (const std::string ours = name_elsewhere(word, bare); !ours.empty()) {
    return {fmt::format(" (did you mean '--{}'?)", ours), {}};
  }
  const bool is_place = std::find(places.begin(), places.end(), word) != places.end();
  const std::string place = is_place ? word : name_elsewhere(word, places);
  if (!place.empty()) return {fmt::format(" (did you mean {}, without a name?)", upper(place)), {}};
  const std::string keys = table ? keys_named(word, *table) : std::string();
  if (!keys.empty()) return {{}, fmt::format("a key of --set KEY=VALUE: {}", keys)};
  return {did_you_mean(unknown, options), {}};
}

std::map<std::string, Value> read(const std::string& command, const Options& options,
                                  const po::options_description& described,
                                  const po::positional_options_description& positional,
                                  const std::vector<std::string>& arguments) {
  const po::parsed_options parsed =
      po::command_line_parser(arguments)
          .options(described)
          .positional(positional)
          .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
          .run();
  for (const Option& option : options.all()) refuse_other_type(command, option, parsed);
  po::variables_map found;
  po::store(parsed, found);
  po::notify(found);
  std::map<std::string, Value> values;
  if (found.count("help") != 0) values["help"];
  for (const Option& option : options.all()) {
    refuse_negative_count(command, option, parsed);
    if (found.count(option.name) == 0) continue;
    const po::variable_value& value = found[option.name];
    values[option.name] = {held_value(option.type, value), value.defaulted()};
    refuse_other_word(command, option, values[option.name]);
  }
  return values;
}

}  // namespace

OptionType one_of(std::vector<std::string> accepted) {
  return {std::string(), false, {}, std::move(accepted)};
}

OptionType one_of(std::vector<std::string> accepted, std::string usual) {
  return {std::move(usual), true, {}, std::move(accepted)};
}

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

Values parse_arguments(const std::string& name, const Options& options,
                       const std::vector<std::string>& arguments,
                       const std::vector<Positional>& positional) {
  if (arguments == std::vector<std::string>{std::string(kHelpAsJson)}) {
    print_help_json(name, options, positional);
    return Values({{"help", {}}}, {}, {}, options.usage());
  }
  po::options_description described(options.usage());
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> accepted;
  for (const Option& option : options.all()) {
    described.add_options()(option.name.c_str(), semantic_of(option.type), option.help.c_str());
    if (!is_place(positional, option.name)) names.push_back("--" + option.name);
    if (!option.type.accepted.empty()) accepted[option.name] = option.type.accepted;
  }
  described.add_options()("help,h", "this text");
  names.push_back("--help");
  po::positional_options_description words;
  std::vector<std::string> places;
  for (const Positional& place : positional) {
    words.add(place.option.c_str(), place.count);
    places.push_back(place.option);
  }
  try {
    Values values(read(name, options, described, words, arguments), std::move(accepted), places,
                  options.usage().substr(0, options.usage().find('\n')));
    if (values.count("help") != 0) print_help(options, positional);
    return values;
  } catch (const po::unknown_option& error) {
    const std::string& unknown = error.get_option_name();
    const Meant meant = meaning_of(unknown, names, places, options.table_of_set());
    throw InputError({.where = name,
                      .noun = "unrecognised option",
                      .found = quoted_word(unknown),
                      .nearest = meant.nearest,
                      .reason = fmt::format("(fp8lab {} --help)", name),
                      .remedy = meant.setting});
  } catch (const po::too_many_positional_options_error&) {
    throw InputError(
        {.where = name, .reason = fmt::format("too many arguments (fp8lab {} --help)", name)});
  } catch (const po::error& error) {
    throw InputError(
        {.where = name, .reason = fmt::format("{} (fp8lab {} --help)", error.what(), name)});
  }
}

std::string Values::spelled(const std::string& option) const {
  const bool is_word = std::find(places_.begin(), places_.end(), option) != places_.end();
  return is_word ? upper(option) : "--" + option;
}

std::vector<std::string> words_of(const Values& values, const std::string& option) {
  return values.count(option) == 0 ? std::vector<std::string>()
                                   : values[option].as<std::vector<std::string>>();
}

std::string text_of(const Values& values, const std::string& option, const std::string& otherwise) {
  return values.count(option) == 0 ? otherwise : values[option].as<std::string>();
}

bool given(const Values& values, std::string_view option) {
  const std::string name(option);
  return values.count(name) != 0 && !values[name].is_default;
}

std::size_t positive_count(const Values& values, const std::string& command,
                           const std::string& option) {
  const int count = values[option].as<int>();
  if (count >= 1) return static_cast<std::size_t>(count);
  throw InputError(
      {.where = command, .key = fmt::format("--{}", option), .reason = "must be at least 1"});
}

void refuse_given(const Values& values, const std::string& command,
                  const std::vector<std::string_view>& options, const std::string& why) {
  for (const std::string_view option : options) {
    if (given(values, option))
      throw InputError({.where = command, .key = fmt::format("--{}", option), .reason = why});
  }
}

}  // namespace fp8lab::cli
