#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/hash.hpp"
#include "src/io/sha256.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;
namespace fs = std::filesystem;

namespace {

std::ptrdiff_t count_entries(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

/// Runs `work` in a child process and returns its exit status, 99 for an exception.
template <class Work>
int in_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = work();
    } catch (...) {
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("atomic file: writes, replaces and reads back any bytes") {
  const ScratchDirectory scratch;
  const std::string bytes("\0\xff line\n\r\n", 10);
  write_file_atomically(scratch / "a", bytes);
  CHECK(read_file(scratch / "a") == bytes);
  write_file_atomically(scratch / "a", "");
  CHECK(read_file(scratch / "a").empty());
  const std::string large(3'000'001, 'x');
  write_file_atomically(scratch / "a", large);
  CHECK(read_file(scratch / "a") == large);
  CHECK(count_entries(scratch.path()) == 1);
}

TEST_CASE("atomic file: reads files whose size the system does not know") {
  CHECK_FALSE(read_file("/proc/self/status").empty());
}

TEST_CASE("atomic file: bad paths") {
  const ScratchDirectory scratch;
  CHECK_THROWS_AS(read_file(scratch / "missing"), Error);
  CHECK_THROWS_AS(read_file(scratch.path()), Error);
  CHECK_THROWS_AS(write_file_atomically(scratch.path(), "x"), Error);
  CHECK_THROWS_AS(write_file_atomically(scratch / "no" / "such" / "file", "x"), RuntimeFailure);
  CHECK(count_entries(scratch.path()) == 0);
}

TEST_CASE("atomic file: directories") {
  const ScratchDirectory scratch;
  make_directories(scratch / "a" / "b");
  make_directories(scratch / "a" / "b");
  make_directories("");
  CHECK(fs::is_directory(scratch / "a" / "b"));
  write_file_atomically(scratch / "file", "x");
  CHECK_THROWS_AS(make_directories(scratch / "file"), Error);
  CHECK_THROWS_AS(make_directories(scratch / "file" / "below"), Error);
}

TEST_CASE("atomic file: a write that fails leaves the old file and nothing else") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(scratch / "a", std::string(5000, 'n'));
    } catch (const RuntimeFailure& failure) {
      const std::string message = failure.what();
      return message.find((scratch / "a").string() + ": cannot write: ") == 0 ? 0 : 2;
    }
    return 1;
  });
  CHECK(status == 0);
  CHECK(read_file(scratch / "a") == "old");
  CHECK(count_entries(scratch.path()) == 1);
}

TEST_CASE("file lock: one holder, gone with the holder") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  {
    const auto lock = FileLock::try_acquire(path);
    REQUIRE(lock);
    CHECK_FALSE(FileLock::try_acquire(path));
    CHECK(in_child([&] { return FileLock::try_acquire(path) ? 1 : 0; }) == 0);
  }
  CHECK(count_entries(scratch.path()) == 0);
  CHECK(FileLock::try_acquire(path));
}

TEST_CASE("file lock: a killed holder leaves no lock") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  CHECK(in_child([&] {
          const auto lock = FileLock::try_acquire(path);
          ::raise(SIGKILL);
          return 0;
        }) == -1);
  CHECK(fs::exists(scratch / "run.h5.lock"));
  CHECK(FileLock::try_acquire(path));
}

TEST_CASE("file lock: says who holds it") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  CHECK(FileLock::owner(path).empty());
  const auto lock = FileLock::try_acquire(path);
  REQUIRE(lock);
  const std::string owner = FileLock::owner(path);
  INFO(owner);
  CHECK(owner.find("process " + std::to_string(::getpid()) + " on ") == 0);
  CHECK(owner.find(" UTC: ") != std::string::npos);
  CHECK(owner.find("test_atomic_file") != std::string::npos);
}

TEST_CASE("file lock: shared by many or held by one") {
  using Mode = FileLock::Mode;
  const ScratchDirectory scratch;
  const fs::path path = scratch / "study";
  {
    std::optional<FileLock> first = FileLock::try_acquire(path, Mode::shared);
    {
      const auto second = FileLock::try_acquire(path, Mode::shared);
      REQUIRE((first && second));
      CHECK_FALSE(FileLock::try_acquire(path));
    }
    CHECK(fs::exists(scratch / "study.lock"));
    CHECK_FALSE(FileLock::try_acquire(path));
    CHECK(FileLock::owner(path).empty());
  }
  CHECK(count_entries(scratch.path()) == 0);
  const auto lock = FileLock::try_acquire(path);
  REQUIRE(lock);
  CHECK_FALSE(FileLock::try_acquire(path, Mode::shared));
}

TEST_CASE("file lock: a child that inherits it holds it beyond the end of its parent") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "arm";
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  CHECK(in_child([&] {
          const auto lock = FileLock::try_acquire(path);
          if (::fork() == 0) {  // holds it until the pipe is closed
            char byte = 0;
            ::close(pipe[1]);
            ::_exit(static_cast<int>(::read(pipe[0], &byte, 1)));
          }
          ::raise(SIGKILL);
          return 0;
        }) == -1);
  CHECK_FALSE(FileLock::try_acquire(path));
  ::close(pipe[1]);
  ::close(pipe[0]);
  std::optional<FileLock> lock;
  for (int i = 0; i < 200 && !lock; ++i) {
    ::usleep(10'000);
    if (auto taken = FileLock::try_acquire(path)) lock.emplace(std::move(*taken));
  }
  CHECK(lock);
}

TEST_CASE("sha256 gives the digests of FIPS 180-4 and of every length of padding") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string chained;
  for (std::size_t size = 0; size < 130; ++size) chained += sha256(std::string(size, 'x'));
  CHECK(sha256(chained) == "199af942eba7fa5d1e16d475169eb24018b14e69339c93d26a9ea6d873b4ace6");
}

TEST_CASE("hash: published XXH3-64 values, streaming, hexadecimal digits") {
  CHECK(xxh3(nullptr, 0) == 0x2D06800538D394C2ull);
  CHECK(hex16(xxh3("")) == "2d06800538d394c2");
  CHECK(hex16(0x1f) == "000000000000001f");
  std::string bytes(100'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  Xxh3Stream stream;
  for (std::size_t begin = 0, size = 1; begin < bytes.size();
       begin += size, size = size * 3 % 977) {
    stream.update(bytes.data() + begin, std::min(size, bytes.size() - begin));
  }
  CHECK(stream.digest() == xxh3(bytes));
  stream.update("x");
  CHECK(stream.digest() == xxh3(bytes + "x"));
}
