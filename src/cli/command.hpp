// The subcommands of the program and their shared functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"
#include "src/study/process.hpp"

namespace fp8lab::cli {

/// Exit statuses of the program (README.md).
struct ExitCode {
  static constexpr int kSuccess = 0;
  static constexpr int kRuntimeFailure = 1;
  static constexpr int kBadInput = 2;
  static constexpr int kMismatch = 3;                ///< also: a record that cannot be checked
  static constexpr int kInterrupted = 4;             ///< after writing a checkpoint
  static constexpr int kDiverged = kDivergedStatus;  ///< `train`: complete, but the loss diverged
};

/// A subcommand. `run` receives the arguments after its name and returns the exit status. It throws
/// Error for bad input and RuntimeFailure if the machine fails.
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
int replay(const std::vector<std::string>& arguments);
int doctor(const std::vector<std::string>& arguments);
int ablate(const std::vector<std::string>& arguments);
int assess(const std::vector<std::string>& arguments);
int eval(const std::vector<std::string>& arguments);
int certify(const std::vector<std::string>& arguments);
int generate(const std::vector<std::string>& arguments);
int convert(const std::vector<std::string>& arguments);
int export_command(const std::vector<std::string>& arguments);
int report(const std::vector<std::string>& arguments);
int validate(const std::vector<std::string>& arguments);
int gemm(const std::vector<std::string>& arguments);
int quantize(const std::vector<std::string>& arguments);
int attribute(const std::vector<std::string>& arguments);
int whatif(const std::vector<std::string>& arguments);
int bench(const std::vector<std::string>& arguments);

/// One of several actions of a command, selected by its first word.
struct Action {
  std::string_view name;
  std::string_view words;                 ///< option that holds the words after the name, or empty
  std::vector<std::string_view> options;  ///< options that the action reads
  int (*run)(const Values& values);
};

/// Runs the action that option `selector` of `command` names. Throws Error for an unknown name, and
/// for options and words that are given but not read by this action.
int run_action(const std::string& command, const Values& values, const std::string& selector,
               const std::vector<Action>& actions);

/// Returns the value of --threads. Throws Error if checked_threads refuses it.
int threads_of(const Values& values, const std::string& command);

/// Returns the value of a required option. Throws Error that states what to type;
/// `accepted` may be empty.
std::string required(const Values& values, const std::string& name, const std::string& command,
                     const std::string& accepted = {});

/// Parses "KEY=VALUE" of --set. Throws Error for other text.
Assignment parse_assignment(const std::string& text);

/// Returns the assignments of --set, if given.
std::vector<Assignment> assignments_of(const Values& values);

/// Returns the error for an unknown `word` of a command line: "COMMAND: unknown WHAT 'WORD' (did
/// you mean ...?); accepted: ...".
InputError unknown_word(const std::string& command, const std::string& what,
                        const std::string& word, const std::vector<std::string>& accepted);

/// Prints each distinct note on a line of standard error; notes are not failures.
void print_notes(const std::vector<std::string>& notes);

/// Runs the whole program: dispatches `arguments` (without the program's name), prints
/// errors, and returns the status.
int run(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

}  // namespace fp8lab::cli
