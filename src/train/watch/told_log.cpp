#include "src/train/watch/told_log.hpp"

#include <fmt/format.h>

#include <utility>

namespace fp8lab {
namespace {

class ToldLog final : public RunLog {
 public:
  ToldLog(std::unique_ptr<RunLog> log, std::function<void(const std::string&)> tell)
      : log_(std::move(log)), tell_(std::move(tell)) {}

  void append(const StepRecord& record) override { log_->append(record); }
  void append(const EvalRecord& record) override { log_->append(record); }
  void append(const ScoreRecord& record) override { log_->append(record); }
  void append(const DocumentRecord& record) override { log_->append(record); }
  void append(const WarningRecord& record) override { log_->append(record); }
  void append(const CheckpointRecord& record) override { log_->append(record); }
  void append(const EventRecord& record) override {
    log_->append(record);
    const int told = ++told_[record.kind];
    if (told > kLinesOfKind) return;
    tell_(fmt::format("step {} {}: {}{}", record.step, record.kind, record.message,
                      told == kLinesOfKind ? " (more of this kind: /events of the run file)" : ""));
  }
  void append_tensors(std::int64_t step, const std::vector<OperandStatistics>& statistics,
                      const std::vector<std::uint8_t>& without_history) override {
    log_->append_tensors(step, statistics, without_history);
  }
  void append_sample(std::int64_t step, const std::string& name,
                     const std::vector<float>& values) override {
    log_->append_sample(step, name, values);
  }
  void flush() override { log_->flush(); }
  std::size_t space_needed() const override { return log_->space_needed(); }
  void complete(std::uint64_t final_weight_hash) override { log_->complete(final_weight_hash); }

 private:
  std::unique_ptr<RunLog> log_;
  std::function<void(const std::string&)> tell_;
  std::map<std::string, int> told_;
};

}  // namespace

std::unique_ptr<RunLog> told_log(std::unique_ptr<RunLog> log,
                                 std::function<void(const std::string&)> tell) {
  return std::make_unique<ToldLog>(std::move(log), std::move(tell));
}

}  // namespace fp8lab
