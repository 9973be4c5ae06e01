#include "src/train/checkpoint/checkpoint_writer.hpp"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "emulation/base/machine.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/io/hash.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/train/checkpoint/checkpoint_format.hpp"
#include "src/train/checkpoint/start_vocabulary.hpp"

namespace fp8lab {
namespace {

using Metadata = std::map<std::string, std::string>;

/// Threads that touch pages during the steps: one touches some GB/s.
constexpr int kTouchingThreads = 4;

/// A tensor to be written.
struct Source {
  TensorHeader header;
  TensorView view;
};

/// "LAYER/x=STEPS" for each delayed scale, with commas between them.
std::string history_steps_text(const std::vector<NamedOperands>& modules) {
  std::string text;
  for (const auto& [module, operands] : modules) {
    for (const OperandId id : operands->ids()) {
      if (operands->delayed_state(id).empty()) continue;
      text += fmt::format("{}{}={}", text.empty() ? "" : ",",
                          amax_history_name(module, operands->declaration(id)),
                          operands->history_steps(id));
    }
  }
  return text;
}

/// For each stream: its sequences, the number of its cursors, and three numbers for each of them.
std::string streams_text(const std::vector<StreamPosition>& streams) {
  std::string text = std::to_string(streams.size());
  for (const StreamPosition& stream : streams) {
    text += fmt::format(",{},{}", stream.sequences, stream.cursors.size());
    for (const DataCursor& cursor : stream.cursors) {
      text += fmt::format(",{},{},{}", cursor.epoch, cursor.document, cursor.offset);
    }
  }
  return text;
}

Metadata metadata_of(const CheckpointScope& scope, const RunPosition& position,
                     const std::string& identity, const Recipe& recipe) {
  Metadata metadata = {{"schema", kCheckpointSchema},
                       {"identity", identity},
                       {kCheckpointModel, model_table_text(scope.parameters.model())},
                       {"recipe", recipe.text},
                       {"step", std::to_string(position.step)},
                       {"stage", std::to_string(position.stage)},
                       {"stage_step", std::to_string(position.stage_step)},
                       {"tokens", std::to_string(position.tokens)},
                       {"streams", streams_text(position.streams)},
                       {"history_steps", history_steps_text(scope.modules)}};
  if (!scope.tokenizer.empty()) metadata[kTokenizerKey] = scope.tokenizer;
  if (position.recipe > 0) metadata["stage_recipe"] = std::to_string(position.recipe);
  if (position.fallback != FallbackState{}) metadata["fallback"] = fallback_text(position.fallback);
  return metadata;
}

/// In the order of the file.
std::vector<Source> sources_of(const CheckpointScope& scope) {
  std::vector<TensorHeader> headers;
  std::vector<TensorView> views;
  for_each_state(scope, [&](const std::string& name, const TensorView& view) {
    headers.push_back({name, stored_type(view.dtype), {view.rows, view.cols}});
    views.push_back(view);
  });
  std::vector<Source> sources;
  for (const std::size_t i : safetensors_order(headers)) sources.push_back({headers[i], views[i]});
  return sources;
}

void copy(const std::string& bytes, BackgroundFile& file) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::span<std::byte> room = file.room(bytes.size() - at, 1);
    std::memcpy(room.data(), bytes.data() + at, room.size());
    file.advance(room.size());
    at += room.size();
  }
}

/// Downloads many tensors in one call, since each call waits for its data.
void copy(Backend& backend, const std::vector<Source>& sources, BackgroundFile& file) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{256} << 20;  // bytes of one download
  std::uint64_t left = 0;
  for (const Source& source : sources) left += source.header.bytes();
  std::vector<Download> downloads;
  std::int64_t at = 0;  // elements of the tensor
  for (std::size_t next = 0; left > 0;) {
    const std::span<std::byte> room =
        file.room(std::min(left, kAtOnce), size_of(sources[next].view.dtype));
    std::size_t used = 0;
    downloads.clear();
    for (; next < sources.size() && used < room.size(); at = 0, ++next) {
      const TensorView all = sources[next].view.flat();
      const std::size_t width = size_of(all.dtype);
      const auto places = static_cast<std::int64_t>((room.size() - used) / width);
      const std::int64_t count = std::min(places, all.cols - at);
      downloads.push_back({room.data() + used, all.columns(at, count)});
      used += static_cast<std::size_t>(count) * width;
      at += count;
      if (at < all.cols) break;
    }
    backend.download_all(downloads);
    file.advance(used);
    left -= used;
  }
}

}  // namespace

std::size_t checkpoint_memory(std::uint64_t bytes, std::int64_t to_come) {
  constexpr std::uint64_t kPiece = BackgroundFile::kPiece;
  constexpr std::uint64_t kLeast = 2 * kPiece;  // one piece is written while the next is copied
  const std::int64_t left = std::max<std::int64_t>(available_memory() - to_come, 0);
  const std::uint64_t half = static_cast<std::uint64_t>(left) / 2 / kPiece * kPiece;
  const std::uint64_t all = (bytes + kPiece - 1) / kPiece * kPiece;
  return std::max(std::min(all, half), kLeast);
}

CheckpointWriter::CheckpointWriter(std::filesystem::path path) : path_(std::move(path)) {}

void CheckpointWriter::reserve(std::uint64_t bytes, std::int64_t to_come) {
  const std::size_t held = memory_.bytes().size();
  if (held >= bytes) return;
  // The present buffer counts as free memory.
  const std::size_t wanted = checkpoint_memory(bytes, to_come - static_cast<std::int64_t>(held));
  if (wanted <= held) return;
  memory_ = {};
  memory_ = PageMemory(wanted);
}

void CheckpointWriter::prepare(const CheckpointScope& scope, std::int64_t to_come) {
  if (is_under_way()) return;  // the present write uses the buffer
  touching_ = {};
  constexpr std::uint64_t kFront = std::uint64_t{1} << 20;  // header of about a thousand tensors
  std::uint64_t bytes = kFront;
  for (const Source& source : sources_of(scope)) bytes += source.header.bytes();
  reserve(bytes, to_come);
  const std::span<std::byte> pages =
      memory_.bytes().first(std::min<std::uint64_t>(memory_.bytes().size(), bytes));
  const int threads = std::min(kTouchingThreads, omp_get_max_threads());
  touching_ = std::jthread([pages, threads](const std::stop_token& stop) {
    constexpr std::size_t kPage = 4096;
    const auto count = static_cast<std::int64_t>((pages.size() + kPage - 1) / kPage);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t i = 0; i < count; ++i) {
      if (!stop.stop_requested()) pages[static_cast<std::size_t>(i) * kPage] = std::byte{0};
    }
  });
}

void CheckpointWriter::begin(const CheckpointScope& scope, const RunPosition& position,
                             const std::string& identity, const Recipe& recipe,
                             std::int64_t to_come) {
  FP8LAB_ASSERT(!is_under_way());
  // Wait for the end: several threads that copy into one large page would each touch it.
  if (touching_.joinable()) touching_.join();
  const Metadata metadata = metadata_of(scope, position, identity, recipe);
  const std::vector<Source> sources = sources_of(scope);
  std::vector<TensorHeader> placed;
  for (const Source& source : sources) placed.push_back(source.header);
  const std::uint64_t header_hash = checkpoint_header_hash(metadata, placed);
  // Last in the file: bytes need no alignment.
  const std::size_t checksum_bytes = (sources.size() + 1) * sizeof(std::uint64_t);
  placed.push_back(
      {kCheckpointChecksums, StoredType::u8, {static_cast<std::int64_t>(checksum_bytes)}});
  const std::string front = safetensors_front(metadata, placed);

  std::vector<std::uint64_t> ends = {front.size()};
  for (const Source& source : sources) ends.push_back(ends.back() + source.header.bytes());
  const std::uint64_t bytes = ends.back() + checksum_bytes;
  reserve(bytes, to_come);
  record_ = {position.step, 0, position.seconds};
  const auto finish = [this, header_hash](std::vector<std::uint64_t> hashes) {
    hashes.front() = header_hash;
    const std::size_t size = hashes.size() * sizeof hashes.front();
    record_.hash = xxh3(hashes.data(), size);
    return std::string(reinterpret_cast<const char*>(hashes.data()), size);
  };
  file_.emplace(path_, memory_.bytes(), std::move(ends), checksum_bytes, finish);
  try {
    copy(front, *file_);
    copy(scope.backend, sources, *file_);
  } catch (...) {
    file_.reset();
    throw;
  }
}

CheckpointRecord CheckpointWriter::end() {
  FP8LAB_ASSERT(is_under_way());
  try {
    file_->wait();
  } catch (...) {
    file_.reset();
    throw;
  }
  file_.reset();
  return record_;
}

}  // namespace fp8lab
