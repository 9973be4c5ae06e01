// Study files, over a base configuration that is small, so that every arm is read quickly.
#include <filesystem>
#include <fstream>
#include <set>

#include "src/config/config.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

constexpr const char* kBase =
    "recipe = \"bf16\"\n"
    "[[stages]]\nname = \"pretrain\"\nkind = \"pretrain\"\nsteps = 2\n"
    "[[stages]]\nname = \"cpt\"\nkind = \"cpt\"\nsteps = 2\n"
    "[[stages]]\nname = \"sft\"\nkind = \"sft\"\nsteps = 2\n";

/// A study needs its base beside it: a folder with base.toml, and a link to the input.
class Folder {
 public:
  explicit Folder(const fuzz::MemoryFile& input) {
    std::ofstream(scratch_ / "base.toml") << kBase;
    std::filesystem::create_symlink(input.path(), study());
  }
  std::filesystem::path study() const { return scratch_ / "study.toml"; }

 private:
  ScratchDirectory scratch_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  static const Folder folder(file);
  file.assign(data, size);
  fuzz::accept_error([&] {
    const StudyConfig study = load_study_config(folder.study());
    std::set<std::string> names;
    for (const StudyArm& arm : study.arms) {
      fuzz::require(!arm.name.empty() && arm.name.find('/') == std::string::npos,
                    "an arm has no folder of its own");
      fuzz::require(names.insert(arm.name).second, "two arms share a folder");
    }
  });
  return 0;
}
