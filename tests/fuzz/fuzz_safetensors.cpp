// The container of checkpoints and models, the position that a checkpoint holds, and the index of
// shards. The first byte chooses.
#include <algorithm>
#include <cstring>
#include <set>

#include "src/io/files/atomic_file.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/io/tensors/tensor_store.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

/// What a reader may rely on: distinct names, and places that fill the data without a gap.
void check(const SafetensorsHeader& header, std::uint64_t data_size) {
  std::set<std::string> names;
  std::uint64_t filled = 0;
  for (const TensorPlace& place : header.tensors) {
    fuzz::require(names.insert(place.tensor.name).second, "a name is accepted twice");
    fuzz::require(place.begin == filled && place.end >= place.begin, "a hole or an overlap");
    fuzz::require(place.tensor.bytes() == place.end - place.begin,
                  "size and shape of " + place.tensor.name + " differ");
    filled = place.end;
  }
  fuzz::require(filled == data_size, "the tensors do not fill the data");
}

void fuzz_position(const std::map<std::string, std::string>& metadata) {
  const RunPosition position = parse_position(metadata, "fuzz");
  fuzz::require(
      position.step >= 0 && position.stage >= 0 && position.stage_step >= 0 && position.tokens >= 0,
      "a checkpoint with a negative position is accepted");
  for (const StreamPosition& stream : position.streams) {
    fuzz::require(stream.sequences >= 0, "a checkpoint with a negative stream is accepted");
    for (const DataCursor& cursor : stream.cursors) {
      fuzz::require(cursor.epoch >= 0 && cursor.document >= 0 && cursor.offset >= 0,
                    "a checkpoint with a negative cursor is accepted");
    }
  }
}

/// The same from the text alone, without a file; and what is written reads as the same.
void fuzz_header(const std::string& text) {
  const auto at = text.find('\n');
  std::uint64_t data_size = 0;
  std::memcpy(&data_size, text.data(), std::min<std::size_t>(text.size(), 2));
  const SafetensorsHeader header = parse_safetensors_header(
      text.substr(at == std::string::npos ? 0 : at + 1), data_size, "fuzz");
  check(header, data_size);
  std::vector<TensorHeader> tensors;
  for (const TensorPlace& place : header.tensors) tensors.push_back(place.tensor);
  const std::string written = format_safetensors_header(header.metadata, tensors);
  const SafetensorsHeader again = parse_safetensors_header(written, data_size, "written");
  fuzz::require(again.metadata == header.metadata, "metadata change when they are written");
  fuzz::require(again.tensors.size() == header.tensors.size(), "tensors vanish");
  fuzz::accept_error([&] { fuzz_position(header.metadata); });
  fuzz::accept_error([&] {
    for (const auto& [name, steps] : parse_history_steps(header.metadata, "fuzz")) {
      fuzz::require(steps >= 0 && name.find('/') != std::string::npos, "a history of no tensor");
    }
  });
}

void fuzz_file(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  file.assign(data, size);
  fuzz::accept_error([&] {
    const SafetensorsFile read(file.path());
    for (const StoredTensor& tensor : read.tensors()) {
      fuzz::require(read_bytes(tensor).size() == tensor.bytes(), "size and shape differ");
      fuzz::require(read.find(tensor.name) == &tensor, "a tensor is not found");
      if (!is_decodable(tensor.type)) continue;
      std::vector<float> values(static_cast<std::size_t>(tensor.size()));
      read_elements(tensor, 0, values);
    }
  });
  // A checkpoint made by chance does not have its checksum.
  fuzz::accept_error([&] {
    read_checkpoint(file.path());
    fuzz::require(read_file(file.path()).find("fp8lab-checkpoint-3") != std::string::npos,
                  "a checkpoint without a schema is accepted");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] == 'H') {
    fuzz::accept_error([&] { fuzz_header(fuzz::text_of(data + 1, size - 1)); });
  } else if (size > 0 && data[0] == 'I') {
    fuzz::accept_error([&] {
      for (const auto& [name, shard] :
           parse_shard_index(fuzz::text_of(data + 1, size - 1), "fuzz")) {
        fuzz::require(shard.find('/') == std::string::npos, "a shard outside the folder");
      }
    });
  } else {
    fuzz_file(data, size);
  }
  return 0;
}
