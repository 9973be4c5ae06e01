#include "src/cli/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <sstream>
#include <type_traits>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/config/nearest_name.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

/// The option as the library describes it; it takes ownership of the result.
const po::value_semantic* semantic_of(const OptionType& type) {
  return std::visit(
      [&](const auto& held) -> const po::value_semantic* {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return new po::untyped_value(true);
        } else {
          po::typed_value<T>* const semantic = po::value<T>();
          if (!type.has_default) return semantic;
          if (!type.default_text.empty()) return semantic->default_value(held, type.default_text);
          if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
            semantic->default_value(held);
          }
          return semantic;
        }
      },
      type.held);
}

/// What the library read, as the type of the option.
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

/// The library reads "-1" for a number without sign as the largest one.
void refuse_negative_count(const std::string& command, const Option& option,
                           const po::parsed_options& parsed) {
  if (!std::holds_alternative<std::uint32_t>(option.type.held) &&
      !std::holds_alternative<std::uint64_t>(option.type.held)) {
    return;
  }
  for (const po::option& word : parsed.options) {
    if (word.string_key != option.name || word.value.empty()) continue;
    if (word.value.front().find('-') == std::string::npos) continue;
    throw Error(fmt::format("{}: --{} {}: accepted: numbers from 0 on", command, option.name,
                            word.value.front()));
  }
}

void refuse_other_word(const std::string& command, const Option& option, const Value& value) {
  const std::vector<std::string>& accepted = option.type.accepted;
  if (accepted.empty()) return;
  const std::string& word = value.as<std::string>();
  if (std::find(accepted.begin(), accepted.end(), word) != accepted.end()) return;
  throw Error(fmt::format("{}: --{} {}{}: accepted: {}", command, option.name, word,
                          did_you_mean(word, accepted), alternatives(accepted)));
}

/// "cpu or cuda (default: the run's)".
std::string help_of(const Option& option) {
  if (option.type.accepted.empty()) return option.help;
  const std::string words = alternatives(option.type.accepted);
  return option.help.empty() ? words : fmt::format("{} ({})", words, option.help);
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
  po::options_description described(options.usage());
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> accepted;
  for (const Option& option : options.all()) {
    described.add_options()(option.name.c_str(), semantic_of(option.type), help_of(option).c_str());
    names.push_back("--" + option.name);
    if (!option.type.accepted.empty()) accepted[option.name] = option.type.accepted;
  }
  described.add_options()("help,h", "this text");
  names.push_back("--help");
  po::positional_options_description words;
  for (const Positional& place : positional) words.add(place.option.c_str(), place.count);
  try {
    Values values(read(name, options, described, words, arguments), std::move(accepted));
    if (values.count("help") != 0) {
      std::ostringstream text;
      text << described;
      fmt::print("{}", text.str());
    }
    return values;
  } catch (const po::unknown_option& error) {
    throw Error(fmt::format("{}: {}{} (fp8lab {} --help)", name, error.what(),
                            did_you_mean(error.get_option_name(), names), name));
  } catch (const po::too_many_positional_options_error&) {
    throw Error(fmt::format("{}: too many arguments (fp8lab {} --help)", name, name));
  } catch (const po::error& error) {
    throw Error(fmt::format("{}: {} (fp8lab {} --help)", name, error.what(), name));
  }
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

void refuse_given(const Values& values, const std::string& command,
                  const std::vector<std::string_view>& options, const std::string& why) {
  for (const std::string_view option : options) {
    if (given(values, option)) throw Error(fmt::format("{}: --{} {}", command, option, why));
  }
}

}  // namespace fp8lab::cli
