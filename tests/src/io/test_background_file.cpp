// Files that are hashed and written by threads of their own.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/background_file.hpp"
#include "src/io/files/page_memory.hpp"
#include "src/io/hash.hpp"
#include "tests/child_process.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;

namespace {

constexpr std::size_t kPiece = BackgroundFile::kPiece;

/// Sections of numbers that follow from their place.
std::vector<std::string> sections_of(const std::vector<std::size_t>& sizes) {
  std::vector<std::string> sections;
  std::uint32_t state = 1;
  for (const std::size_t size : sizes) {
    std::string& bytes = sections.emplace_back(size, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  }
  return sections;
}

std::vector<std::uint64_t> ends_of(const std::vector<std::string>& sections) {
  std::vector<std::uint64_t> ends;
  for (const std::string& section : sections) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + section.size());
  }
  return ends;
}

void give(BackgroundFile& file, const std::string& bytes, std::size_t width) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::span<std::byte> room = file.room(bytes.size() - at, width);
    REQUIRE(!room.empty());
    REQUIRE(room.size() % width == 0);
    REQUIRE(room.size() <= bytes.size() - at);
    std::memcpy(room.data(), bytes.data() + at, room.size());
    file.advance(room.size());
    at += room.size();
  }
}

std::string hashes_text(const std::vector<std::uint64_t>& hashes) {
  std::string text;
  for (const std::uint64_t hash : hashes) text += hex16(hash);
  return text;
}

std::ptrdiff_t entries(const ScratchDirectory& scratch) {
  return std::distance(std::filesystem::directory_iterator(scratch.path()),
                       std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("a file has its author's bytes and the hashes of its sections, through any ring") {
  const ScratchDirectory scratch;
  const std::vector<std::size_t> sizes = {72, 0, 3 * kPiece, 40, kPiece - 112, 2 * kPiece + 24, 8};
  const std::vector<std::string> sections = sections_of(sizes);
  std::string expected;
  std::vector<std::uint64_t> hashes;
  for (const std::string& section : sections) {
    expected += section;
    hashes.push_back(xxh3(section));
  }
  expected += hashes_text(hashes);
  for (const std::size_t pieces : {1, 2, 3, 8}) {
    INFO(pieces);
    const PageMemory ring(pieces * kPiece);
    BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 16 * sizes.size(),
                        hashes_text);
    for (const std::string& section : sections) give(file, section, 8);
    file.wait();
    CHECK(file.is_done());
    CHECK((read_file(scratch / "a") == expected));
  }
  CHECK(entries(scratch) == 1);
}

TEST_CASE("elements are not cut where the ring ends, nor odd sections lost") {
  const ScratchDirectory scratch;
  const std::vector<std::string> sections = sections_of({4 * kPiece, 2 * kPiece + 2, 5, 12289});
  const PageMemory ring(2 * kPiece);
  BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 64, hashes_text);
  give(file, sections[0], 4);
  give(file, sections[1], 2);
  give(file, sections[2], 1);
  give(file, sections[3], 1);
  file.wait();
  std::string expected;
  for (const std::string& section : sections) expected += section;
  for (const std::string& section : sections) expected += hex16(xxh3(section));
  CHECK((read_file(scratch / "a") == expected));
}

TEST_CASE("the author of a file that fits into the ring is through before it is written") {
  const ScratchDirectory scratch;
  const std::vector<std::string> sections = sections_of({3 * kPiece});
  const PageMemory ring(4 * kPiece);
  write_file_atomically(scratch / "a", "old");
  bool finish = false;
  std::mutex mutex;
  std::condition_variable changed;
  BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 3,
                      [&](const std::vector<std::uint64_t>&) {
                        std::unique_lock lock(mutex);
                        changed.wait(lock, [&] { return finish; });
                        return std::string("end");
                      });
  give(file, sections[0], 8);  // would hang if it needed the end of the file
  CHECK_FALSE(file.is_done());
  CHECK(read_file(scratch / "a") == "old");
  {
    const std::lock_guard lock(mutex);
    finish = true;
    changed.notify_all();
  }
  file.wait();
  CHECK((read_file(scratch / "a") == sections[0] + "end"));
}

TEST_CASE("a file that its author gives up leaves the old one and nothing else") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  const std::vector<std::string> sections = sections_of({2 * kPiece, 100});
  const PageMemory ring(kPiece);
  {
    BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 16, hashes_text);
    give(file, sections[0], 8);
  }
  CHECK(read_file(scratch / "a") == "old");
  CHECK(entries(scratch) == 1);
}

TEST_CASE("a file that is let go when all is given is written nevertheless") {
  const ScratchDirectory scratch;
  const std::vector<std::string> sections = sections_of({2 * kPiece});
  const PageMemory ring(kPiece);
  {
    BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 16, hashes_text);
    give(file, sections[0], 8);
  }
  CHECK(read_file(scratch / "a").size() == 2 * kPiece + 16);
}

TEST_CASE("what keeps a file from the disk is thrown to its author") {
  const ScratchDirectory scratch;
  const std::vector<std::string> sections = sections_of({4 * kPiece});
  const PageMemory small(kPiece), large(4 * kPiece);
  SECTION("no such directory") {
    BackgroundFile file(scratch / "no" / "a", large.bytes(), ends_of(sections), 16, hashes_text);
    CHECK_THROWS_AS((give(file, sections[0], 8), file.wait()), RuntimeFailure);
  }
  SECTION("a disk that is full, in the middle and at the end") {
    write_file_atomically(scratch / "a", "old");
    for (const auto& [ring, limit] : {std::pair{&small, kPiece + 5000}, {&large, 4 * kPiece + 4}}) {
      ChildProcess child([&, ring = ring, limit = limit](const ChildProcess::Channel&) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit bytes{limit, limit};
        ::setrlimit(RLIMIT_FSIZE, &bytes);
        BackgroundFile file(scratch / "a", ring->bytes(), ends_of(sections), 16, hashes_text);
        try {
          give(file, sections[0], 8);
          file.wait();
        } catch (const RuntimeFailure& failure) {
          const std::string message = failure.what();
          const bool is_again = file.is_done();
          return message.find((scratch / "a").string() + ": cannot write: ") == 0 && is_again ? 0
                                                                                              : 2;
        }
        return 1;
      });
      CHECK(child.wait() == 0);
      CHECK(read_file(scratch / "a") == "old");
      CHECK(entries(scratch) == 1);
    }
  }
}

TEST_CASE("a process killed while its file is written leaves the old one") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  ChildProcess child([&](const ChildProcess::Channel& channel) {
    const std::vector<std::string> sections = sections_of({4 * kPiece});
    const PageMemory ring(kPiece);
    BackgroundFile file(scratch / "a", ring.bytes(), ends_of(sections), 16, hashes_text);
    give(file, sections[0].substr(0, 3 * kPiece), 8);
    channel.send(1);
    return static_cast<int>(channel.receive());  // never
  });
  REQUIRE(child.channel().receive() == 1);
  child.kill();
  CHECK(read_file(scratch / "a") == "old");
  REQUIRE(temporaries(scratch / "a").size() == 1);
  CHECK(std::filesystem::file_size(temporaries(scratch / "a").front()) >= 2 * kPiece);
  remove_temporaries(scratch / "a");
  CHECK(entries(scratch) == 1);
}

TEST_CASE("without room for a second thread there is no file, and the first one ends") {
  const ScratchDirectory scratch;
  ChildProcess child([&](const ChildProcess::Channel&) {
    const PageMemory ring(kPiece);
    ::alarm(30);  // ends a child that hangs
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const std::size_t mapped = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    pthread_attr_t attributes;
    std::size_t stack = 0;
    if (::pthread_getattr_default_np(&attributes) != 0) return 1;
    ::pthread_attr_getstacksize(&attributes, &stack);
    const rlimit limit{mapped + stack * 3 / 2, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    // As many threads as there are, and then one less.
    std::vector<std::jthread> threads;
    try {
      for (;;) {
        threads.emplace_back([](const std::stop_token& stop) {
          while (!stop.stop_requested()) std::this_thread::yield();
        });
      }
    } catch (const std::system_error&) {
      threads.pop_back();
    }
    try {
      const BackgroundFile file(scratch / "file", ring.bytes(), {10}, 0,
                                [](const auto&) { return std::string(); });
    } catch (const std::system_error&) {
      return 0;
    }
    return 3;
  });
  CHECK(child.wait() == 0);
}
