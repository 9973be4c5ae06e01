"""Runs the program under test within limits, and stops it at a chosen file operation."""

from __future__ import annotations

import ctypes
import os
import pickle
import platform
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIME_LIMIT = 60.0  # s; the slowest honest case takes about one, a report ten
READ_LIMIT = 10.0  # s, of reading one small file
ADDRESS_SPACE = 6 << 30
RESIDENT_LIMIT = 700 << 20  # inputs are below a few MB
FILE_LIMIT = 1 << 30

# System calls that change what other processes see of the file system (x86-64). Interrupting before
# and after each of them reaches every state that a kill can leave behind.
FILE_CALLS = {1, 18, 20, 74, 75, 76, 77, 82, 83, 84, 87, 264, 285, 296, 316}
SYSCALL_NUMBER = 15 * 8  # offset of orig_rax for PTRACE_PEEKUSER

PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SYSCALL = 0, 3, 7, 24
PTRACE_SETOPTIONS, OPTIONS = 0x4200, 0x1 | 0x8 | 0x100000  # TRACESYSGOOD | TRACECLONE | EXITKILL
SYSCALL_STOP = signal.SIGTRAP | 0x80
ANY_THREAD = 0x40000000  # __WALL


@dataclass(frozen=True)
class Result:
    """How a process ended."""

    words: list[str]
    code: int  # exit status; negative: the signal that ended it
    out: str
    err: str
    resident: int  # bytes, largest
    hung: bool

    def said(self) -> str:
        """The command and its complaint, for notes."""
        text = " ".join(self.words)
        return f"`{text[:300]}` exit {self.code}: {self.err.strip()[:400]!r}"


@dataclass(frozen=True)
class Program:
    """The executable and how it is called."""

    path: Path

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
        return kept | {"OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(
        self,
        cwd: Path,
        *words: object,
        limits: Mapping[int, int] | None = None,
        out: Path | None = None,
        err: Path | None = None,
        interrupt: Interrupt | None = None,
        environment: Mapping[str, str] | None = None,
        closed: Sequence[int] = (),
    ) -> Result:
        """Runs `path words...` to its end. `out` and `err` take what it writes instead of the
        result; `environment` is the whole one, `closed` are descriptors that it starts without."""
        command = [str(self.path), *map(str, words)]
        traced = interrupt is not None and interrupt.at is not None
        before = prepare(limits or {}, traced, closed)
        with (
            tempfile.TemporaryFile() as caught,
            tempfile.TemporaryFile() as caught_too,
            (out or Path(os.devnull)).open("wb") as given,
            (err or Path(os.devnull)).open("wb") as given_too,
        ):
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=self.environment() if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=given if out is not None else caught,
                stderr=given_too if err is not None else caught_too,
                preexec_fn=before,
            )
            if interrupt is not None:
                interrupt.apply(child.pid)
            code, resident, hung = _wait(child)
            texts = []
            for stream in (caught, caught_too):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        return Result([self.path.name, *map(str, words)], code, texts[0], texts[1], resident, hung)


class Interrupt:
    """Something done to a process, or meanwhile, at a moment: at its `at`-th stop at a file
    operation (each has two, before and after), or where tracing is not possible `seconds` after its
    start. `what` is a signal, or is called."""

    def __init__(self, what: int | Callable[[], None], at: int | None, seconds: float) -> None:
        self.what, self.at, self.seconds = what, at, seconds
        self.happened = False

    def apply(self, pid: int) -> None:
        if self.at is None:
            time.sleep(self.seconds)
            do(self.what, pid)
            self.happened = True
            return
        self.happened = trace(pid, self.at, self.what) >= self.at


def do(what: int | Callable[[], None], pid: int) -> None:
    if callable(what):
        what()
    else:
        os.kill(pid, what)


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


LIBC = _load_libc()


def trace(pid: int, at: int = 0, what: int | Callable[[], None] = 0) -> int:
    """Follows a process that asked to be traced, with all its threads, to its end, which is left
    for the caller to collect. At its `at`-th stop it gets the signal `what`, or that is called.
    Returns the stops seen until then."""
    os.waitpid(pid, 0)  # the stop of execve
    LIBC.ptrace(PTRACE_SETOPTIONS, pid, None, OPTIONS)
    LIBC.ptrace(PTRACE_SYSCALL, pid, None, 0)
    stops, inside = 0, dict[int, bool]()  # the threads that are in a system call
    while True:
        status = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WEXITED | os.WNOWAIT | ANY_THREAD)
        assert status is not None
        thread = status.si_pid
        if status.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
            if thread == pid:
                return stops
            os.waitpid(thread, ANY_THREAD)
            continue
        _, raw = os.waitpid(thread, ANY_THREAD)
        deliver = 0
        if os.WSTOPSIG(raw) == SYSCALL_STOP:
            left = inside.pop(thread, None)
            if left is None:
                number = LIBC.ptrace(PTRACE_PEEKUSER, thread, SYSCALL_NUMBER, None)
                inside[thread] = number in FILE_CALLS
            if (left or inside.get(thread, False)) and (at == 0 or stops < at):
                stops += 1
                if stops == at:
                    do(what, pid)
        elif os.WSTOPSIG(raw) not in (signal.SIGTRAP, signal.SIGSTOP):  # a new thread: both
            deliver = os.WSTOPSIG(raw)
        follow = PTRACE_SYSCALL if at == 0 or stops < at else PTRACE_CONT
        LIBC.ptrace(follow, thread, None, deliver)


def can_trace() -> bool:
    """Whether this machine lets a parent trace its child, with the system calls known here."""
    if platform.machine() != "x86_64":
        return False
    child = os.fork()
    if child == 0:
        refused = LIBC.ptrace(PTRACE_TRACEME, 0, None, None) != 0
        os._exit(1 if refused else 0)
    return os.waitpid(child, 0)[1] == 0


def is_sanitized(program: Path) -> bool:
    return b"__asan_init" in program.read_bytes()


def fit_limits_to(program: Path) -> None:
    """AddressSanitizer maps terabytes and keeps for a while what is freed."""
    global ADDRESS_SPACE, RESIDENT_LIMIT
    if is_sanitized(program):
        ADDRESS_SPACE = resource.RLIM_INFINITY
        RESIDENT_LIMIT = 6 << 30


def prepare(
    limits: Mapping[int, int], traced: bool, closed: Sequence[int] = ()
) -> Callable[[], None]:
    """What a child does before it becomes the program."""
    chosen = {
        resource.RLIMIT_AS: ADDRESS_SPACE,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: FILE_LIMIT,
    } | dict(limits)

    def before() -> None:
        for what, limit in chosen.items():
            resource.setrlimit(what, (limit, limit))
        # A file beyond its limit is then an error of the call, as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for descriptor in closed:
            os.close(descriptor)
        if traced:
            LIBC.ptrace(PTRACE_TRACEME, 0, None, None)

    return before


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, int, bool]:
    descriptor = os.pidfd_open(child.pid)
    try:
        ended = select.select([descriptor], [], [], TIME_LIMIT)[0]
    finally:
        os.close(descriptor)
    if not ended:
        os.kill(child.pid, signal.SIGKILL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss << 10, not ended


def fault_of(result: Result) -> str:
    """What no input may cause; empty: nothing of it."""
    if result.hung:
        return f"still running after {TIME_LIMIT:.0f} s"
    if result.code < 0:
        return f"ended by signal {-result.code}"
    if result.code not in (0, 1, 2, 3, 4):
        return f"exit {result.code}"
    for mark in ("Traceback", "terminate called", "AddressSanitizer", "runtime error"):
        if mark in result.err:
            return f"prints '{mark}'"
    if result.resident > RESIDENT_LIMIT:
        return f"uses {result.resident >> 20} MB"
    return ""


def refusal_fault(result: Result, name: str = "", codes: Sequence[int] = (2,)) -> str:
    """What is wrong with a refusal; empty: a status in `codes` and one line that holds `name`."""
    # Long phases may have said what they do, "timing the operations ...", and notes come before.
    lines = [
        line
        for line in result.err.removesuffix("\n").split("\n")
        if not line.endswith(" ...") and not line.startswith("fp8lab: note: ")
    ]
    if result.code not in codes:
        return f"exit {result.code} where {' or '.join(map(str, codes))} is due"
    if len(lines) != 1 or not lines[0].startswith(("fp8lab: ", "fp8lab.tokens: ", "error: ")):
        return f"{len(lines)} lines of complaint"
    if len(result.err) > 4000:
        return f"a complaint of {len(result.err)} bytes"
    if name and name not in result.err:
        return f"the complaint does not name {name}"
    return ""


class Died(Exception):
    """A child that read damaged data ended by a signal, or not at all."""


def in_child(work: Callable[[], object]) -> Any:
    """The value of work(), computed in a child: libraries may crash on damaged files. Throws
    Died."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            with open(sending, "wb") as stream:
                stream.write(pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(sending)
    answer = b""
    hung = False
    while not hung:
        hung = not select.select([receiving], [], [], READ_LIMIT)[0]
        part = b"" if hung else os.read(receiving, 1 << 16)
        answer += part
        if not part:
            break
    if hung:
        os.kill(child, signal.SIGKILL)
    os.close(receiving)
    _, status = os.waitpid(child, 0)
    if hung or status != 0 or not answer:
        raise Died("does not end" if hung else f"ends with status {status}")
    return pickle.loads(answer)


class Disk:
    """A small file system of this process and its children alone; absent where mounts need rights
    that this user lacks."""

    SIZE = 8 << 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def available(folder: Path) -> bool:
        """Tries it in a child, since a name space cannot be left again."""
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if Disk.mount(folder) is not None else 1)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    @staticmethod
    def mount(folder: Path) -> Disk | None:
        folder.mkdir()
        flags = 0x00020000 | (0 if os.geteuid() == 0 else 0x10000000)  # NEWNS, NEWUSER
        user, group = os.geteuid(), os.getegid()
        if LIBC.unshare(flags) != 0:
            return None
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        LIBC.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # REC | PRIVATE
        options = f"size={Disk.SIZE}".encode()
        if LIBC.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options) != 0:
            return None
        return Disk(folder)

    def leave(self, free: int) -> None:
        """Fills the file system up to `free` bytes."""
        ballast = self.folder / "ballast"
        ballast.write_bytes(b"")
        state = os.statvfs(self.folder)
        size = max(state.f_bavail * state.f_frsize - free, 0)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))

    def release(self) -> None:
        (self.folder / "ballast").unlink()
