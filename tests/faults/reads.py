"""Reads that fail and memory that ends: an error is never the end of a file. A library before the C
library's makes the reads of one file fail from some byte on."""

from __future__ import annotations

import functools
import random
import resource
import shutil
import subprocess
from pathlib import Path

from program import Program, Result, fault_of, is_sanitized, refusal_fault
from runs import BYTES_INPUTS, TOKENS_INPUTS, TRAIN, Context, Fixture, Outcome, case_folder

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* How many of `count` bytes from `offset` on may be read; -1: the read fails. */
static ssize_t allowed(int fd, off_t offset, size_t count) {
  const char* path = getenv("FAIL_FILE");
  struct stat file, wanted;
  if (path == NULL || fstat(fd, &file) != 0 || stat(path, &wanted) != 0) return (ssize_t)count;
  if (file.st_dev != wanted.st_dev || file.st_ino != wanted.st_ino) return (ssize_t)count;
  off_t limit = atoll(getenv("FAIL_AFTER"));
  if (offset >= limit) {
    errno = EIO;
    return -1;
  }
  return (off_t)count > limit - offset ? (ssize_t)(limit - offset) : (ssize_t)count;
}

ssize_t read(int fd, void* data, size_t count) {
  ssize_t (*real)(int, void*, size_t) = dlsym(RTLD_NEXT, "read");
  ssize_t size = allowed(fd, lseek(fd, 0, SEEK_CUR), count);
  return size < 0 ? size : real(fd, data, (size_t)size);
}

ssize_t pread(int fd, void* data, size_t count, off_t offset) {
  ssize_t (*real)(int, void*, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
  ssize_t size = allowed(fd, offset, count);
  return size < 0 ? size : real(fd, data, (size_t)size, offset);
}

ssize_t pread64(int fd, void* data, size_t count, off_t offset) {
  return pread(fd, data, count, offset);
}

ssize_t readv(int fd, const struct iovec* parts, int count) {
  ssize_t sum = 0;
  for (int i = 0; i < count; ++i) {
    ssize_t size = read(fd, parts[i].iov_base, parts[i].iov_len);
    if (size < 0) return sum > 0 ? sum : size;
    sum += size;
    if ((size_t)size < parts[i].iov_len) break;
  }
  return sum;
}
"""


@functools.cache
def library(folder: Path) -> Path | None:
    """The library, built once by each worker; nothing without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    place = folder / "library"
    place.mkdir(parents=True)
    (place / "fail.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", "fail.so", "fail.c", "-ldl"]
    subprocess.run(command, cwd=place, check=True)
    return place / "fail.so"


class Work:
    """A command in a copy of a fixture, and whether what came of it is right."""

    def __init__(self, context: Context, rng: random.Random, name: str) -> None:
        self.context = context
        self.fixture: Fixture = rng.choice((context.bytes, context.bytes, context.tokens))
        inputs = BYTES_INPUTS if self.fixture is context.bytes else TOKENS_INPUTS
        self.name = rng.choice(("train", "train", "resume", "eval", "export", "generate"))
        run = ("run/run.h5", "run/checkpoint.safetensors")
        state = {"train": "", "resume": "stopped"}.get(self.name, "whole")
        self.folder = self.fixture.copy(case_folder(context, name), state)
        self.files: tuple[str, ...] = inputs + (run if self.name == "resume" else ())
        self.words: tuple[str, ...] = (*TRAIN, *(("--resume",) if self.name == "resume" else ()))
        if self.name == "eval":
            self.files = run + tuple(n for n in inputs if n not in ("config.toml", "cpt.jsonl"))
            self.words = ("eval", "run", "--json", "--threads", "1")
        elif self.name == "export":
            self.files = run
            self.words = ("export", "run", "out", "--dtype", "f32")
        elif self.name == "generate":
            lines = '{"prompt": [5, 6, 7]}\n' * 3 + '{"prompt": [8, 9]}\n'
            (self.folder / "p.jsonl").write_text(lines)
            self.files = ("p.jsonl", *run)
            self.words = ("generate", "run", "--prompts", "p.jsonl", "--max-new-tokens", "2")
            self.words += ("--json", "--threads", "1")
        self.files = tuple(name for name in self.files if (self.folder / name).exists())

    def run(self, **how: object) -> Result:
        return self.context.program.run(self.folder, *self.words, **how)  # type: ignore[arg-type]

    def judge(self, result: Result) -> Outcome:
        """After a run that should have come to its end."""
        if self.name in ("train", "resume"):
            return self.fixture.judge(self.folder, result)
        if self.name == "eval":
            due = self.fixture.evaluation.replace('"whole"', '"run"')
            if self.words[-1] == "2":
                due = due.replace(", 1 thread", ", 2 threads")
            return Outcome("right" if result.out == due else "wrong", result.said())
        if self.name == "generate":
            again = self.run()
            same = result.out == again.out and again.code == 0
            return Outcome("right" if same else "wrong", result.said())
        written = (self.folder / "out/model.safetensors").read_bytes()
        shutil.rmtree(self.folder / "out")
        self.run()
        same = written == (self.folder / "out/model.safetensors").read_bytes()
        return Outcome("right" if same else "wrong", result.said())

    def finish(self) -> Outcome:
        """Undisturbed, after a disturbance that was refused."""
        if self.name == "export":
            shutil.rmtree(self.folder / "out", ignore_errors=True)
        if self.name in ("train", "resume") and (self.folder / "run/run.h5").exists():
            self.words = (*TRAIN, "--resume")
        return self.judge(self.run())


def after(work: Work, result: Result, named: tuple[str, ...], note: str) -> Outcome:
    """The verdict on a disturbed run: right, or refused and right afterwards."""
    note = f"{work.name}: {note}; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code == 0:
        outcome = work.judge(result)
        return Outcome(outcome.verdict, f"{outcome.note}; {note}")
    names = [name for name in named if name in result.err]
    problem = refusal_fault(result, (names or list(named) or [""])[0], (1, 2))
    if problem:
        return Outcome("crashed", f"{problem}; {note}")
    outcome = work.finish()
    if outcome.verdict != "right":
        return Outcome("crashed", f"and undisturbed then: {outcome.note}; {note}")
    return Outcome("refused", note)


def failing_read(context: Context, rng: random.Random) -> Outcome:
    work = Work(context, rng, "reads")
    built = library(work.folder.with_name(f"{work.folder.name}-library"))
    assert built is not None
    name = rng.choice(work.files)
    size = (work.folder / name).stat().st_size
    limit = rng.choice((0, size, size - 1, rng.randrange(size), rng.randrange(size)))
    environment = context.program.environment() | {
        "LD_PRELOAD": str(built),
        "FAIL_FILE": str(work.folder / name),
        "FAIL_AFTER": str(max(limit, 0)),
    }
    result = work.run(environment=environment)
    # A folder stands for a file in it where the reader of another part complains.
    return after(work, result, (Path(name).name,), f"{name} fails from byte {limit} of {size}")


@functools.cache
def least(program: Program) -> int:
    """The addresses without which the libraries of the program do not even load, in bytes."""
    low, high = 1 << 20, 1 << 30
    while high - low > 1 << 19:
        middle = (low + high) // 2
        result = program.run(Path("/"), "version", limits={resource.RLIMIT_AS: middle})
        low, high = (low, middle) if result.code == 0 else (middle, high)
    return high + (2 << 20)


def little_memory(context: Context, rng: random.Random) -> Outcome:
    work = Work(context, rng, "memory")
    limit = least(context.program) + int(2 ** rng.uniform(15.0, 27.0))
    if rng.random() < 0.5:
        work.words = tuple("2" if word == "1" else word for word in work.words)
    result = work.run(limits={resource.RLIMIT_AS: limit})
    return after(work, result, (), f"{limit >> 10} kB of addresses, {work.words[-1]} threads")


def reads(context: Context, rng: random.Random) -> Outcome:
    if is_sanitized(context.program.path):  # has neither preloaded libraries nor little memory
        return Outcome("right", "left out under AddressSanitizer")
    chosen = rng.random() < 0.65 and (shutil.which("cc") or shutil.which("gcc")) is not None
    return (failing_read if chosen else little_memory)(context, rng)
