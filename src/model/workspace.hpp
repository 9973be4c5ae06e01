// Buffers that the layers of a model use one after another, each in some phases of a pass. Buffers
// with disjoint phases share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "emulation/backend.hpp"
#include "src/architecture/live_range.hpp"

namespace fp8lab {

class Workspace {
 public:
  explicit Workspace(Backend& backend) : backend_(backend) {}

  /// Declares a use of buffer `name` with this shape. Uses with the same name and live range share
  /// one buffer, as large as the largest of them. Call before allocate() or place().
  void reserve(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
               std::int64_t cols);

  /// place() in memory of the backend.
  void allocate();
  /// Places all buffers, the largest first, so that buffers that are live together do not overlap.
  /// Returns the bytes that use() needs.
  std::int64_t place();
  /// Keeps the buffers in `memory` from now on, (1, at least place() bytes) u8, aligned to 256
  /// bytes. The contents do not move.
  void use(const TensorView& memory);

  /// Buffer `name` as a contiguous matrix. The contents are those of its last user.
  TensorView view(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
                  std::int64_t cols) const;

  /// Begins the next phase: discards the contents of all buffers that are not live both before and
  /// after.
  void enter(PassPhase next);
  /// False during a phase that is not in `live`.
  bool is_live(LiveRange live) const { return !current_ || live.has(*current_); }

 private:
  struct Buffer {
    std::int64_t bytes = 0, offset = 0;
  };
  using Key = std::pair<std::string, LiveRange>;

  TensorView view_of(const Buffer& buffer) const {
    return memory_.columns(buffer.offset, buffer.bytes);
  }

  Backend& backend_;
  std::map<Key, Buffer> buffers_;
  TensorView memory_;
  std::optional<std::int64_t> bytes_;  ///< of all buffers, once they are placed
  std::optional<PassPhase> current_;
};

}  // namespace fp8lab
