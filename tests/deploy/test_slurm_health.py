"""Prolog and HealthCheckProgram on a real Slurm, whose nodes ask an NVML made by gcc: who is drained, who resumes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import sound
from tests.deploy import slurm_cluster
from tests.deploy.conftest import DEPLOY, ROOT, tool
from tests.deploy.slurm_cluster import NODES, Cluster

STUB = ROOT / "tests" / "monitoring" / "nvml_stub.c"
GOOD, BAD = "0", "2"
"""Uncorrected memory errors."""

# Stands where the checkout's environment has its Python: the real one, on a node whose NVML is the stub.
PYTHON = """#!/bin/bash
export LD_LIBRARY_PATH={checkout} NVML_STUB_ECC=$(cat {checkout}/errors.$SLURMD_NODENAME)
export SLURM_CONF={configuration}
exec {python} "$@"
"""
SITE = "OPTIONS=(--expect-gpus 2 --state {checkout}/state.$SLURMD_NODENAME --kernel-log {checkout}/kmsg)\n"


@dataclass(frozen=True)
class Site:
    """A Slurm, and the checkout that its nodes run the scripts of."""

    cluster: Cluster
    checkout: Path

    def errors(self, node: str, count: str) -> None:
        (self.checkout / f"errors.{node}").write_text(count)

    def node(self, name: str) -> tuple[str, str]:
        """State and reason."""
        shown = self.cluster.run("scontrol", "show", "node", name).stdout
        reason = re.search(r"Reason=(.*)", shown)
        state = re.search(r"State=(\S+)", shown)
        return state[1] if state else "", reason[1] if reason else ""

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.cluster.wait_until(condition), [self.node(name) for name in NODES]


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    if absent := slurm_cluster.missing():
        pytest.skip(f"{absent[0]} is not on this machine: `apt install slurm-wlm munge` brings it")
    gcc = tool("gcc", brings="apt install gcc")
    if subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout.strip() != "0":
        pytest.skip("slurmd runs a health check as root")
    checkout = tmp_path / "checkout"
    shutil.copytree(DEPLOY / "slurm", checkout / "deploy" / "slurm")
    for name in ("cluster", "labkit"):
        (checkout / name).symlink_to(ROOT / name)
    subprocess.run([gcc, "-shared", "-fPIC", "-o", str(checkout / "libnvidia-ml.so.1"), str(STUB)], check=True)
    (checkout / "kmsg").touch()
    (checkout / "site.conf").write_text(SITE.format(checkout=checkout))
    for node in NODES:
        (checkout / f"errors.{node}").write_text(GOOD)
    for script in ("health_check", "prolog"):
        # Slurm hands nothing of anybody's environment on, so where the site's file is has to stand here.
        wrapper = checkout / f"{script}.sh"
        wrapper.write_text(
            f"#!/bin/bash\nexport GPU_LABS_CONF={checkout}/site.conf\n"
            f"exec {checkout}/deploy/slurm/{script}.sh >>{checkout}/{script}.log 2>&1\n"
        )
        wrapper.chmod(0o755)
    program = checkout / ".venv" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    with slurm_cluster.running(request.param.format(checkout=checkout)) as cluster:
        configuration = cluster.environment["SLURM_CONF"]
        program.write_text(PYTHON.format(checkout=checkout, configuration=configuration, python=sys.executable))
        program.chmod(0o755)
        yield Site(cluster, checkout)


HEALTH = "HealthCheckProgram={checkout}/health_check.sh\nHealthCheckInterval=5\nHealthCheckNodeState=ANY\n"
PROLOG = "Prolog={checkout}/prolog.sh\nPrologFlags=Alloc\n"


@pytest.mark.night
@pytest.mark.parametrize("site", [HEALTH], indirect=True)
def test_a_sick_node_is_drained_with_the_reason_and_put_back_when_it_is_accepted(site: Site) -> None:
    sick, well = NODES
    site.until(lambda: all((site.checkout / f"state.{node}").exists() for node in NODES))
    assert [site.node(node)[0] for node in NODES] == ["IDLE", "IDLE"], "what NVML does not tell drains nobody"
    site.errors(sick, BAD)
    site.until(lambda: "DRAIN" in site.node(sick)[0])
    reason = site.node(sick)[1]
    assert reason.startswith("acceptance: sound: memory errors before the run, GPU 0")
    assert site.node(well)[0] == "IDLE"
    # Not even a node that looks well again comes back by itself.
    site.errors(sick, GOOD)
    records = sound.records()
    for record in records:
        record.node = sick
    report = site.checkout / "report.json"
    report.write_text(json.dumps(sound.report(records)))
    command = [str(site.checkout / ".venv/bin/python3"), "-m", "cluster.fleet", "accept", str(report), "--slurm"]
    more = ["--state", str(site.checkout / f"state.{sick}"), "--kernel-log", str(site.checkout / "kmsg")]
    environment = {**site.cluster.environment, "SLURMD_NODENAME": sick}
    done = subprocess.run(
        [*command, *more], cwd=site.checkout, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"resumed {sick}" in done.stdout
    site.until(lambda: site.node(sick)[0] == "IDLE")


@pytest.mark.night
@pytest.mark.parametrize("site", [HEALTH], indirect=True)
def test_what_an_operator_drained_is_left_alone(site: Site) -> None:
    node = NODES[0]
    site.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=cooling is serviced")
    site.errors(node, BAD)
    log = site.checkout / "health_check.log"
    site.until(lambda: log.exists() and "left as it is" in log.read_text())
    assert site.node(node)[1].startswith("cooling is serviced")


@pytest.mark.night
@pytest.mark.parametrize("site", [PROLOG], indirect=True)
def test_no_job_begins_on_a_sick_node(site: Site) -> None:
    sick, well = NODES
    site.errors(sick, BAD)
    script = site.checkout / "job.sh"
    script.write_text(f"#!/bin/bash\necho $SLURMD_NODENAME >> {site.checkout}/ran\n")
    submitted = site.cluster.run("sbatch", "--parsable", "--requeue", f"--nodelist={sick}", str(script))
    site.until(lambda: "DRAIN" in site.node(sick)[0])
    assert site.node(sick)[1].startswith("acceptance: sound: memory errors"), site.node(sick)
    site.cluster.run("scancel", submitted.stdout.strip())
    assert not (site.checkout / "ran").exists()
    other = site.cluster.run("sbatch", "--parsable", f"--nodelist={well}", str(script)).stdout.strip()
    assert site.cluster.wait_for_job(other) == 0
    assert (site.checkout / "ran").read_text().split() == [well]
