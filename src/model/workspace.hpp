// Buffers that the layers of a model use one after another, each for a part of a pass. Those whose
// parts have nothing in common lie in the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "emulation/backend.hpp"
#include "src/model/live_range.hpp"

namespace fp8lab {

class Workspace {
 public:
  explicit Workspace(Backend& backend) : backend_(backend) {}

  /// Declares a use of buffer `name` with this extent. Uses of one name and one live range share
  /// the buffer. Before allocate().
  void reserve(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
               std::int64_t cols);

  /// Places all buffers, the largest first, each where nothing lies that is in use with it.
  void allocate();

  /// Buffer `name` seen as a contiguous matrix. Contents are those of its last user.
  TensorView view(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
                  std::int64_t cols) const;

  /// The next stretch begins: contents of all buffers that are not in use before and after are
  /// given up.
  void enter(Stretch next);
  /// False while a stretch is under way that is not in `live`.
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
  std::optional<Stretch> current_;
};

}  // namespace fp8lab
