"""The training job: its settings, what it leaves behind, and that it goes on after a kill. Needs no GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cluster.job import settings, tracking, tune
from cluster.job.plan import Plan, make_plan
from cluster.job.training import make_model
from labkit import data
from tests.cluster.test_runs import ROOT, watchdog_of
from tests.proc import proc

LIMIT_SECONDS = 240
QUICK = {"MODEL": "small-cnn", "BATCH_SIZE": "64", "DEVICE": "cpu", "OUTPUT_DIR": "out"}


class Job:
    """Runs the job in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.log = folder, folder / "out", folder / "log"

    def start(self, *words: str, ranks: int = 1, restarts: int = 0, **environment: str) -> subprocess.Popen[bytes]:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        command = [sys.executable, "-m", *([*launcher, "-m"] if ranks > 1 else []), "cluster.job", *words]
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **QUICK, **environment}
        # As deploy/ sets it: https://github.com/pytorch/pytorch/issues/135712
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
            )

    def ended(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        try:
            exit_code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
        assert exit_code == code, self.log.read_text()
        return self.log.read_text()

    def __call__(self, *words: str, ranks: int = 1, code: int = 0, **environment: str) -> str:
        return self.ended(self.start(*words, ranks=ranks, **environment), code)

    @property
    def steps(self) -> int:
        """Of the newest checkpoint; 0 before there is one."""
        return max((int(path.stem.partition("-")[2]) for path in self.out.glob("checkpoints/step-*.pt")), default=0)

    def wait_for_a_checkpoint(self, process: subprocess.Popen[bytes], after: int = 0) -> None:
        ends = time.monotonic() + LIMIT_SECONDS
        while self.steps <= after:
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.05)

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads((self.out / "training_metadata.json").read_text())
        return metadata


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    options = settings.read(["--epochs", "3"], {"EPOCHS": "7", "BATCH_SIZE": "256", "MIXED_PRECISION": "False"})
    assert (options.epochs, options.batch_size, options.learning_rate) == (3, 256, 1e-3)
    assert options.dtype("cuda") == "float32"


@pytest.mark.parametrize(
    ("precision", "on_gpu", "on_cpu"),
    [("true", "float16", "float32"), ("bfloat16", "bfloat16", "bfloat16"), ("false", "float32", "float32")],
)
def test_mixed_precision_depends_on_the_device(precision: str, on_gpu: str, on_cpu: str) -> None:
    options = settings.read([], {"MIXED_PRECISION": precision})
    assert (options.dtype("cuda"), options.dtype("cpu")) == (on_gpu, on_cpu)


@pytest.mark.parametrize(
    "wrong", [{"EPOCHS": "many"}, {"LEARNING_RATE": "-1"}, {"MIXED_PRECISION": "yes"}, {"DATASET_TYPE": "imagenet"}]
)
def test_a_variable_that_makes_no_sense_is_named(wrong: dict[str, str]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(settings.SettingError, match=rf"{name}='{value}'"):
        settings.read([], wrong)


def test_a_package_without_a_trainer_is_named() -> None:
    with pytest.raises(settings.SettingError, match=r"no trainer in somewhere\.else"):
        settings.read(["--package", "somewhere.else"], {})


@pytest.mark.night
def test_two_ranks_leave_a_model_that_does_what_the_metadata_says_and_one_goes_on_with_it(job: Job) -> None:
    output = job(ranks=2, EPOCHS="3", LEARNING_RATE="0.003")
    assert "2 ranks, from the beginning" in output
    metadata = job.metadata
    assert (metadata["world_size"], metadata["epochs"]) == (2, 3)
    assert (metadata["ended"], metadata["simulated"]) == ("finished", False)
    assert metadata["settings"]["learning_rate"] == "0.003"
    assert f"accuracy: {metadata['accuracy']}" in (job.out / "training_metadata.txt").read_text()
    model = make_model("small-cnn", 1, 8)
    model.load_state_dict(load_file(job.out / "trained-model.safetensors"))
    images, labels = data.load("digits", split="test").tensors
    with torch.no_grad():
        right = (model.eval()(images).argmax(1) == labels).float().mean().item()
    assert right == pytest.approx(metadata["accuracy"], abs=1 / len(labels))
    assert right > 0.5
    output = job(EPOCHS="5", LEARNING_RATE="0.003")
    assert "1 ranks, from the parameters of step-" in output
    assert job.metadata["history"][:3] == metadata["history"]
    assert job.metadata["epochs"] == 5
    assert job.metadata["history"][-1]["loss"] < metadata["history"][-1]["loss"]


def plan(ranks: int, **values: str) -> Plan:
    return make_plan(settings.read([], {name.upper(): value for name, value in values.items()}), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 64])
def test_a_step_keeps_its_samples_on_any_number_of_ranks(ranks: int) -> None:
    result = plan(ranks, global_batch_size="1024", batch_size="128")
    assert 0 <= 1024 - result.samples < ranks * (1 + result.accumulation_steps)
    assert result.batch_size <= 128
    if 1024 % ranks == 0:
        assert (result.samples, result.learning_rate) == (1024, 1e-3)


def test_the_learning_rate_follows_the_batch_as_the_optimizer_wants_it() -> None:
    values = {"batch_size": "128", "learning_rate": "0.1", "learning_rate_batch": "256"}
    assert plan(8, optimizer="sgd", **values).learning_rate == pytest.approx(0.4)
    assert plan(8, optimizer="adamw", **values).learning_rate == pytest.approx(0.2)
    # Who says nothing keeps what was said.
    assert plan(8, learning_rate="0.1").learning_rate == 0.1


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(settings.SettingError, match="less than a sample for each of 8 ranks"):
        plan(8, global_batch_size="4")


@pytest.mark.night
def test_a_run_that_was_killed_and_one_that_was_told_to_stop_train_the_same_bits(tmp_path: Path) -> None:
    """Three runs, one hash: never disturbed; a rank killed and started again; told to stop by SIGUSR1 and continued."""
    jobs = [Job(tmp_path / name) for name in ("alone", "killed", "stopped")]
    for job in jobs:
        job.folder.mkdir()
    alone, killed, stopped = jobs
    variables = {"EPOCHS": "12", "SAVE_EVERY_STEPS": "3"}
    alone(ranks=2, **variables)
    process = killed.start(ranks=2, restarts=1, **variables)
    killed.wait_for_a_checkpoint(process, after=6)
    os.kill(watchdog_of(process.pid, 1), signal.SIGKILL)
    killed.ended(process)
    process = stopped.start(ranks=1, **variables)
    stopped.wait_for_a_checkpoint(process, after=6)
    process.send_signal(signal.SIGUSR1)
    stopped.ended(process, code=143)
    stopped(ranks=1, **variables)
    single = Job(tmp_path / "single")
    single.folder.mkdir()
    single(ranks=1, **variables)
    assert killed.metadata["restarts"] == 1
    assert killed.metadata["sha256"] == alone.metadata["sha256"]
    assert stopped.metadata["sha256"] == single.metadata["sha256"]
    # A hash that were always the same would show nothing.
    assert alone.metadata["sha256"] != single.metadata["sha256"]


@pytest.mark.night
def test_when_a_worker_is_lost_torchrun_goes_on_without_it_and_the_step_keeps_its_samples(job: Job) -> None:
    """Two agents, as on two nodes; one is killed with its rank, and nobody starts it again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **QUICK}
    variables |= {"EPOCHS": "40", "GLOBAL_BATCH_SIZE": "128", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    folder = proc()
    agents = []
    for number in range(2):
        elastic = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=lost"]
        meet = [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=is_host={int(number == 0)},last_call_timeout=5"]
        command = [sys.executable, "-m", "torch.distributed.run", *elastic, *meet, "-m", "cluster.job"]
        with (job.log if number == 0 else job.folder / "log1").open("wb") as log:
            agents.append(
                subprocess.Popen(
                    command,
                    cwd=job.folder,
                    env={**os.environ, **variables},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        job.wait_for_a_checkpoint(agents[0], after=20)
        assert "2 ranks, from the beginning" in job.log.read_text()
        # As a node that loses its power: the agent and, since it has a session of its own, its rank.
        ranks = (folder / f"{agents[1].pid}/task/{agents[1].pid}/children").read_text().split()
        assert ranks
        for process in (agents[1].pid, *map(int, ranks)):
            os.kill(process, signal.SIGKILL)
        output = job.ended(agents[0])
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
    assert "1 ranks, from the parameters of step-" in output
    assert "128 samples a step (2 ranks x 64 x 1 batches), learning rate 0.001" in output
    assert "128 samples a step (1 ranks x 64 x 2 batches), learning rate 0.001" in output
    assert (job.metadata["epochs"], job.metadata["world_size"]) == (40, 1)


@pytest.mark.night
def test_a_killed_rank_is_started_again_and_the_job_goes_on(job: Job) -> None:
    process = job.start(ranks=2, restarts=1, EPOCHS="15")
    job.wait_for_a_checkpoint(process)
    os.kill(watchdog_of(process.pid, 1), signal.SIGKILL)
    output = job.ended(process)
    assert "from step-" in output
    assert (job.metadata["restarts"], job.metadata["epochs"]) == (1, 15)


@pytest.mark.night
def test_told_to_stop_it_says_that_it_is_not_done_and_goes_on_later(job: Job) -> None:
    process = job.start(EPOCHS="400")
    job.wait_for_a_checkpoint(process)
    process.terminate()
    output = job.ended(process, code=143)
    assert "told to stop" in output
    assert not (job.out / "trained-model.safetensors").exists()
    steps = job.steps
    again = job.start(EPOCHS="400")
    job.wait_for_a_checkpoint(again, after=steps)
    again.terminate()
    assert f"from step-{steps:08d}.pt" in job.ended(again, code=143)


@pytest.mark.night
def test_told_to_stop_while_it_is_still_getting_ready_it_says_so_too(job: Job) -> None:
    package = job.folder / "slow"
    package.mkdir()
    (package / "trainer.py").touch()
    (package / "launch.py").write_text("import time\nprint('getting ready', flush=True)\ntime.sleep(300)\n")
    process = job.start(PACKAGE="slow")
    ends = time.monotonic() + LIMIT_SECONDS
    while "getting ready" not in job.log.read_text():
        assert process.poll() is None, job.log.read_text()
        assert time.monotonic() < ends, job.log.read_text()
        time.sleep(0.05)
    process.terminate()
    assert "before the training had begun" in job.ended(process, code=143)


@pytest.mark.night
def test_early_stopping_ends_the_job(job: Job) -> None:
    job("--patience", "1", EPOCHS="200", LEARNING_RATE="0.05")
    assert job.metadata["ended"] == "early"
    assert job.metadata["best_epoch"] < job.metadata["epochs"] - 1


@pytest.mark.night
def test_on_virtual_gpus_it_trains_in_half_precision_and_says_that_it_is_simulated(job: Job) -> None:
    job("--device", "vgpu:T4", ranks=2, EPOCHS="1")
    metadata = job.metadata
    assert (metadata["device"], metadata["simulated"], metadata["dtype"]) == ("cuda", True, "float16")


def test_metrics_and_settings_go_to_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    class Run:
        def __enter__(self) -> None:
            calls.append(("began", None))

        def __exit__(self, *error: object) -> None:
            calls.append(("ended", None))

    mlflow = SimpleNamespace(
        set_tracking_uri=lambda uri: calls.append(("uri", uri)),
        set_experiment=lambda name: None,
        start_run=lambda run_name: Run(),
        log_params=lambda values: calls.append(("epochs", values["epochs"])),
        log_metrics=lambda metrics, step: calls.append((f"step {step}", metrics)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    options = settings.read(["--mlflow-tracking-uri", "http://localhost:5000", "--epochs", "3"], {})
    with tracking.tracked(options, rank=0) as sink:
        assert sink is not None
        sink.log_metrics(10, {"loss": 0.5})
    with tracking.tracked(options, rank=1) as none:
        assert none is None
    assert calls == [
        ("uri", "http://localhost:5000"),
        ("began", None),
        ("epochs", "3"),
        ("step 10", {"loss": 0.5}),
        ("ended", None),
    ]


def test_mlflow_that_is_not_there_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    options = settings.read(["--mlflow-tracking-uri", "http://localhost:5000"], {})
    with pytest.raises(settings.SettingError, match="pip install mlflow"), tracking.tracked(options, rank=0):
        pass


@pytest.mark.night
def test_a_trial_of_the_tuning_is_the_job_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}

    class Tuner:
        def __init__(self, trainable: Any, *, param_space: Any, tune_config: Any, run_config: Any) -> None:
            arguments.update(trainable=trainable, space=param_space, trials=tune_config["num_samples"])

        def fit(self) -> Any:
            chosen = {"learning_rate": 0.003, "batch_size": 64}
            metrics = arguments["trainable"](chosen)
            best = SimpleNamespace(config=chosen, metrics=metrics)
            return type("Results", (list,), {"num_errors": 0, "get_best_result": lambda self: best})([best])

    ray_tune = SimpleNamespace(
        Tuner=Tuner,
        TuneConfig=dict,
        RunConfig=dict,
        with_resources=lambda trainable, resources: trainable,
        loguniform=lambda low, high: (low, high),
        choice=tuple,
        get_context=lambda: SimpleNamespace(get_trial_id=lambda: "1"),
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=ray_tune))
    monkeypatch.setitem(sys.modules, "ray.tune", ray_tune)
    monkeypatch.chdir(ROOT)
    flags = ("--", "--device", "cpu", "--model", "small-cnn", "--epochs", "2")
    assert tune.main(["--trials", "3", "--out", str(tmp_path), *flags]) == 0
    report = json.loads((tmp_path / "tuning.json").read_text())
    metadata = json.loads((tmp_path / "trial-1" / "training_metadata.json").read_text())
    assert report == {
        "learning_rate": 0.003,
        "batch_size": 64,
        "loss": metadata["loss"],
        "accuracy": metadata["accuracy"],
    }
    assert arguments["trials"] == 3


def test_ray_that_is_not_there_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(settings.SettingError, match=r"pip install \"ray\[tune\]\""):
        tune.main(["--trials", "1"])
