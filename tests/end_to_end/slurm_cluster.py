"""A Slurm of one node, this machine, in a folder of its own: munged, slurmctld and slurmd without
cgroups and without accounting, on free ports. Nothing of the system's own Slurm is read or
changed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONFIGURATION = """
ClusterName=fp8lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm and munge that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [int(item.getsockname()[1]) for item in sockets]
    for item in sockets:
        item.close()
    return ports


class SlurmCluster:
    """Runs from `with` to its end; `environment` is for whoever submits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)  # munged refuses what others may write
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        text = CONFIGURATION.format(folder=self.folder, host=host, user=user, ports=_free_ports(2))
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {
            "socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid",
            "log-file": "munge.log", "seed-file": "munge.seed",
        }  # fmt: skip
        try:
            munge = [f"--{option}={self.folder / name}" for option, name in files.items()]
            self._start("munged", "--foreground", "--force", *munge)
            self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D")
            self._wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t"), "the node")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *words: object) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def queue(self) -> dict[str, str]:
        """State of every task, by "JOB_TASK", that Slurm has not done with."""
        lines = self.run("squeue", "-h", "-r", "-o", "%i %T").split("\n")
        return dict(line.split() for line in lines if line)

    def logs(self) -> str:
        """The last words of the daemons."""
        texts = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in self.folder.glob("*.log")
        ]
        return "\n".join(texts)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out.log").open("wb") as log:
            program = shutil.which(name, path=PATH)
            assert program is not None
            self._daemons.append(
                subprocess.Popen([program, *words], env=self.environment, stdout=log, stderr=log)
            )

    def _wait(self, condition: object, what: str, seconds: float = 60.0) -> None:
        assert callable(condition)
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{what} does not come up\n{self.logs()}")
            time.sleep(0.1)
