// The label of operations as an NVTX range, which profilers such as Nsight Systems show.
#pragma once

#include "emulation/label.hpp"

namespace fp8lab::cuda {

/// The range that is open on this thread: "backward layers.0.mlp.down wgrad". Without a profiler,
/// or in a build without the NVTX header, it does nothing.
class LabelRange {
 public:
  LabelRange() = default;
  ~LabelRange() { close(); }
  LabelRange(const LabelRange&) = delete;
  LabelRange& operator=(const LabelRange&) = delete;

  /// Closes the open range and opens that of `label`.
  void enter(const Label& label);

 private:
  void close();

  bool is_open_ = false;
};

}  // namespace fp8lab::cuda
