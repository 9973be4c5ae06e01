#include "src/io/files/background_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {

BackgroundFile::BackgroundFile(std::filesystem::path path, std::span<std::byte> ring,
                               std::vector<std::uint64_t> ends, std::size_t finish_bytes,
                               Finish finish)
    : path_(std::move(path)),
      ring_(ring),
      ends_(std::move(ends)),
      size_(ends_.back() + finish_bytes),
      finish_(std::move(finish)) {
  FP8LAB_ASSERT(!ring_.empty() && ring_.size() % kPiece == 0 && finish_bytes <= kPiece);
  hashing_ = std::jthread([this] { guarded(&BackgroundFile::hash); });
  try {
    writing_ = std::jthread([this] { guarded(&BackgroundFile::write); });
  } catch (...) {
    abandon();  // otherwise the first thread would wait forever
    throw;
  }
}

BackgroundFile::~BackgroundFile() { abandon(); }

void BackgroundFile::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = copied_ < ends_.back();
  changed_.notify_all();
}

template <class Condition>
bool BackgroundFile::wait_until(std::unique_lock<std::mutex>& lock, Condition holds) {
  changed_.wait(lock, [&] { return error_ || abandoned_ || holds(); });
  return !error_ && !abandoned_;
}

std::span<std::byte> BackgroundFile::in_ring(std::uint64_t at, std::uint64_t end) const {
  const std::size_t place = at % ring_.size();
  return ring_.subspan(place, std::min<std::uint64_t>(end - at, ring_.size() - place));
}

void BackgroundFile::move(std::uint64_t& counter, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  counter += bytes;
  changed_.notify_all();
}

std::span<std::byte> BackgroundFile::room(std::unique_lock<std::mutex>& lock, std::uint64_t most,
                                          std::size_t width) {
  const auto free = [&] { return std::min(hashed_, written_) + ring_.size() - copied_; };
  if (!wait_until(lock, [&] { return free() >= width; })) return {};
  const std::span<std::byte> room = in_ring(copied_, copied_ + std::min(most, free()));
  return room.first(room.size() / width * width);
}

std::span<std::byte> BackgroundFile::room(std::uint64_t most, std::size_t width) {
  std::unique_lock lock(mutex_);
  FP8LAB_ASSERT(most >= width && copied_ % width == 0 && copied_ + most <= ends_.back());
  const std::span<std::byte> memory = room(lock, most, width);
  if (error_) std::rethrow_exception(error_);
  return memory;
}

void BackgroundFile::advance(std::size_t bytes) { move(copied_, bytes); }

bool BackgroundFile::is_done() const {
  const std::lock_guard lock(mutex_);
  return done_ || error_;
}

void BackgroundFile::wait() {
  std::unique_lock lock(mutex_);
  FP8LAB_ASSERT(error_ || copied_ >= ends_.back());
  wait_until(lock, [&] { return done_; });
  if (error_) std::rethrow_exception(error_);
}

void BackgroundFile::guarded(void (BackgroundFile::*body)()) {
  try {
    (this->*body)();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

void BackgroundFile::hash() {
  std::vector<std::uint64_t> hashes;
  std::uint64_t at = 0;
  for (const std::uint64_t end : ends_) {
    Xxh3Stream stream;
    while (at < end) {
      std::uint64_t there = 0;
      {
        std::unique_lock lock(mutex_);
        if (!wait_until(lock, [&] { return copied_ > at; })) return;
        there = std::min({copied_, end, at + kPiece});
      }
      const std::span<std::byte> piece = in_ring(at, there);
      stream.update(piece.data(), piece.size());
      at += piece.size();
      move(hashed_, piece.size());
    }
    hashes.push_back(stream.digest());
  }
  const std::string last = finish_(hashes);
  FP8LAB_ASSERT(at + last.size() == size_);
  for (std::size_t done = 0; done < last.size();) {
    std::unique_lock lock(mutex_);
    const std::span<std::byte> room = this->room(lock, last.size() - done, 1);
    if (room.empty()) return;
    std::memcpy(room.data(), last.data() + done, room.size());
    done += room.size();
    copied_ += room.size();
    hashed_ += room.size();
    changed_.notify_all();
  }
}

void BackgroundFile::write() {
  AtomicFile file(path_, Caching::none);
  for (std::uint64_t at = 0; at < size_;) {
    const std::uint64_t end = std::min(size_, at + kPiece);
    {
      std::unique_lock lock(mutex_);
      if (!wait_until(lock, [&] { return copied_ >= end; })) return;
    }
    const std::span<std::byte> piece = in_ring(at, end);
    file.write({reinterpret_cast<const char*>(piece.data()), piece.size()});
    at = end;
    move(written_, piece.size());
  }
  file.commit();
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

}  // namespace fp8lab
