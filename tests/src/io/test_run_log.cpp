#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/io/hdf5/run_schema.hpp"
#include "src/io/hdf5/study_log.hpp"
#include "tests/child_process.hpp"
#include "tests/error_fields.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/run_log_examples.hpp"

using namespace fp8lab;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

bool same(const StepRecord& a, const StepRecord& b) {
  return a.step == b.step && a.stage == b.stage && a.tokens == b.tokens && a.loss == b.loss &&
         a.grad_norm == b.grad_norm && a.learning_rate == b.learning_rate &&
         a.seconds == b.seconds && a.weight_hash == b.weight_hash;
}

/// Steps 1..n in order, with the values of example_step.
void check_steps(const RunData& run, std::int64_t n) {
  REQUIRE(run.metrics.size() == static_cast<std::size_t>(n));
  for (std::int64_t step = 1; step <= n; ++step) {
    REQUIRE(same(run.metrics[static_cast<std::size_t>(step - 1)], example_step(step)));
  }
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no Error";
}

}  // namespace

TEST_CASE("run log: what objectives log has columns of its own, also after a resume") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  const std::vector<MetricColumn> columns = {{"advantage", "1", "mean of the step"},
                                             {"entropy", "nats/token", "of the policy"}};
  const auto row = [](std::int64_t step) {
    StepRecord record = example_step(step);
    record.objective = {0.25 * static_cast<double>(step), -static_cast<double>(step)};
    return record;
  };
  {
    const auto log = RunLog::create(path, example_meta(), {}, std::nullopt, columns);
    for (std::int64_t step = 1; step <= 4; ++step) log->append(row(step));
  }
  {
    const auto log = RunLog::resume(path, 3);
    log->append(row(4));
    log->append(row(5));
    log->complete(1);
  }
  const RunData run = read_run(path);
  CHECK(run.objective == columns);
  check_steps(run, 5);
  for (const StepRecord& record : run.metrics) {
    CHECK(record.objective == row(record.step).objective);
  }
  RunLog::close_killed(path, RunLog::lock(path));
  CHECK(read_run(path).objective == columns);

  // A run whose objectives log nothing has the layout of before.
  RunLog::create(scratch / "plain.h5", example_meta(), {})->append(example_step(1));
  CHECK(read_run(scratch / "plain.h5").objective.empty());
  CHECK(Hdf5File::open(scratch / "plain.h5").link_names("/metrics") ==
        std::vector<std::string>{"grad_norm", "learning_rate", "loss", "seconds", "stage", "step",
                                 "tokens"});
}

TEST_CASE("run log: every field survives a round trip") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "sub" / "run.h5";
  {
    const auto log = RunLog::create(path, example_meta(), example_tensors());
    write_example(*log);
    log->complete(0xfedcba9876543210ull);
  }
  const RunData run = read_run(path);
  check_steps(run, 20);
  const RunMeta expected = example_meta();
  CHECK(run.meta.run_name == expected.run_name);
  CHECK(run.meta.recipe_name == expected.recipe_name);
  CHECK(run.meta.recipe_text == expected.recipe_text);
  CHECK(run.meta.recipe_resolved == expected.recipe_resolved);
  CHECK(run.meta.recipe_hash == expected.recipe_hash);
  CHECK(run.meta.config_text == expected.config_text);
  CHECK(run.meta.config_hash == expected.config_hash);
  CHECK(run.meta.data_hash == expected.data_hash);
  CHECK(run.meta.initial_weights_hash == expected.initial_weights_hash);
  CHECK(run.meta.code_version == expected.code_version);
  CHECK(run.meta.backend == expected.backend);
  CHECK(run.meta.device == expected.device);
  CHECK(run.meta.math_profile == expected.math_profile);
  CHECK(run.meta.simd_target == expected.simd_target);
  CHECK(run.meta.seed == expected.seed);
  CHECK(run.meta.parameter_count == expected.parameter_count);
  CHECK(run.meta.optimizer_states == expected.optimizer_states);
  CHECK(run.meta.stage_names == expected.stage_names);
  CHECK(run.meta.extra == expected.extra);
  REQUIRE(run.tensors.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(run.tensors[i].layer == example_tensors()[i].layer);
    CHECK(run.tensors[i].slot == example_tensors()[i].slot);
    CHECK(run.tensors[i].format == example_tensors()[i].format);
    CHECK(run.tensors[i].scale_bits_per_element == example_tensors()[i].scale_bits_per_element);
  }
  REQUIRE(run.eval.size() == 2);
  CHECK(run.eval[0].exact_match == -1.0);
  CHECK(run.eval[1].step == 20);
  CHECK(run.eval[1].stage == 1);
  CHECK(run.eval[1].loss == 2.25);
  CHECK(run.eval[1].exact_match == 0.625);
  CHECK(run.eval[1].exact_match_count == 64);
  REQUIRE(run.scores.size() == 2);
  CHECK(run.scores[0].name == "loss/a.jsonl");
  CHECK(run.scores[0].value == 3.5);
  CHECK(run.scores[1].step == 20);
  CHECK(run.scores[1].stage == 1);
  CHECK(run.scores[1].name == "pass@4");
  CHECK(run.scores[1].count == 64);
  REQUIRE(run.documents.size() == 3);
  CHECK(run.documents[0].step == 10);
  CHECK(run.documents[0].stage == 0);
  CHECK_FALSE(run.documents[0].in_bf16);
  CHECK(run.documents[0].text == 0x3333333333333333ull);
  CHECK(run.documents[0].count == 2);
  CHECK(run.documents[1].source == 1);
  CHECK(run.documents[1].document == 5);
  CHECK(run.documents[1].tokens == 20);
  CHECK(run.documents[1].nats == 65.25);
  CHECK(run.documents[2].stage == 1);
  CHECK(run.documents[2].in_bf16);
  REQUIRE(run.warnings.size() == 2);
  CHECK(run.warnings[0].step == 10);
  CHECK(run.warnings[0].tensor == -1);
  CHECK(run.warnings[0].channel == -1);
  CHECK(run.warnings[0].count == 0);
  CHECK(run.warnings[1].detector == "amax_lag");
  CHECK(run.warnings[1].score == 1.25);
  CHECK(run.warnings[1].value == 5.0);
  CHECK(run.warnings[1].tensor == 2);
  CHECK(run.warnings[1].channel == 117);
  CHECK(run.warnings[1].count == 3);
  CHECK(run.tensor_steps == std::vector<std::int64_t>{10, 20});
  REQUIRE(run.events.size() == 2);
  CHECK(run.events[0].kind == "stress");
  CHECK(run.events[0].message == "outlier_channels: 4 channels, gain 64");
  CHECK(run.events[1].step == 15);
  CHECK(run.events[1].message == std::string(255, 'm'));  // cut before the two-byte character
  CHECK(run.complete);
  CHECK(run.final_weight_hash == 0xfedcba9876543210ull);
  const RunStatus status = read_run_status(path);
  CHECK(status.complete);
  CHECK(status.last_step == 20);
  CHECK(status.final_weight_hash == 0xfedcba9876543210ull);
  CHECK(status.meta.config_hash == expected.config_hash);
  CHECK(status.meta.identity == expected.identity);
  REQUIRE(status.checkpoints.size() == 2);
  CHECK(status.checkpoints[0].step == 10);
  CHECK(status.checkpoints[1].step == 20);
  CHECK(status.checkpoints[1].hash == 0x2222222222222222ull);
}

TEST_CASE("run log: statistics and samples survive a round trip") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  write_example(*RunLog::create(path, example_meta(), example_tensors()));
  const auto value = [](std::size_t row, std::size_t tensor, std::size_t member) {
    const OperandStatistics statistics =
        example_statistics(static_cast<std::int64_t>(row + 1) * 10, tensor);
    double result = 0.0;
    std::memcpy(&result, reinterpret_cast<const char*>(&statistics) + member * sizeof(double),
                sizeof result);
    return result;
  };
  const std::vector<std::string> scalars = {"amax",
                                            "rms",
                                            "mse",
                                            "sqnr_db",
                                            "cosine",
                                            "bias",
                                            "underflow_fraction",
                                            "saturation_fraction",
                                            "nonfinite_count",
                                            "kurtosis",
                                            "crest_factor",
                                            "channel_outlier_ratio",
                                            "scale_min",
                                            "scale_max",
                                            "scale_log2_spread",
                                            "zero_tile_fraction"};
  for (std::size_t member = 0; member < scalars.size(); ++member) {
    const std::vector<double> values = read_statistic(path, scalars[member]);
    REQUIRE(values.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(values[i] == value(i / 3, i % 3, member));
  }
  const std::vector<double> channels = read_statistic(path, "top_channel");
  const std::vector<double> amaxes = read_statistic(path, "top_channel_amax");
  const std::vector<double> histogram = read_statistic(path, "exponent_histogram");
  REQUIRE(channels.size() == 2 * 3 * 8);
  REQUIRE(amaxes.size() == 2 * 3 * 8);
  REQUIRE(histogram.size() == 2 * 3 * 64);
  for (std::size_t i = 0; i < channels.size(); ++i) {
    CHECK(channels[i] == value(i / 24, i / 8 % 3, 16 + i % 8));
    CHECK(amaxes[i] == value(i / 24, i / 8 % 3, 24 + i % 8));
  }
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    CHECK(histogram[i] == value(i / 192, i / 64 % 3, 32 + i % 64));
  }
  const std::vector<std::uint64_t> hashes = read_all<std::uint64_t>(
      Hdf5File::open(path), *(row_datasets(RowGroup::tensors, 3).end() - 2));
  REQUIRE(hashes.size() == 6);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    CHECK(hashes[i] == example_statistics(static_cast<std::int64_t>(i / 3 + 1) * 10, i % 3).hash);
  }
  CHECK(read_all<std::uint8_t>(Hdf5File::open(path), row_datasets(RowGroup::tensors, 3).back()) ==
        std::vector<std::uint8_t>{0, 1, 1, 0, 1, 0});
  check_fields(fields_thrown_by([&] { read_statistic(path, "colour"); }),
               {.noun = "unknown statistic", .key = "colour", .accepted = "amax, rms"});
  const std::vector<Sample> samples = read_samples(path);
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].step == 7);
  CHECK(samples[0].name == "layers.0.attention.qkv/fprop.x");
  CHECK(samples[0].values == std::vector<float>{1.0f, -0.0f, 3.5f});
  CHECK(samples[1].values.empty());
  CHECK(samples[2].values == std::vector<float>{std::numeric_limits<float>::infinity(), 2.0f});
}

TEST_CASE("run log: missing channels are -1 and no tensor at all is fine") {
  const ScratchDirectory scratch;
  {
    const auto log = RunLog::create(scratch / "a.h5", example_meta(), {example_tensors()[0]});
    OperandStatistics statistics = example_statistics(1, 0);
    statistics.top_channel[2] = -1.0;
    statistics.top_channel[3] = std::numeric_limits<double>::quiet_NaN();
    log->append_tensors(1, {statistics}, {0});
  }
  const std::vector<double> channels = read_statistic(scratch / "a.h5", "top_channel");
  CHECK(channels == std::vector<double>{100, 101, -1, -1, 104, 105, 106, 107});
  {
    const auto log = RunLog::create(scratch / "b.h5", RunMeta{}, {});
    log->append_tensors(3, {}, {});
    append_steps(*log, 1, 3);
  }
  { const auto log = RunLog::resume(scratch / "b.h5", 3); }
  const RunData run = read_run(scratch / "b.h5");
  CHECK(run.tensors.empty());
  CHECK(run.meta.stage_names.empty());
  CHECK(run.tensor_steps == std::vector<std::int64_t>{3});
  CHECK(read_statistic(scratch / "b.h5", "exponent_histogram").empty());
  check_steps(run, 3);
}

TEST_CASE("run log: another process sees what was flushed, and nothing else, while it grows") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  ChildProcess writer([&](const ChildProcess::Channel& channel) {
    const auto log = RunLog::create(path, example_meta(), example_tensors());
    for (std::int64_t last = channel.receive(), next = 1; last > 0; last = channel.receive()) {
      append_steps(*log, next, last);
      append_tensors(*log, last);
      log->flush();
      log->append(example_step(last + 1));  // not flushed
      next = last + 2;
      channel.send(last);
    }
    return 0;
  });
  writer.channel().send(5);
  REQUIRE(writer.channel().receive() == 5);
  check_steps(read_run(path), 5);
  CHECK_FALSE(read_run_status(path).complete);
  writer.channel().send(700);
  REQUIRE(writer.channel().receive() == 700);
  const RunData run = read_run(path);
  check_steps(run, 700);
  CHECK(run.tensor_steps == std::vector<std::int64_t>{5, 700});
  CHECK_THAT(error_of([&] { RunLog::resume(path, 5); }),
             Contains("run.h5: another process is writing this run"));
  writer.channel().send(0);
  CHECK(writer.wait() == 0);
  check_steps(read_run(path), 701);  // the destructor writes what was collected
}

TEST_CASE("run log: a file of before has no documents, is read and goes on with some") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  write_example(*RunLog::create(path, example_meta(), example_tensors()));
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE(H5Ldelete(file, "/documents", H5P_DEFAULT) >= 0);
  H5Fclose(file);
  CHECK(read_run(path).documents.empty());
  CHECK(read_run(path).scores.size() == 2);
  {
    const auto log = RunLog::resume(path, 20);
    log->append(DocumentRecord{21, 1, false, 1, 1, 0, 3, 10, 22.5});
  }
  const RunData run = read_run(path);
  check_steps(run, 20);
  REQUIRE(run.documents.size() == 1);
  CHECK(run.documents[0].document == 3);
}

TEST_CASE("run log: after kill -9 only rows since the last flush are lost, and it can go on") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  {
    ChildProcess writer([&](const ChildProcess::Channel& channel) {
      const auto log = RunLog::create(path, example_meta(), example_tensors());
      write_example(*log);
      append_steps(*log, 21, 25);  // never flushed
      channel.send(1);
      channel.receive();
      return 0;
    });
    REQUIRE(writer.channel().receive() == 1);
    writer.kill();
  }
  CHECK(read_run_status(path).last_step == 20);
  CHECK_FALSE(read_run_status(path).complete);
  check_steps(read_run(path), 20);
  CHECK_THAT(error_of([&] { RunLog::create(path, example_meta(), {}); }), Contains("exists"));
  CHECK_THAT(error_of([&] { RunLog::resume(path, 21); }),
             Contains("cannot continue after step 21: its metrics end at step 20"));
  CHECK_THAT(error_of([&] { RunLog::resume(path, 25, 5); }), Contains("cannot continue"));
  CHECK_THAT(error_of([&] { RunLog::resume(path, -1); }), Contains("cannot continue"));
  {
    const auto log = RunLog::resume(path, 15);
    append_steps(*log, 16, 30);
    log->complete(42);
  }
  const RunData run = read_run(path);
  check_steps(run, 30);
  CHECK(run.complete);
  REQUIRE(run.events.size() == 3);
  CHECK(run.events[1].kind == "nan");
  CHECK(run.events[2].step == 15);
  CHECK(run.events[2].kind == "resume");
  CHECK(run.eval.size() == 1);
  CHECK(run.scores.size() == 1);
  CHECK(run.warnings.size() == 1);
  CHECK(run.documents.size() == 2);
  CHECK(read_run_status(path).checkpoints.size() == 1);
  CHECK(run.tensor_steps == std::vector<std::int64_t>{10});
  const std::vector<Sample> samples = read_samples(path);
  REQUIRE(samples.size() == 2);
  CHECK(samples[0].values.size() == 3);
  CHECK(samples[1].step == 15);
  CHECK(run.meta.recipe_text == example_meta().recipe_text);
  // Neither lock nor construction site is left.
  CHECK(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("run log: a kill at any moment leaves a prefix with every flushed row") {
  const ScratchDirectory scratch;
  const int delay = GENERATE(0, 1, 2, 5, 11, 23);
  const fs::path path = scratch / "run.h5";
  std::int64_t flushed = 0;
  {
    ChildProcess writer([&](const ChildProcess::Channel& channel) {
      const auto log = RunLog::create(path, example_meta(), example_tensors());
      for (std::int64_t step = 1;; ++step) {
        log->append(example_step(step));
        append_tensors(*log, step);
        log->flush();
        if (!channel.send(step)) return 0;
      }
    });
    flushed = writer.channel().receive();
    ::usleep(static_cast<useconds_t>(delay * 700));
    writer.kill();
    for (std::int64_t step = flushed; step > 0; step = writer.channel().receive()) flushed = step;
  }
  const RunData run = read_run(path);
  const std::int64_t last = read_run_status(path).last_step;
  INFO("flushed " << flushed << " found " << last);
  CHECK(last >= flushed);
  CHECK(last <= flushed + 1);
  check_steps(run, last);
  REQUIRE(run.tensor_steps.size() >= static_cast<std::size_t>(flushed));
  CHECK(read_statistic(path, "rms").front() == example_statistics(1, 0).rms);
  { const auto log = RunLog::resume(path, flushed); }
  check_steps(read_run(path), flushed);
  CHECK(read_run(path).tensor_steps.size() == static_cast<std::size_t>(flushed));
}

TEST_CASE("run log: a second writer is refused, in this process and in another") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  const auto log = RunLog::create(path, example_meta(), example_tensors());
  const std::string refusal = path.string() + ": another process is writing this run";
  CHECK(error_of([&] { RunLog::create(path, example_meta(), {}); }) == refusal);
  CHECK(error_of([&] { RunLog::resume(path, 0); }) == refusal);
  ChildProcess other([&](const ChildProcess::Channel&) {
    return error_of([&] { RunLog::resume(path, 0); }) == refusal ? 7 : 8;
  });
  CHECK(other.wait() == 7);
  append_steps(*log, 1, 2);
  CHECK_NOTHROW(log->flush());
}

TEST_CASE("run log: a step between two logged ones can be resumed") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  {
    const auto log = RunLog::create(path, example_meta(), {});
    log->append(example_step(10));
    log->append(example_step(20));
  }
  CHECK_THAT(error_of([&] { RunLog::resume(path, 25); }), Contains("cannot continue"));
  { const auto log = RunLog::resume(path, 25, 10); }
  CHECK(read_run_status(path).last_step == 20);
  { const auto log = RunLog::resume(path, 0); }
  CHECK(read_run_status(path).last_step == 0);
}

TEST_CASE("run log: what is not a run file is refused and left alone") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "file";
  const auto refusal = [&] {
    const std::string reading = error_of([&] { read_run_status(path); });
    CHECK(error_of([&] { RunLog::resume(path, 0); }) == reading);
    CHECK(error_of([&] { read_run(path); }) == reading);
    return reading;
  };
  CHECK_THAT(error_of([&] { read_run_status(path); }), Contains("No such file"));
  CHECK_THAT(error_of([&] { RunLog::resume(path, 0); }), Contains("no such run file"));
  for (const std::string& bytes : {std::string(), std::string("hello"), std::string(5000, 'x')}) {
    write_file_atomically(path, bytes);
    CHECK_THAT(refusal(), Contains("file: not an HDF5 file"));
    CHECK(read_file(path) == bytes);
  }
  write_study(path, StudyTable{});
  CHECK_THAT(refusal(), Contains("schema 'fp8lab-study-2', accepted 'fp8lab-run-1' to 2"));
  { RunLog::create(scratch / "run.h5", example_meta(), example_tensors()); }
  const std::string whole = read_file(scratch / "run.h5");
  // The end of file address of the superblock (version 2 or 3): padding may follow it.
  std::uint64_t end = 0;
  std::memcpy(&end, whole.data() + 28, sizeof(end));
  REQUIRE(end <= whole.size());
  for (const std::uint64_t size : {end - 1, end / 2, std::uint64_t{100}}) {
    INFO(size << " of " << end << " bytes, file of " << whole.size());
    write_file_atomically(path, whole.substr(0, size));
    CHECK(refusal() != "no Error");
  }
  CHECK_THAT(error_of([&] { read_run_status(scratch.path()); }), Contains("is a directory"));
}

namespace {

/// No file of this process may grow beyond `bytes`: what a full disk looks like to a writer.
void limit_file_size(std::uintmax_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

template <class Call>
std::string failure_of(Call call) {
  try {
    call();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "no RuntimeFailure";
}

}  // namespace

TEST_CASE("run log: a full disk is a RuntimeFailure and loses no row that was flushed") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  const auto room = GENERATE(0u, 2000u, 100'000u, 4'000'000u);
  ChildProcess writer([&](const ChildProcess::Channel&) {
    auto log = RunLog::create(path, example_meta(), example_tensors());
    append_steps(*log, 1, 5);
    log->flush();
    limit_file_size(fs::file_size(path) + room);
    std::vector<float> noise(1'000'000);
    for (std::size_t i = 0; i < noise.size(); ++i) {
      noise[i] = static_cast<float>(i * 2654435761u % 1000003);
    }
    append_steps(*log, 6, 7);
    log->append_sample(5, "large", noise);
    const std::string expected = path.string() + ": cannot grow by ";
    if (failure_of([&] { log->flush(); }).find(expected) != 0) return 1;
    if (failure_of([&] { log->complete(1); }).find(expected) != 0) return 2;
    log.reset();
    std::exit(0);  // with exit handlers, as a program ends
    return 4;
  });
  CHECK(writer.wait() == 0);
  check_steps(read_run(path), 5);
  CHECK(read_samples(path).empty());
  { const auto log = RunLog::resume(path, 5); }
  CHECK(read_run(path).events.size() == 1);
}

TEST_CASE("run log: writing goes on when the disk has room again") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  ChildProcess writer([&](const ChildProcess::Channel&) {
    const auto log = RunLog::create(path, example_meta(), example_tensors());
    append_steps(*log, 1, 5);
    limit_file_size(fs::file_size(path) + 1000);
    if (failure_of([&] { log->flush(); }) == "no RuntimeFailure") return 1;
    limit_file_size(RLIM_INFINITY);
    append_steps(*log, 6, 10);
    log->complete(3);
    return 0;
  });
  CHECK(writer.wait() == 0);
  check_steps(read_run(path), 10);
  CHECK(read_run_status(path).complete);
}

TEST_CASE("run log: a disk too full to create or resume changes nothing") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  const auto room = GENERATE(0u, 500u, 3000u, 30'000u, 100'000u);
  const auto refused = [&](auto call) {
    ChildProcess child([&](const ChildProcess::Channel&) {
      limit_file_size(room);
      std::exit(failure_of(call).find(path.string()) == 0 ? 0 : 1);
      return 2;
    });
    return child.wait() == 0;
  };
  CHECK(refused([&] { RunLog::create(path, example_meta(), example_tensors()); }));
  CHECK(fs::is_empty(scratch.path()));
  write_example(*RunLog::create(path, example_meta(), example_tensors()));
  const std::string before = read_file(path);
  CHECK(refused([&] { RunLog::resume(path, 20); }));
  CHECK(read_file(path) == before);
  CHECK(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("run log: texts that HDF5 cannot hold are refused before a file appears") {
  const ScratchDirectory scratch;
  RunMeta meta = example_meta();
  meta.device = std::string("a\0b", 3);
  CHECK_THAT(error_of([&] { RunLog::create(scratch / "run.h5", meta, {}); }), Contains("NUL"));
  CHECK(fs::is_empty(scratch.path()));
}

TEST_CASE("study log: bad tables are refused and the old file stays") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "study.h5";
  StudyTable table;
  table.arms.resize(2);
  const auto refusal = [&] { return error_of([&] { write_study(path, table); }); };
  CHECK_THAT(refusal(), Contains("study arm name ''"));
  for (ArmRecord& arm : table.arms) arm.name = "a/b";
  CHECK_THAT(refusal(), Contains("study arm name 'a/b'"));
  table.arms[0].name = "a";
  table.arms[1].name = "a";
  CHECK_THAT(refusal(), Contains("study arm 'a' has no run file"));
  for (ArmRecord& arm : table.arms) arm.run_file = "a/run.h5";
  CHECK_THAT(refusal(), Contains("study arm 'a' is listed twice"));
  table.arms[1].name = "b";
  const std::string pairing = "accepted: an arm that is no baseline with one that is";
  table.arms[1].baseline_arm = "none";
  CHECK_THAT(refusal(), Contains("study arm 'b' is paired with 'none'; " + pairing));
  table.arms[1].baseline_arm = "a";
  CHECK_THAT(refusal(), Contains("'b' is paired with 'a'"));
  table.arms[0].is_baseline = true;
  table.arms[1].is_baseline = true;
  CHECK_THAT(refusal(), Contains("'b' is paired with 'a'"));
  CHECK(fs::is_empty(scratch.path()));
  table.arms[1].is_baseline = false;
  write_study(path, table);
  CHECK(read_study_links(path).size() == 2);
}

TEST_CASE("run and study files have the layout that README.md documents, as h5py sees it") {
  const ScratchDirectory scratch;
  const std::string python = "/usr/bin/python3";
  if (std::system((python + " -c 'import h5py' 2>/dev/null").c_str()) != 0) {
    WARN("skipped: no " << python << " with h5py");
    return;
  }
  write_example(*RunLog::create(scratch / "a" / "run.h5", example_meta(), example_tensors()));
  StudyTable table;
  table.arms.resize(1);
  table.arms[0].name = "a";
  table.arms[0].run_file = "a/run.h5";
  table.arms[0].config_hash = "0123456789abcdef";
  table.arms[0].axes = {{"seed", "1"}, {"stages.*.recipe", "\"bf16\""}};
  CHECK_FALSE(read_stated_design(scratch / "study.h5").has_value());
  table.design = StatedDesign{{0.01, 0.04, 0.8, 3}, "2026-01-02T03:04:05Z", 2};
  write_study(scratch / "study.h5", table);
  const std::optional<StatedDesign> read = read_stated_design(scratch / "study.h5");
  REQUIRE(read.has_value());
  CHECK(read->design == table.design->design);
  CHECK(read->stated == table.design->stated);
  CHECK(read->arms_begun == 2);
  const std::string tests = FP8LAB_TEST_DATA;
  const std::string check =
      python + " " + tests + "/python/check_run_layout.py " + tests + "/../src/io/README.md ";
  CHECK(std::system(
            (check + (scratch / "a" / "run.h5").string() + " " + (scratch / "study.h5").string())
                .c_str()) == 0);
}
