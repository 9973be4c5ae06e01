#!/usr/bin/python3
"""CUDA C++ of kernels/ as C++ for the simulator.

    translate.py SOURCE DESTINATION

Drops the words that say where a function runs, makes variables in shared memory static variables of
the host thread that runs the block, and launches calls of fp8lab::simulator::Launch. Lines keep
their numbers.
"""
import re
import sys

PLACES = {
    "threadIdx": "thread",
    "blockIdx": "block",
    "blockDim": "block_extent",
    "gridDim": "grid_extent",
}
WORDS = re.compile(r"\b__(?:device|global|host|forceinline|grid_constant)__\s?")


def closing(text, at, pair):
    """Index behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    raise ValueError(f"a {pair[0]} that nothing closes")


def beginning(text, at):
    """Index where the name of a kernel begins that ends before `at`."""
    i = at
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (text[i] == ">") - (text[i] == "<")
            if depth == 0:
                break
    while re.match(r"[\w:]", text[i - 1]):
        i -= 1
    return i


def translated_launches(text):
    while (at := text.find("<<<")) >= 0:
        begin = beginning(text, at)
        kernel = text[begin:at].strip()
        end = text.index(">>>", at)
        arguments_end = closing(text, end + 3, "()")
        shape, arguments = text[at + 3 : end], text[end + 4 : arguments_end - 1]
        name = re.sub(r"\s+", " ", kernel)
        separator = ", " if arguments.strip() else ""
        text = (
            text[:begin]
            + f'::fp8lab::simulator::Launch{{"{name}", {shape}}}('
            + f"[=](const auto&... values) {{ {kernel}(values...); }}{separator}{arguments})"
            + text[arguments_end:]
        )
    return text


def translated(text):
    text = re.sub(
        r"\bextern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(::fp8lab::simulator::shared_memory());",
        text,
    )
    text = re.sub(r"\b__shared__ (alignas\(\d+\) )?", r"\1static thread_local ", text)
    while (at := text.find("__launch_bounds__(")) >= 0:
        text = text[:at] + text[closing(text, text.index("(", at), "()") :]
    text = re.sub(r"\b__align__\(", "alignas(", text)
    text = re.sub(r"\b__noinline__\s?", "", text)
    text = WORDS.sub("", text)
    for name, place in PLACES.items():  # not the members of a launch's configuration
        text = re.sub(rf"(?<![.>\w]){name}\b", f"::fp8lab::simulator::place().{place}", text)
    return translated_launches(text)


def main():
    source, destination = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    with open(destination, "w", encoding="utf-8") as file:
        file.write(f'#include <cuda_runtime.h>\n#line 1 "{source}"\n{translated(text)}')


main()
