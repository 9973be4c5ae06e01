#include "src/cli/command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "emulation/api/error.hpp"
#include "src/cli/version.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

std::string help_text(const std::vector<Command>& commands) {
  std::string text =
      "fp8lab: a numerical laboratory for FP8 training\n\nusage: fp8lab COMMAND [OPTIONS]\n\n";
  for (const Command& command : commands) {
    text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  }
  return text +
         "\nfp8lab COMMAND --help explains one command; fp8lab --version prints the version\n";
}

std::string command_names(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands) {
    names += (names.empty() ? "" : ", ") + std::string(command.name);
  }
  return names;
}

// What went wrong, on one line whatever the message holds.
int complain(std::string message, int status) {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::print(stderr, "fp8lab: {}\n", message);
  return status;
}

int dispatch(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    throw Error(fmt::format("no command; accepted: {} (fp8lab --help)", command_names(commands)));
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", help_text(commands));
    return ExitCode::kSuccess;
  }
  if (name == "--version") {
    fmt::print("fp8lab {}\n", code_version());
    return ExitCode::kSuccess;
  }
  for (const Command& command : commands) {
    if (command.name == name) return command.run({arguments.begin() + 1, arguments.end()});
  }
  throw Error(fmt::format("unknown command '{}'; accepted: {}", name, command_names(commands)));
}

}  // namespace

po::variables_map parse_arguments(const std::string& name, const po::options_description& options,
                                  const std::vector<std::string>& arguments,
                                  const po::positional_options_description& positional) {
  po::variables_map values;
  try {
    po::store(
        po::command_line_parser(arguments)
            .options(options)
            .positional(positional)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
            .run(),
        values);
    po::notify(values);
  } catch (const po::too_many_positional_options_error&) {
    throw Error(fmt::format("{}: too many arguments (fp8lab {} --help)", name, name));
  } catch (const po::error& error) {
    throw Error(fmt::format("{}: {} (fp8lab {} --help)", name, error.what(), name));
  }
  if (values.count("help") != 0) {
    std::ostringstream text;
    text << options;
    fmt::print("{}", text.str());
  }
  return values;
}

std::string required(const po::variables_map& values, const std::string& name,
                     const std::string& command) {
  if (values.count(name) == 0) {
    throw Error(fmt::format("{}: --{} is missing (fp8lab {} --help)", command, name, command));
  }
  return values[name].as<std::string>();
}

Assignment parse_assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("--set {}: expected KEY=VALUE", text));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

int run(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  try {
    const int status = dispatch(commands, arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw RuntimeFailure("standard output cannot be written");
    }
    return status;
  } catch (const Error& error) {
    return complain(error.what(), ExitCode::kBadInput);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", ExitCode::kRuntimeFailure);
  } catch (const std::exception& error) {
    return complain(error.what(), ExitCode::kRuntimeFailure);
  }
}

}  // namespace fp8lab::cli
