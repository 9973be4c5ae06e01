// A run file whose writer is killed at a write, before it or in its middle: the kernel then ends
// the write at a page boundary, so whatever lies across one is half old and half new.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>

#include "emulation/base/error.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "tests/child_process.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/run_log_examples.hpp"

namespace {

constexpr off_t kPage = 4096;
std::int64_t writes_to_go = -1;  ///< until the one at which the process is killed; < 0: it is not

}  // namespace

/// Stands in front of libc's, also for HDF5.
extern "C" ssize_t pwrite(int file, const void* bytes, std::size_t count, off_t offset) {
  using Write = ssize_t (*)(int, const void*, std::size_t, off_t);
  static const auto next = reinterpret_cast<Write>(::dlsym(RTLD_NEXT, "pwrite"));
  if (writes_to_go >= 0 && writes_to_go-- == 0) {
    const off_t within = kPage - offset % kPage;  // bytes up to the boundary
    if (static_cast<off_t>(count) > within) {
      next(file, bytes, static_cast<std::size_t>(within), offset);
    }
    ::raise(SIGKILL);
  }
  return next(file, bytes, count, offset);
}

using namespace fp8lab;

TEST_CASE("run log: a kill at any write, torn at a page boundary, costs no flushed row") {
  constexpr std::int64_t kSteps = 60, kStride = 61;
  std::int64_t write = 0;
  for (std::int64_t flushed = 0; flushed < kSteps; write += kStride) {
    const ScratchDirectory scratch;
    const auto path = scratch / "run.h5";
    flushed = 0;
    {
      ChildProcess writer([&](const ChildProcess::Channel& channel) {
        const auto log = RunLog::create(path, example_meta(), example_tensors());
        writes_to_go = write;
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          log->append(example_step(step));
          append_tensors(*log, step);
          log->flush();
          channel.send(step);
        }
        return 0;
      });
      for (std::int64_t step; (step = writer.channel().receive()) > 0;) flushed = step;
      writer.wait();
    }
    INFO("write " << write << ", flushed " << flushed);
    const std::int64_t found = read_run_status(path).last_step;
    REQUIRE(found >= flushed);
    const RunData run = read_run(path);
    REQUIRE(run.metrics.size() == static_cast<std::size_t>(found));
    REQUIRE(run.tensor_steps.size() >= static_cast<std::size_t>(flushed));
    { const auto log = RunLog::resume(path, flushed); }
    REQUIRE(read_run_status(path).last_step == flushed);
  }
  CHECK(write > 5 * kStride);  // a step is more than one write
}
