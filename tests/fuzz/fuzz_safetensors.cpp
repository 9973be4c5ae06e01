// The container of checkpoints, and the position that a checkpoint holds.
#include "src/io/safetensors.hpp"
#include "src/train/checkpoint.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  file.assign(data, size);
  fuzz::accept_error([&] {
    const SafetensorsFile read = read_safetensors(file.path());
    for (const StoredTensor& tensor : read.tensors) {
      fuzz::require(tensor.bytes.size() ==
                        static_cast<std::size_t>(tensor.rows * tensor.cols) * size_of(tensor.dtype),
                    "size and shape of " + tensor.name + " differ");
      fuzz::require(read.at(tensor.name).name == tensor.name, "a tensor is not found");
    }
  });
  fuzz::accept_error([&] {
    const RunPosition position = read_position(file.path(), "0");
    fuzz::require(position.step >= 0 && position.stage >= 0 && position.stage_step >= 0 &&
                      position.tokens >= 0 && !position.cursors.empty(),
                  "a checkpoint with a negative position is accepted");
    for (const DataCursor& cursor : position.cursors) {
      fuzz::require(cursor.epoch >= 0 && cursor.document >= 0 && cursor.offset >= 0,
                    "a checkpoint with a negative cursor is accepted");
    }
  });
  return 0;
}
