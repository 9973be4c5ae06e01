#include "src/train/checkpoint/checkpoint_file.hpp"

#include <fmt/core.h>

#include <cstring>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/train/checkpoint/checkpoint_format.hpp"

namespace fp8lab {
namespace {

constexpr const char* kFamily = "fp8lab-checkpoint-";

bool is_checkpoint(const SafetensorsFile& file) {
  const auto schema = file.metadata().find("schema");
  return schema != file.metadata().end() && schema->second.starts_with(kFamily);
}

}  // namespace

std::string checkpoint_field(const std::map<std::string, std::string>& metadata,
                             const std::string& origin, const std::string& key) {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  throw InputError({.where = origin, .noun = "the checkpoint lacks", .key = key});
}

CheckpointFile::CheckpointFile(const std::filesystem::path& path) : file_(path) {
  if (!is_checkpoint(file_)) {
    throw InputError({.where = file_.path(), .reason = "not a checkpoint of fp8lab"});
  }
  const std::string& schema = file_.metadata().at("schema");
  if (schema != kCheckpointSchema) {
    throw InputError({.where = file_.path(),
                      .key = "schema",
                      .found = quoted_word(schema),
                      .reason = ": checkpoints of earlier versions have other names of weights",
                      .accepted = kCheckpointSchema,
                      .remedy = "start the run anew"});
  }
  std::vector<TensorHeader> headers;
  for (const StoredTensor& tensor : file_.tensors()) {
    if (tensor.name != kCheckpointChecksums) headers.push_back(tensor);
  }
  const StoredTensor& stored = file_.at(kCheckpointChecksums);
  if (stored.type != StoredType::u8 ||
      stored.bytes() != sizeof(std::uint64_t) * (headers.size() + 1)) {
    throw InputError(
        {.where = file_.path(), .reason = "damaged: its checksums do not fit its tensors"});
  }
  std::vector<std::uint64_t> hashes(headers.size() + 1);
  visit_data(stored, 0, stored.bytes(), [&](std::size_t at, std::span<const std::byte> piece) {
    std::memcpy(reinterpret_cast<std::byte*>(hashes.data()) + at, piece.data(), piece.size());
  });
  if (hashes[0] != checkpoint_header_hash(file_.metadata(), headers)) {
    throw InputError(
        {.where = file_.path(), .reason = "damaged: the header does not have its checksum"});
  }
  for (std::size_t i = 0; i < headers.size(); ++i) hashes_[headers[i].name] = hashes[i + 1];
  hash_ = xxh3(hashes.data(), stored.bytes());
}

OpenCheckpoint CheckpointFile::open_if(const std::filesystem::path& path) {
  if (!is_file(path) || !is_checkpoint(SafetensorsFile(path))) return nullptr;
  return std::make_shared<const CheckpointFile>(path);
}

std::string CheckpointFile::field(const std::string& key) const {
  return checkpoint_field(file_.metadata(), file_.path(), key);
}

void CheckpointFile::read(
    const StoredTensor& tensor,
    const std::function<void(std::size_t, std::span<const std::byte>)>& visit) const {
  Xxh3Stream stream;
  visit_data(tensor, 0, tensor.bytes(), [&](std::size_t at, std::span<const std::byte> piece) {
    stream.update(piece.data(), piece.size());
    visit(at, piece);
  });
  if (stream.digest() != hashes_.at(tensor.name)) {
    throw InputError({.where = fmt::format("{}: damaged", file_.path()),
                      .noun = "tensor",
                      .key = tensor.name,
                      .reason = "does not have its checksum"});
  }
}

void CheckpointFile::verify(const StoredTensor& tensor) const {
  read(tensor, [](std::size_t, std::span<const std::byte>) {});
}

}  // namespace fp8lab
