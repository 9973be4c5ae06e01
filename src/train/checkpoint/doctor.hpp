// Whether the files of runs are what was written, and what can be done if they are not.
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

/// What was found of one file.
struct Finding {
  std::filesystem::path file;
  Health health = Health::whole;
  std::string text;
};

/// Examines the run in `directory`, or the study there and every run in its folders: reads every
/// row and every tensor, so that their checksums are compared, and looks whether run files,
/// checkpoints and the links of a study belong together. Models that killed processes left half
/// written are found in `directory`, and beside it those that were to become it, which need not be
/// there then. With `repair` it removes what killed processes left, and writes a run file anew that
/// its writer could not close, which other programs open only as SWMR readers. Throws Error when
/// there is none of all that.
std::vector<Finding> examine(const std::filesystem::path& directory, bool repair);

}  // namespace fp8lab
