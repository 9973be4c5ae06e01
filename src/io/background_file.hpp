// A file that is hashed and written while its author goes on with something else.
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

/// The bytes go through a ring of memory, in the order of the file:
///
///   author    room(), advance()         copied   --.
///   hashing   XXH3-64 of each section   hashed   --+-- all count bytes of the file
///   writing   past the system's cache   written  --'
///
/// The author waits only where the ring is full of what is not yet hashed and written: never, where
/// the ring is as large as the file. Like write_file_atomically: the old file stays until the new
/// one is complete on the disk.
class BackgroundFile {
 public:
  /// The ring's size is a multiple of this.
  static constexpr std::size_t kPiece = std::size_t{8} << 20;
  /// The last bytes of the file, from the hashes of its sections.
  using Finish = std::function<std::string(const std::vector<std::uint64_t>& hashes)>;

  /// Begins a file of ends.back() bytes from the author and `finish_bytes` that `finish`, called
  /// by a thread of this, makes. Section i ends before byte ends[i], where the next one begins.
  /// `ring` begins at a page and must outlive this. Throws std::system_error when the system starts
  /// no thread.
  BackgroundFile(std::filesystem::path path, std::span<std::byte> ring,
                 std::vector<std::uint64_t> ends, std::size_t finish_bytes, Finish finish);
  /// Waits for the file, or leaves the old one where the author has not given all bytes.
  ~BackgroundFile();
  BackgroundFile(const BackgroundFile&) = delete;
  BackgroundFile& operator=(const BackgroundFile&) = delete;

  /// Memory for the author's next bytes: at most `most`, and at least one element of `width` bytes
  /// (1, 2, 4 or 8), none of which is cut; the next byte lies at a multiple of `width` of the file.
  /// Waits for it; throws what made hashing or writing fail.
  std::span<std::byte> room(std::uint64_t most, std::size_t width);
  /// The author has filled `bytes` of it.
  void advance(std::size_t bytes);

  /// True when wait() would not wait.
  bool is_done() const;
  /// Waits until the file is on the disk under its name; all bytes have been given. Throws
  /// RuntimeFailure when the system refuses; then the old file is as before.
  void wait();

 private:
  /// Waits until `holds`; false when all is over before that.
  template <class Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Condition holds);
  /// room() of the author, whoever that is; empty when all is over.
  std::span<std::byte> room(std::unique_lock<std::mutex>& lock, std::uint64_t most,
                            std::size_t width);
  void move(std::uint64_t& counter, std::uint64_t bytes);
  /// From `at` to `end`, as far as the ring has it in one piece.
  std::span<std::byte> in_ring(std::uint64_t at, std::uint64_t end) const;
  void hash();
  void write();
  /// Ends the threads, unless the author has given all bytes.
  void abandon();
  /// Runs the body of a thread; what it throws ends the others.
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
  std::jthread hashing_, writing_;  // last: they use the others
};

}  // namespace fp8lab
