#include "src/validate/golden.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/validate/golden_conversions.hpp"
#include "src/validate/golden_file.hpp"

namespace fp8lab {
namespace {

constexpr std::uint64_t kHashChunks = 256;

// Counts the results of one file and reports the first difference.
class Tally {
 public:
  Tally(std::string file, const GoldenOptions& options) : options_(options) {
    report_.file = std::move(file);
  }

  // Calls `where` only for the first mismatch.
  template <class Where>
  void check(std::uint64_t expected, std::uint64_t actual, Where&& where) {
    ++report_.cases;
    if (expected == actual) return;
    if (report_.mismatches++ == 0 && options_.first_mismatch) {
      options_.first_mismatch({report_.file, where(), expected, actual});
    }
  }

  void skip(std::uint64_t results) { report_.unchecked += results; }

  void progress(double fraction) const {
    if (options_.progress) options_.progress(report_.file, fraction);
  }

  std::function<void(double)> progress_function() const {
    return [this](double fraction) { progress(fraction); };
  }

  const GoldenReport& report() const { return report_; }

 private:
  const GoldenOptions& options_;
  GoldenReport report_;
};

std::string conversion_place(int conversion, std::uint64_t input) {
  return "conversion " + std::to_string(conversion) + ", input " + std::to_string(input);
}

// Returns the seed, which the check of conv_hash.bin needs.
std::uint32_t check_samples(const std::filesystem::path& path, Tally& tally) {
  GoldenReader reader(path);
  reader.expect_magic("CONV");
  const auto conversions = reader.read<std::uint32_t>();
  const auto count = reader.read<std::uint32_t>();
  const auto seed = reader.read<std::uint32_t>();
  const auto inputs = reader.read_many<std::uint32_t>(count);
  for (std::uint32_t c = 0; c < conversions; ++c) {
    const auto outputs = reader.read_many<std::uint16_t>(count);
    if (c >= kGoldenConversions) {
      tally.skip(count);
      continue;
    }
    const int index = static_cast<int>(c);
    for (std::uint32_t i = 0; i < count; ++i) {
      tally.check(outputs[i], golden_convert(index, inputs[i]),
                  [&] { return conversion_place(index, inputs[i]); });
    }
  }
  if (!reader.at_end()) reader.fail("data after the last conversion");
  return seed;
}

struct HashJob {
  int conversion = 0;
  std::uint32_t chunk = 0;
};

// Returns the hash of every (conversion, chunk); computes conversions that
// are the same function once.
std::vector<std::uint64_t> compute_hashes(std::uint32_t seed, int threads, const Tally& tally) {
  std::vector<std::uint64_t> hashes(kGoldenConversions * kHashChunks);
  std::vector<HashJob> jobs;
  for (int c = 0; c < kGoldenConversions; ++c) {
    if (golden_conversion_alias(c) != c) continue;
    for (std::uint32_t chunk = 0; chunk < kHashChunks; ++chunk) jobs.push_back({c, chunk});
  }
  std::atomic<std::size_t> next = 0;
  std::size_t done = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t j = next++; j < jobs.size(); j = next++) {
      const auto [conversion, chunk] = jobs[j];
      hashes[static_cast<std::size_t>(conversion) * kHashChunks + chunk] =
          golden_conversion_hash(conversion, chunk, seed);
      const std::lock_guard lock(mutex);
      tally.progress(static_cast<double>(++done) / static_cast<double>(jobs.size()));
    }
  };
  const int workers = threads > 0 ? threads : default_threads();
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < workers; ++i) pool.emplace_back(work);
  }
  for (int c = 0; c < kGoldenConversions; ++c) {
    const auto from = static_cast<std::size_t>(golden_conversion_alias(c)) * kHashChunks;
    const auto to = static_cast<std::size_t>(c) * kHashChunks;
    for (std::size_t i = 0; i < kHashChunks; ++i) hashes[to + i] = hashes[from + i];
  }
  return hashes;
}

void check_hashes(const std::filesystem::path& path, std::optional<std::uint32_t> seed, int threads,
                  Tally& tally) {
  GoldenReader reader(path);
  const auto recorded = reader.read_many<std::uint64_t>(kGoldenConversions * kHashChunks);
  if (!reader.at_end()) reader.fail("data after the last hash");
  if (!seed.has_value()) {  // only conv_sample.bin contains the seed
    tally.skip(recorded.size());
    return;
  }
  const std::vector<std::uint64_t> hashes = compute_hashes(*seed, threads, tally);
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    tally.check(recorded[i], hashes[i], [&] {
      return "conversion " + std::to_string(i / kHashChunks) + ", chunk " +
             std::to_string(i % kHashChunks);
    });
  }
}

void check_tables(const std::filesystem::path& path, Tally& tally) {
  GoldenReader reader(path);
  const auto place = [](int table, std::uint32_t input) {
    return "table " + std::to_string(table) + ", input " + std::to_string(input);
  };
  for (int t = 0; t < kGoldenByteTables; ++t) {
    const auto recorded = reader.read_many<std::uint8_t>(65536);
    for (std::uint32_t x = 0; x < 65536; ++x) {
      tally.check(recorded[x], golden_byte_table(t, x), [&] { return place(t, x); });
    }
  }
  for (int t = 0; t < kGoldenHalfTables; ++t) {
    const auto recorded = reader.read_many<std::uint16_t>(256);
    for (std::uint32_t x = 0; x < 256; ++x) {
      tally.check(recorded[x], golden_half_table(t, x),
                  [&] { return place(kGoldenByteTables + t, x); });
    }
  }
  if (!reader.at_end()) reader.fail("data after the last table");
}

void check_mma(const std::filesystem::path& path, Tally& tally) {
  const auto visit = [&](const MmaRecord& record) {
    const MmaModel model = mma_model(record);
    for (std::size_t t = 0; t < record.tiles.size(); ++t) {
      const MmaTile& tile = record.tiles[t];
      if (!model.known) {
        tally.skip(tile.d.size());
        continue;
      }
      for (std::size_t i = 0; i < tile.d.size(); ++i) {
        const std::uint32_t actual = mma_element(model, record, tile.a.data() + i / 8 * record.k,
                                                 tile.b.data() + i % 8 * record.k, tile.c[i]);
        tally.check(tile.d[i], actual, [&] {
          return record.name + ", tile " + std::to_string(t) + ", row " + std::to_string(i / 8) +
                 ", column " + std::to_string(i % 8);
        });
      }
    }
  };
  read_mma_records(path, visit, tally.progress_function());
}

void check_gemm(const std::filesystem::path& path, Tally& tally) {
  std::size_t index = 0;
  const auto visit = [&](const GemmRecord& record) {
    const GemmModel model = gemm_model(record);
    const std::size_t columns = record.cols.size();
    if (!model.known) tally.skip(record.d.size());
    for (std::size_t i = 0; model.known && i < record.d.size(); ++i) {
      const std::size_t r = i / columns;
      const std::size_t c = i % columns;
      tally.check(record.d[i], gemm_element(model, record, r, c), [&] {
        return "record " + std::to_string(index) + " (M " + std::to_string(record.m) + ", N " +
               std::to_string(record.n) + ", K " + std::to_string(record.k) + "), row " +
               std::to_string(record.rows[r]) + ", column " + std::to_string(record.cols[c]);
      });
    }
    ++index;
  };
  read_gemm_records(path, visit, tally.progress_function());
}

}  // namespace

std::vector<GoldenReport> validate_golden(const std::filesystem::path& directory,
                                          const GoldenOptions& options) {
  std::vector<GoldenReport> reports;
  std::optional<std::uint32_t> seed;
  bool found = false;
  const auto replay = [&](const char* file, auto&& check) {
    const std::filesystem::path path = directory / file;
    if (!is_file(path)) return;
    found = true;
    Tally tally(file, options);
    check(path, tally);
    tally.progress(1.0);
    reports.push_back(tally.report());
  };
  replay("conv_sample.bin", [&](const auto& path, Tally& t) { seed = check_samples(path, t); });
  if (options.conversion_hashes) {
    replay("conv_hash.bin",
           [&](const auto& path, Tally& t) { check_hashes(path, seed, options.threads, t); });
  }
  replay("conv_tab.bin", check_tables);
  replay("mma.bin", check_mma);
  replay("gemm.bin", check_gemm);
  replay("gemm_edge.bin", check_gemm);
  if (!found) {
    throw InputError({.where = directory.string(),
                      .reason = "no recorded vectors",
                      .accepted = "at least one of conv_sample.bin, conv_hash.bin, conv_tab.bin, "
                                  "mma.bin, gemm.bin, gemm_edge.bin"});
  }
  return reports;
}

}  // namespace fp8lab
