// Checks the files of runs against their checksums and repairs what interrupted processes left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fp8lab {

enum class Health : std::uint8_t {
  whole,     ///< every checksum holds
  busy,      ///< a process is writing it; left alone
  repaired,  ///< changed by this examination; no step was lost
  fixable,   ///< would have been changed, had repairs been allowed
  damaged,   ///< `text` says what is wrong and the way on
};

/// Finding about one file.
struct Finding {
  std::filesystem::path file;
  Health health = Health::whole;
  std::string text;
};

/// Examines the run in `directory`, or the study there and every run in its folders. Reads every
/// row and every tensor to compare checksums, and checks that run files, checkpoints and the links
/// of a study match. Finds partly written models of killed processes in `directory`, and beside it
/// if `directory` was to be such a model. With `repair` it removes these remains and rewrites a run
/// file that its writer could not close, which other programs can open only as SWMR readers. Throws
/// Error if there is nothing to examine.
std::vector<Finding> examine(const std::filesystem::path& directory, bool repair);

}  // namespace fp8lab
