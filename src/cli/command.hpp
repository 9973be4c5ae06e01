// The subcommands of the program and what they share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/cli/options.hpp"
#include "src/config/config.hpp"
#include "src/study/process.hpp"

namespace fp8lab::cli {

/// Exit statuses of the program (README.md).
struct ExitCode {
  static constexpr int kSuccess = 0;
  static constexpr int kRuntimeFailure = 1;
  static constexpr int kBadInput = 2;
  static constexpr int kMismatch = 3;                ///< also a record that cannot be checked
  static constexpr int kInterrupted = 4;             ///< after a checkpoint
  static constexpr int kDiverged = kDivergedStatus;  ///< `train`: complete, but the loss diverged
};

/// A subcommand: `run` gets the arguments after its name and returns the exit status. It throws
/// Error for bad input and RuntimeFailure when the machine fails.
struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const std::vector<std::string>& arguments);
};

int info(const std::vector<std::string>& arguments);
int recipes(const std::vector<std::string>& arguments);
int init(const std::vector<std::string>& arguments);
int presets(const std::vector<std::string>& arguments);
int models(const std::vector<std::string>& arguments);
int train(const std::vector<std::string>& arguments);
int data(const std::vector<std::string>& arguments);
int compare(const std::vector<std::string>& arguments);
int verify(const std::vector<std::string>& arguments);
int doctor(const std::vector<std::string>& arguments);
int ablate(const std::vector<std::string>& arguments);
int assess(const std::vector<std::string>& arguments);
int eval(const std::vector<std::string>& arguments);
int certify(const std::vector<std::string>& arguments);
int generate(const std::vector<std::string>& arguments);
int export_command(const std::vector<std::string>& arguments);
int report(const std::vector<std::string>& arguments);
int validate(const std::vector<std::string>& arguments);
int gemm(const std::vector<std::string>& arguments);
int quantize(const std::vector<std::string>& arguments);
int attribute(const std::vector<std::string>& arguments);
int whatif(const std::vector<std::string>& arguments);
int bench(const std::vector<std::string>& arguments);

/// One of several things that a command does, chosen by its first word.
struct Action {
  std::string_view name;
  std::string_view words;                 ///< option that holds the words after the name; or empty
  std::vector<std::string_view> options;  ///< those that it reads
  int (*run)(const Values& values);
};

/// Runs the action that option `selector` of `command` names. Throws Error for an unknown name, and
/// for options and words that were given but that this action does not read.
int run_action(const std::string& command, const Values& values, const std::string& selector,
               const std::vector<Action>& actions);

/// --threads. Throws Error for what checked_threads refuses.
int threads_of(const Values& values, const std::string& command);

/// The value of a required option. Throws Error that says what to type; `accepted` may be empty.
std::string required(const Values& values, const std::string& name, const std::string& command,
                     const std::string& accepted = {});

/// "KEY=VALUE" of --set. Throws Error.
Assignment parse_assignment(const std::string& text);

/// Those of --set, where that is given.
std::vector<Assignment> assignments_of(const Values& values);

/// What goes wrong with an unknown `word` of a command line: "COMMAND: unknown WHAT 'WORD' (did you
/// mean ...?); accepted: ...".
Error unknown_word(const std::string& command, const std::string& what, const std::string& word,
                   const std::vector<std::string>& accepted);

/// A line on standard error that is no failure; each once.
void print_notes(const std::vector<std::string>& notes);

/// The whole program without the program's name: dispatches, prints errors, returns the status.
int run(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

}  // namespace fp8lab::cli
