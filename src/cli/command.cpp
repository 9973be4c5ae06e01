#include "src/cli/command.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <variant>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "src/cli/help_words.hpp"
#include "src/cli/version.hpp"
#include "src/config/config.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/printable.hpp"

namespace fp8lab::cli {
namespace {

constexpr const char* kVariables =
    "\nEnvironment:\n"
    "  FP8LAB_PYTHON    interpreter of Python that report, assess and train --log start, and what\n"
    "                   tokenizes text; default: python3 in PATH\n"
    "  FP8LAB_CACHE     folder of tokenized text; default: $XDG_CACHE_HOME/fp8lab, else\n"
    "                   ~/.cache/fp8lab\n"
    "  HF_HUB_CACHE     folder of models named ORGANIZATION/MODEL; default: $HF_HOME/hub, else\n"
    "                   $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub\n"
    "  OMP_NUM_THREADS  threads of commands without --threads; default: one for each processor\n";

std::string help_text(const std::vector<Command>& commands) {
  std::string text =
      "fp8lab: a numerical laboratory for FP8 training\n\nusage: fp8lab COMMAND [OPTIONS]\n\n";
  for (const Command& command : commands) {
    text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  }
  return text +
         "\nfp8lab COMMAND --help, -h, or fp8lab help COMMAND explain one command; fp8lab help "
         "config, "
         "help recipe\nand help study list the keys of run files, recipes and studies; fp8lab help "
         "WORD explains a key,\nrecipe, preset, model, study, optimizer or stage; fp8lab version, "
         "--version or -v prints the\nversion.\nExit status 0: success, 1: the machine failed, or "
         "a "
         "loss that is not finite stopped a run,\n2: bad input, 3: a difference found, 4: "
         "interrupted "
         "after a checkpoint, 5: train is complete,\nbut its loss diverged\n" +
         kVariables;
}

std::string command_names(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands) {
    names += (names.empty() ? "" : ", ") + std::string(command.name);
  }
  return names;
}

const Command& find_command(const std::vector<Command>& commands, const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.name == name) return command;
    names.emplace_back(command.name);
  }
  const std::vector<std::string> recipes = builtin_recipe_names();
  if (std::find(recipes.begin(), recipes.end(), name) != recipes.end()) {
    throw InputError({.noun = "unknown command",
                      .key = name,
                      .remedy = fmt::format("it is a recipe: fp8lab recipes show {}", name)});
  }
  throw InputError({.noun = "unknown command",
                    .key = name,
                    .nearest = did_you_mean(name, names),
                    .accepted = command_names(commands)});
}

constexpr const char* kOutputFailure = "standard output cannot be written";

// Prints the error on one line of bounded length, whatever the message contains.
int complain(std::string message, int status) {
  constexpr std::size_t kHead = 1500, kTail = 400;
  if (message.size() > kHead + kTail) {
    message.replace(kHead, message.size() - kHead - kTail, " [...] ");
  }
  message = printable(message);
  // If standard error cannot be written, the exit status is the only
  // report; fmt::print would throw.
  std::fprintf(stderr, "fp8lab: %s\n", message.c_str());
  return status;
}

constexpr const char* kOutOfMemory = "out of memory";

/// Handler of operator new. Exceptions must not leave the threads of a parallel loop, so if memory
/// runs out there, the program prints the same message and exits at once.
void refuse_memory() {
  if (omp_get_level() == 0) throw std::bad_alloc();
  std::_Exit(complain(kOutOfMemory, ExitCode::kRuntimeFailure));
}

/// Returns true for errors such as a full disk. An invalid path is bad input.
bool is_failure_of_machine(const std::error_code& code) {
  return code == std::errc::no_space_on_device || code == std::errc::io_error ||
         code == std::errc::too_many_files_open || code == std::errc::not_enough_memory ||
         code == std::errc::too_many_files_open_in_system;
}

/// Explains a command, or the keys of a kind of file.
int explain(const std::vector<Command>& commands, const std::string& topic) {
  const auto page = [](std::string (*text)()) {
    fmt::print("{}", text());
    return ExitCode::kSuccess;
  };
  if (topic == "config") return page(run_key_page);
  if (topic == "recipe") return page(recipe_key_page);
  if (topic == "study") return page(study_key_page);
  for (const Command& command : commands) {
    if (command.name == topic) return command.run({"--help"});
  }
  const std::string text = help_on(topic);
  if (!text.empty()) {
    fmt::print("{}", text);
    return ExitCode::kSuccess;
  }
  std::vector<std::string> names = {"config", "recipe", "study", "version"};
  for (const Command& command : commands) names.emplace_back(command.name);
  std::vector<std::string> all = names;
  for (const std::string& word : help_words()) all.push_back(word);
  throw InputError({.where = "help",
                    .noun = "unknown topic",
                    .key = topic,
                    .nearest = did_you_mean(topic, all),
                    .accepted = fmt::format(
                        "{}, a key, a value of one, or the name of a recipe, preset, model, study, "
                        "optimizer or stage",
                        fmt::join(names, ", "))});
}

/// Prints lines of JSON: the names and summaries of all commands, then each command's help.
int print_all_help(const std::vector<Command>& commands) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Command& command : commands) {
    list.push_back({{"name", command.name}, {"summary", command.summary}});
  }
  fmt::print("{}\n", nlohmann::ordered_json({{"commands", list}}).dump());
  for (const Command& command : commands) command.run({std::string(kHelpAsJson)});
  return ExitCode::kSuccess;
}

int dispatch(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "help" : arguments.front();
  const bool version = name == "--version" || name == "-v" || name == "version";
  const bool help = name == "--help" || name == "-h" || name == "help";
  const std::size_t most = name == "help" ? 2 : 1;
  if ((help || version) && arguments.size() > most) {
    throw InputError(
        {.where = name, .reason = fmt::format("too many arguments, '{}'", arguments[most])});
  }
  if (help && arguments.size() == 2 && arguments[1] == "--json") return print_all_help(commands);
  if (help && arguments.size() == 2) return explain(commands, arguments[1]);
  if (help) {
    fmt::print("{}", help_text(commands));
    return ExitCode::kSuccess;
  }
  if (version) {
    fmt::print("fp8lab {}\n", code_version());
    return ExitCode::kSuccess;
  }
  return find_command(commands, name).run({arguments.begin() + 1, arguments.end()});
}

/// Returns the names of the actions that read an option, "recipes show, recipes check".
std::string readers_of(const std::string& command, const std::vector<Action>& actions,
                       const std::string& option) {
  std::string names;
  for (const Action& action : actions) {
    const auto& read = action.options;
    if (std::find(read.begin(), read.end(), option) == read.end()) continue;
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", command, action.name);
  }
  return names;
}

std::string first_word(const Value& value) {
  if (const auto* words = std::get_if<std::vector<std::string>>(&value.held)) {
    return words->empty() ? std::string() : words->front();
  }
  return value.as<std::string>();
}

void refuse_unread(const std::string& command, const Values& values, const std::string& selector,
                   const std::vector<Action>& actions, const Action& chosen) {
  for (const auto& [option, value] : values.all()) {
    const auto& read = chosen.options;
    if (option == selector || option == chosen.words || value.is_default) continue;
    if (std::find(read.begin(), read.end(), option) != read.end()) continue;
    const std::string others = readers_of(command, actions, option);
    if (!others.empty()) {
      throw InputError({.where = fmt::format("{} {}", command, chosen.name),
                        .key = fmt::format("--{}", option),
                        .reason = fmt::format("is for {}", others)});
    }
    throw InputError(
        {.where = fmt::format("{} {}", command, chosen.name),
         .reason = fmt::format("takes no '{}' (fp8lab {} --help)", first_word(value), command)});
  }
}

}  // namespace

int run_action(const std::string& command, const Values& values, const std::string& selector,
               const std::vector<Action>& actions) {
  std::vector<std::string> names;
  for (const Action& action : actions) names.emplace_back(action.name);
  const std::string name = required(values, selector, command, alternatives(names));
  for (const Action& action : actions) {
    if (action.name != name) continue;
    refuse_unread(command, values, selector, actions, action);
    return action.run(values);
  }
  throw unknown_word(command, selector == "action" ? "action" : "word", name, names);
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    // fmt::print throws where standard error cannot be written, which is no reason to end.
    std::fputs(fmt::format("fp8lab: note: {}\n", printable(note)).c_str(), stderr);
  }
}

InputError unknown_word(const std::string& command, const std::string& what,
                        const std::string& word, const std::vector<std::string>& accepted) {
  return InputError({.where = command,
                     .noun = "unknown " + what,
                     .key = word,
                     .nearest = did_you_mean(word, accepted),
                     .accepted = fmt::format("{}", fmt::join(accepted, ", "))});
}

int threads_of(const Values& values, const std::string& command) {
  return checked_threads(values["threads"].as<int>(), command + ": --threads");
}

std::string required(const Values& values, const std::string& name, const std::string& command,
                     const std::string& accepted) {
  if (values.count(name) == 0) {
    const std::string help = fmt::format("usage: {} (fp8lab {} --help)", values.usage(),
                                         command.substr(0, command.find(' ')));
    throw InputError({.where = command,
                      .key = values.spelled(name),
                      .reason = "is missing",
                      .accepted = accepted,
                      .remedy = help});
  }
  return values[name].as<std::string>();
}

Assignment parse_assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError({.key = "--set", .found = text, .accepted = "KEY=VALUE"});
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<Assignment> assignments_of(const Values& values) {
  std::vector<Assignment> assignments;
  for (const std::string& text : words_of(values, "set")) {
    Assignment next = parse_assignment(text);
    for (const Assignment& before : assignments) {
      if (before.key != next.key) continue;
      throw InputError({.key = "--set",
                        .found = text,
                        .reason = fmt::format(": {} is set before, to {}", next.key, before.value),
                        .accepted = "once"});
    }
    assignments.push_back(std::move(next));
  }
  return assignments;
}

int run(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  std::set_new_handler(refuse_memory);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit returns an error instead
  try {
    omp_set_num_threads(default_threads());
    const int status = dispatch(commands, arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw RuntimeFailure(kOutputFailure);
    }
    return status;
  } catch (const Error& error) {
    return complain(error.what(), ExitCode::kBadInput);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain(
        fmt::format("{}: {}", error.path1().string(), error.code().message()),
        is_failure_of_machine(error.code()) ? ExitCode::kRuntimeFailure : ExitCode::kBadInput);
  } catch (const std::system_error& error) {
    // fmt::print throws this once its buffer is full.
    const bool is_output = std::ferror(stdout) != 0;
    return complain(is_output ? kOutputFailure : error.what(), ExitCode::kRuntimeFailure);
  } catch (const std::bad_alloc&) {
    return complain(kOutOfMemory, ExitCode::kRuntimeFailure);
  } catch (const std::exception& error) {
    return complain(error.what(), ExitCode::kRuntimeFailure);
  }
}

}  // namespace fp8lab::cli
