// A backend that times every operation.
#pragma once

#include "emulation/recording/stand_in.hpp"
#include "emulation/recording/work_log.hpp"

namespace fp8lab {

/// Runs everything on `original`, waits for each operation to finish, and logs its work and time.
class TimingBackend final : public PassThrough {
 public:
  /// `original` must outlive this.
  explicit TimingBackend(Backend& original);

  void fill_zero(const TensorView& view) override;

#define FP8LAB_OPERATION(Name) void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  const WorkLog& log() const { return log_; }
  void clear_log() { log_.clear(); }

 private:
  template <class Op, class Call>
  void time(const Op& op, const Call& call);

  WorkLog log_;
};

}  // namespace fp8lab
