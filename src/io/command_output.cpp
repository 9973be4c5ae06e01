#include "src/io/command_output.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {
namespace {

/// Appends the available output of a pipe; returns false at its end.
bool read_some(const Pipe& pipe, std::string& text) {
  std::array<char, 4096> buffer{};
  const ssize_t count = ::read(pipe.output.get(), buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR;
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

/// Reads both pipes concurrently until they end: a full pipe would block the writer of the other.
void drain(const Pipe& first, std::string& first_text, const Pipe& second,
           std::string& second_text) {
  std::array<pollfd, 2> ends = {
      {{first.output.get(), POLLIN, 0}, {second.output.get(), POLLIN, 0}}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (::poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) break;
    if (ends[0].revents != 0 && !read_some(first, first_text)) ends[0].fd = -1;
    if (ends[1].revents != 0 && !read_some(second, second_text)) ends[1].fd = -1;
  }
  for (std::string* text : {&first_text, &second_text}) {
    text->erase(text->find_last_not_of(" \n") + 1);
  }
}

/// Returns the environment of this process, with `variables` replacing those of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    bool is_replaced = false;
    for (const std::string& other : variables) is_replaced |= other.starts_with(name);
    if (!is_replaced) all.emplace_back(variable);
  }
  return all;
}

std::vector<char*> pointers_of(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

CommandOutput run_command(std::vector<std::string> words,
                          const std::vector<std::string>& variables) {
  std::vector<std::string> environment = environment_with(variables);
  Pipe out, error;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.input.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.input.get(), STDERR_FILENO);
  pid_t child = 0;
  const int failure = posix_spawnp(&child, words[0].c_str(), &actions, nullptr,
                                   pointers_of(words).data(), pointers_of(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw InputError(
        {.where = words[0], .reason = fmt::format("cannot be started ({})", error_text(failure))});
  }
  out.input.close();
  error.input.close();
  CommandOutput output;
  drain(out, output.out, error, output.error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace fp8lab
