"""What people type after docs/slurm.md, with programs of Slurm's names that only write their arguments down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import sound
from tests.cluster.faults.reported import read
from tests.deploy.conftest import DEPLOY, ROOT

PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
PROGRAMS = {
    "sbatch": 'echo "$@" >> asked; read -r code < <(sed -n "$(wc -l < asked)p" codes); echo "job$code"; exit "$code"',
    "scontrol": """case "$*" in
        "show hostnames"*) echo node01 ;;
        "show node"*) echo "NodeName=node01 NodeAddr=10.0.0.1 Port=1" ;;
        *) echo "$@" >> drained ;;
    esac""",
    "srun": 'printf "%s\\n" "$@" > asked',
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for bash, in which these programs are found first."""
    (tmp_path / "bin").mkdir()
    for name, text in {**PROGRAMS, "python": f'exec "{sys.executable}" "$@"'}.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.mark.night
def test_the_weekly_loop_drains_the_node_that_failed_and_no_other(shell: Path) -> None:
    (loop,) = re.findall(r"^for pair in .*?^done$", PAGE, flags=re.DOTALL | re.MULTILINE)
    codes = (1, 2, 3, 4)
    loop = loop.replace("'node[03-04]'", "'node[03-04]' 'node[05-06]' 'node[07-08]'")
    (shell / "codes").write_text("".join(f"{code}\n" for code in codes))
    for code in codes:
        records = sound.nodes(2, per_node=2)
        for record in records:
            record.node = f"node{2 * code - 1 + record.rank // 2:02}"
        read(records, [2], ecc_errors=3)
        document = sound.report(records)
        assert document["acceptance"]["status"] == "FAIL"
        (shell / "reports" / f"slurm-job{code}").mkdir(parents=True)
        (shell / "reports" / f"slurm-job{code}" / "cluster_test_report.json").write_text(json.dumps(document))
    done = subprocess.run(["bash", "-c", loop], cwd=shell, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len((shell / "asked").read_text().splitlines()) == len(codes)
    drained = (shell / "drained").read_text().splitlines()
    assert drained == ["update nodename=node02 state=drain reason=acceptance test, job job1"]


def test_the_container_of_pyxis_reaches_srun_as_words(shell: Path) -> None:
    (options,) = re.findall(r'SRUN_OPTIONS="([^"]*)"', PAGE)
    job = {"JOB_NODELIST": "node[1-2]", "JOB_ID": "7", "JOB_NUM_NODES": "2", "CPUS_PER_TASK": "8", "GPUS_ON_NODE": "8"}
    job = {**{f"SLURM_{name}": value for name, value in job.items()}, "SRUN_OPTIONS": options}
    command = f"source {DEPLOY / 'slurm' / 'launch.sh'}; PATH={shell / 'bin'}:$PATH; launch 0 -m cluster.acceptance"
    subprocess.run(["bash", "-c", command], cwd=shell, env={**os.environ, **job}, timeout=60, check=True)
    words = (shell / "asked").read_text().splitlines()
    assert words[:3] == options.split()
    assert words[3:6] == ["--cpus-per-task=8", "--kill-on-bad-exit=1", "--label"]
    assert words[-2:] == ["-m", "cluster.acceptance"]
