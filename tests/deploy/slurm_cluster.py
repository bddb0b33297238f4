"""A Slurm of Debian's packages on loopback: one controller, two nodes with two pretended GPUs each.

Everything lies in one folder and on free ports, runs in the foreground of this process, and ends with it. The "GPUs"
are empty files: Slurm counts them and hands them out, and nothing can be computed on them.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "scancel", "squeue")
NODES = ("lab-node1", "lab-node2")
GPUS_PER_NODE = 2
PATIENCE_SECONDS = 30
JOB_SECONDS = 240
"""A job starts six interpreters that import PyTorch, perhaps on a busy machine."""

_CONFIGURATION = """
ClusterName=labs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=lab-node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=4000 Gres=gpu:{gpus}
NodeName=lab-node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=4000 Gres=gpu:{gpus}
PartitionName=gpu Nodes=lab-node[1-2] Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running Slurm."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *command: str, cwd: Path | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def wait_for_job(self, job: str) -> int:
        """The exit code of a job that was submitted, once it has ended. `sbatch --wait` looks only twice a minute."""
        fields: dict[str, str] = {}

        def ended() -> bool:
            shown = self.run("scontrol", "show", "job", job).stdout
            fields.update(re.findall(r"(JobState|ExitCode)=(\S+)", shown))
            return fields["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        if not self.wait_until(ended):
            raise RuntimeError(f"job {job} did not end in {JOB_SECONDS} s")
        return int(fields["ExitCode"].split(":")[0])

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Whether it has come true before a job's time is up."""
        deadline = time.monotonic() + JOB_SECONDS
        while not (met := condition()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return met


def missing() -> list[str]:
    """The programs that are not here; Debian puts daemons where an ordinary user's PATH does not lead."""
    return [name for name in PROGRAMS if _find(name) is None]


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


@contextlib.contextmanager
def running(more: str = "") -> Iterator[Cluster]:
    """Start it, wait until both nodes are idle, and end all of it afterwards; `more`: lines for slurm.conf.

    Raises:
        RuntimeError: it did not come up; the message holds what the daemons said.
    """
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        cluster = Cluster(folder, environment)
        _configure(folder, more)
        munge = [f"--{what}={folder}/munge.{end}" for what, end in _MUNGE_FILES.items()]
        _daemon(stack, cluster, "munged", "--foreground", "--force", "--num-threads=2", *munge)
        _wait(cluster, lambda: (folder / "munge.socket").exists(), "munged opened no socket")
        _daemon(stack, cluster, "slurmctld", "-D", "-c")
        for node in NODES:
            _daemon(stack, cluster, "slurmd", "-D", "-N", node, log=node)
        # Ends jobs first: what a job started outlives the daemons.
        stack.callback(_end_jobs, cluster)
        idle = "\n".join(f"{node} idle" for node in NODES)
        _wait(
            cluster,
            lambda: cluster.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.strip() == idle,
            "the nodes did not become idle",
        )
        yield cluster


_MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _configure(folder: Path, more: str) -> None:
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    folder.chmod(0o755)
    devices = [folder / f"gpu{number}" for number in range(GPUS_PER_NODE)]
    for device in devices:
        device.touch()
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
    text = _CONFIGURATION.format(
        host=socket.gethostname().split(".")[0],
        ports=_free_ports(3),
        user=getpass.getuser(),
        folder=folder,
        gpus=GPUS_PER_NODE,
    )
    (folder / "slurm.conf").write_text(text + more)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def _daemon(stack: contextlib.ExitStack, cluster: Cluster, name: str, *arguments: str, log: str | None = None) -> None:
    output = stack.enter_context((cluster.folder / f"{log or name}.log").open("wb"))
    process = subprocess.Popen(
        [str(_find(name)), *arguments],
        cwd=cluster.folder,
        env=dict(cluster.environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_jobs(cluster: Cluster) -> None:
    cluster.run("scancel", "--user", getpass.getuser())
    with contextlib.suppress(RuntimeError):
        _wait(cluster, lambda: not cluster.run("squeue", "-h").stdout.strip(), "jobs did not end")


def _wait(cluster: Cluster, condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"{log.name}:\n{log.read_text(errors='replace')[-800:]}" for log in cluster.folder.glob("*.log")
            )
            raise RuntimeError(f"{problem} in {PATIENCE_SECONDS} s\n{logs}")
        time.sleep(0.2)
