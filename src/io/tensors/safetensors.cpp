#include "src/io/tensors/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaximumHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::size_t kPiece = std::size_t{256}
                               << 10;  // bytes of a file read at a time, few enough for a cache

/// Returns what a file is that begins with the bytes of `length`, as far as they tell.
const char* what_else(std::uint64_t length) {
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kKinds = {
      {{"GGUF", ", but GGUF, of which python3 -m fp8lab.gguf FILE FOLDER makes a model"},
       {"\x89HDF", ", but HDF5"},
       {"\x93NUM", ", but NumPy's .npy"},
       {"PK\x03\x04", ", but a zip archive"}}};
  for (const auto& [begin, words] : kKinds) {
    if (std::memcmp(&length, begin.data(), begin.size()) == 0) return words;
  }
  std::array<char, sizeof length> bytes{};
  std::memcpy(bytes.data(), &length, bytes.size());
  const bool is_text = std::all_of(bytes.begin(), bytes.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
  });
  return is_text ? ", but text" : "";
}

std::uint64_t header_length(const InputFile& file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length) {
    throw InputError({.where = file.path(), .reason = "too short for a safetensors file"});
  }
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaximumHeader || length > file.size() - sizeof length) {
    throw InputError(
        {.where = file.path(),
         .reason = fmt::format("no safetensors file{}: header length {} lies outside the file",
                               what_else(length), length)});
  }
  return length;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_unique<const InputFile>(path)) {
  const std::uint64_t length = header_length(*file_);
  std::string text(length, '\0');
  file_->read(sizeof length, std::as_writable_bytes(std::span(text)));
  const std::uint64_t begin = sizeof length + length;
  SafetensorsHeader header = parse_safetensors_header(text, file_->size() - begin, file_->path());
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (TensorPlace& place : header.tensors) {
    index_[place.tensor.name] = tensors_.size();
    tensors_.push_back({std::move(place.tensor), file_.get(), begin + place.begin});
  }
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  const StoredTensor* const tensor = find(name);
  if (tensor == nullptr)
    throw InputError({.where = path(), .noun = "no tensor", .key = name, .reason = "in the file"});
  return *tensor;
}

void visit_data(const StoredTensor& tensor, std::uint64_t first, std::uint64_t last,
                const std::function<void(std::size_t, std::span<const std::byte>)>& visit) {
  FP8LAB_ASSERT(first <= last && last <= tensor.bytes());
  const std::uint64_t room = std::min<std::uint64_t>(kPiece, last - first);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(room);
  for (std::uint64_t at = first; at < last; at += kPiece) {
    const std::span<std::byte> piece(buffer.get(), std::min<std::uint64_t>(kPiece, last - at));
    tensor.file->read(tensor.offset + at, piece);
    visit(at, piece);
  }
}

TensorBytes read_bytes(const StoredTensor& tensor) {
  TensorBytes bytes(tensor.bytes());
  tensor.file->read(tensor.offset, bytes);
  return bytes;
}

void read_elements(const StoredTensor& tensor, std::int64_t first, std::span<float> destination) {
  if (!is_decodable(tensor.type)) {
    throw InputError({.noun = "tensor",
                      .key = tensor.name,
                      .found = std::string(stored_name(tensor.type)),
                      .accepted = "F32, BF16, F16, F8_E4M3, F8_E5M2"});
  }
  const std::size_t width = size_of(tensor.type);
  const std::size_t begin = static_cast<std::size_t>(first) * width;
  visit_data(tensor, begin, begin + destination.size() * width,
             [&](std::size_t at, std::span<const std::byte> piece) {
               decode_elements(tensor.type, piece,
                               destination.subspan((at - begin) / width, piece.size() / width));
             });
}

std::vector<std::size_t> safetensors_order(const std::vector<TensorHeader>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].type) > size_of(tensors[b].type);
  });
  return order;
}

std::string safetensors_front(const std::map<std::string, std::string>& metadata,
                              const std::vector<TensorHeader>& placed) {
  const std::string header = format_safetensors_header(metadata, placed);
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata,
                       const std::vector<TensorHeader>& tensors,
                       const std::function<TensorBytes(std::size_t)>& produce) {
  const std::vector<std::size_t> order = safetensors_order(tensors);
  std::vector<TensorHeader> placed;
  for (const std::size_t i : order) placed.push_back(tensors[i]);
  AtomicFile file(path);
  file.write(safetensors_front(metadata, placed));
  for (const std::size_t i : order) {
    const TensorBytes bytes = produce(i);
    FP8LAB_ASSERT(bytes.size() == tensors[i].bytes());
    file.write(as_text(bytes));
  }
  file.commit();
}

}  // namespace fp8lab
