// A file that background threads hash and write while its author continues.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace fp8lab {

/// The bytes pass through a ring buffer, in the order of the file:
///
///   author    room(), advance()         copied   --.
///   hashing   XXH3-64 of each section   hashed   --+-- all count bytes of the file
///   writing   past the system's cache   written  --'
///
/// The author waits only if the ring is full of bytes that are not yet hashed and written; never,
/// if the ring is as large as the file. As in write_file_atomically, the old file stays until the
/// new one is complete on disk.
class BackgroundFile {
 public:
  /// The ring's size must be a multiple of this.
  static constexpr std::size_t kPiece = std::size_t{8} << 20;
  /// Computes the last bytes of the file from the hashes of its sections.
  using Finish = std::function<std::string(const std::vector<std::uint64_t>& hashes)>;

  /// Starts a file of ends.back() bytes from the author, followed by `finish_bytes` that `finish`
  /// returns; a background thread calls it. Section i ends before byte ends[i], where the next one
  /// begins. Precondition: `ring` begins at a page boundary and outlives this object. Throws
  /// std::system_error if no thread can be started.
  BackgroundFile(std::filesystem::path path, std::span<std::byte> ring,
                 std::vector<std::uint64_t> ends, std::size_t finish_bytes, Finish finish);
  /// Waits for the file to be written. If the author has not provided all
  /// bytes, keeps the old file.
  ~BackgroundFile();
  BackgroundFile(const BackgroundFile&) = delete;
  BackgroundFile& operator=(const BackgroundFile&) = delete;

  /// Returns memory for the author's next bytes: at most `most` bytes, and at least one element of
  /// `width` bytes (1, 2, 4 or 8); no element is split. Precondition: the next byte's offset in
  /// the file is a multiple of `width`. Waits until there is room; throws the error that made
  /// hashing or writing fail.
  std::span<std::byte> room(std::uint64_t most, std::size_t width);
  /// Commits `bytes` bytes that the author has filled.
  void advance(std::size_t bytes);

  /// Returns true if wait() would return at once.
  bool is_done() const;
  /// Waits until the file is on disk under its name. Precondition: the author has provided all
  /// bytes. Throws RuntimeFailure if the system refuses; the old file is then unchanged.
  void wait();

 private:
  /// Waits until `holds` returns true; returns false if the threads end before that.
  template <class Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Condition holds);
  /// Implements room() for the author and for `finish`; empty if the threads have ended.
  std::span<std::byte> room(std::unique_lock<std::mutex>& lock, std::uint64_t most,
                            std::size_t width);
  void move(std::uint64_t& counter, std::uint64_t bytes);
  /// Returns the bytes from `at` to `end`, up to the point where the ring wraps around.
  std::span<std::byte> in_ring(std::uint64_t at, std::uint64_t end) const;
  void hash();
  void write();
  /// Ends the threads, unless the author has provided all bytes.
  void abandon();
  /// Runs the body of a thread; an exception in it ends the other threads.
  void guarded(void (BackgroundFile::*body)());

  const std::filesystem::path path_;
  const std::span<std::byte> ring_;
  const std::vector<std::uint64_t> ends_;
  const std::uint64_t size_;
  const Finish finish_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t copied_ = 0, hashed_ = 0, written_ = 0;
  bool done_ = false, abandoned_ = false;
  std::exception_ptr error_;
  std::jthread hashing_, writing_;  // last, to be destroyed first: they use the others
};

}  // namespace fp8lab
