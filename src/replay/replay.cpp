#include "src/replay/replay.hpp"

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab {

Replay::Replay(const ReplaySource& source, const StartPoint& start, const Execution::Say& say)
    : original_(source.make_backend()),
      observed_(*original_),
      hashes_(*original_),
      execution_(source.config, observed_,
                 start.checkpoint == nullptr && source.find_start ? source.find_start()
                                                                  : std::filesystem::path(),
                 say, start.checkpoint != nullptr) {
  if (!source.identity.empty()) {
    const bool goes_on = start.checkpoint != nullptr;
    const std::string changes =
        difference(identity_of_steps(source.identity, goes_on), execution_.identity());
    if (!changes.empty()) {
      throw InputError(
          {.where = source.name,
           .reason = fmt::format("what it was made of is not what is there now: {}", changes),
           .remedy = "put that back"});
    }
  }
  if (start.checkpoint != nullptr) execution_.go_on_from(start.checkpoint, start.position);
}

bool Replay::is_complete() const {
  return is_at_work_ ? execution_.is_last_step_done() : execution_.is_complete();
}

void Replay::prepare() {
  if (is_at_work_ && execution_.is_stage_done()) {
    execution_.end_stage();
    is_at_work_ = false;
  }
  while (!is_at_work_) {
    execution_.begin_stage();
    // A checkpoint may be at the end of its stage.
    is_at_work_ = !execution_.is_stage_done();
    if (!is_at_work_) execution_.end_stage();
  }
  if (execution_.is_recipe_due()) execution_.change_recipe();
}

StepTaken Replay::step(OperationObserver* observer) {
  observed_.observe(observer);
  StepTaken taken = execution_.step();
  observed_.observe(nullptr);
  return taken;
}

void Replay::for_each_tensor(const Visit& visit) {
  for_each_state(execution_.scope(), visit);
  for (const Parameter& parameter : execution_.parameters().all()) {
    const TensorView& working = parameter.tensors.working;
    if (!working.empty()) visit("working/" + parameter.name(), working);
  }
}

std::vector<std::uint64_t> Replay::state_hashes() {
  for_each_tensor([&](const std::string&, const TensorView& tensor) { hashes_.add(tensor); });
  return hashes_.take();
}

std::vector<std::string> Replay::state_names() {
  std::vector<std::string> names;
  for_each_tensor([&](const std::string& name, const TensorView&) { names.push_back(name); });
  return names;
}

TensorView Replay::state(std::size_t index) {
  TensorView found;
  for_each_tensor([&](const std::string&, const TensorView& tensor) {
    if (index-- == 0) found = tensor;
  });
  return found;
}

std::vector<StepTaken> replay_all(
    const ReplaySource& source,
    const std::function<void(std::int64_t step, std::int64_t total)>& progress,
    std::size_t at_most) {
  Replay replay(source, {});
  std::vector<StepTaken> steps;
  while (!replay.is_complete() && steps.size() < at_most) {
    replay.prepare();
    steps.push_back(replay.step());
    if (progress) progress(steps.back().record.step, replay.total_steps());
  }
  return steps;
}

}  // namespace fp8lab
