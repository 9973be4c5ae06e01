#include "src/study/step_slot.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <sstream>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kBytes = 256;

}  // namespace

StepSlot::StepSlot() : memory_(::memfd_create("fp8lab-step", MFD_CLOEXEC)) {
  if (!memory_.valid()) {
    throw RuntimeFailure(fmt::format("cannot share memory with a run: {}", error_text(errno)));
  }
}

std::optional<RunStep> StepSlot::read() const {
  std::array<char, kBytes> bytes{};
  const ssize_t count = ::pread(memory_.get(), bytes.data(), bytes.size(), 0);
  if (count != static_cast<ssize_t>(bytes.size())) return std::nullopt;
  std::istringstream text(std::string(bytes.data(), bytes.size()));
  RunStep step;
  std::string loss;  // a stream cannot read "nan"
  std::int64_t again = 0;
  if (!(text >> step.step >> step.total >> step.first >> loss >> step.stage >> again))
    return std::nullopt;
  if (again != step.step) return std::nullopt;  // the slot was being written
  step.loss = std::strtod(loss.c_str(), nullptr);
  return step;
}

bool write_step(int descriptor, const RunStep& step) {
  // Truncates the stage's name rather than the number behind it.
  std::string text = fmt::format("{} {} {} {:.6g} {:.100} {} ", step.step, step.total, step.first,
                                 step.loss, step.stage, step.step);
  text.resize(kBytes, ' ');
  return ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace fp8lab
