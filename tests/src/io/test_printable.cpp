// Text of others for a terminal: nothing that it obeys, and everything else.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "src/io/printable.hpp"

using namespace fp8lab;

TEST_CASE("control characters and broken UTF-8 are spelled out, the rest stays") {
  CHECK(printable("a\nb\rc\td\x1b[2J\x7f") == "a b c\\x09d\\x1b[2J\\x7f");
  CHECK(printable_lines("a\nb\rc\td\x1b[2J") == "a\nb\\x0dc\td\\x1b[2J");
  CHECK(printable("\xc2\x9b"
                  "2J \xc2\xa0 \xc3\xa9") == "\\x9b2J \xc2\xa0 \xc3\xa9");
  // A byte that terminals of 8 bits obey, halves of characters, longer spellings, surrogates.
  CHECK(printable("a\x9b"
                  "2J") == "a\\x9b2J");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");
  CHECK(printable("\xc0\x9b") == "\\xc0\\x9b");
  CHECK(printable("\xe0\x80\x9b") == "\\xe0\\x80\\x9b");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable("\xe2\x82\xac \xf0\x9f\x98\x80") == "\xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("lines are wrapped between characters, near blanks where there are any") {
  using Lines = std::vector<std::string>;
  CHECK(wrapped_lines("", 4) == Lines{""});
  CHECK(wrapped_lines("a\n\nb\n", 4) == Lines{"a", "", "b", ""});
  CHECK(wrapped_lines("abcdefghij", 4) == Lines{"abcd", "efgh", "ij"});
  CHECK(wrapped_lines("one two three", 8) == Lines{"one two ", "three"});
  CHECK(wrapped_lines("a bcdefghij", 8) == Lines{"a bcdefg", "hij"});
  CHECK(wrapped_lines("\xc3\xa9\xc3\xa9\xc3\xa9", 2) == Lines{"\xc3\xa9\xc3\xa9", "\xc3\xa9"});
}

TEST_CASE("no bytes at all bring a terminal to obey") {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 60, 'a');
    for (char& c : text)
      c = static_cast<char>(random() % 3 == 0 ? random() % 256 : 0xc2 - random() % 60);
    std::string joined;
    for (const std::string& line : wrapped_lines(text, 1 + random() % 20)) {
      CHECK(printable(line).find('\n') == std::string::npos);
      for (std::size_t k = 0; k < line.size(); ++k) {
        const auto byte = static_cast<unsigned char>(line[k]);
        const auto next = k + 1 < line.size() ? static_cast<unsigned char>(line[k + 1]) : 0u;
        REQUIRE((byte >= 0x20 || byte == '\t'));
        REQUIRE(byte != 0x7f);
        REQUIRE_FALSE((byte == 0xc2 && next >= 0x80 && next < 0xa0));
      }
      joined += line;
    }
    std::string whole = printable_lines(text);
    whole.erase(std::remove(whole.begin(), whole.end(), '\n'), whole.end());
    REQUIRE(joined == whole);
    REQUIRE(printable_lines(whole) == whole);  // it is UTF-8
  }
}
