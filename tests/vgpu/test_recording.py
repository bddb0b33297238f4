"""A run that is recorded, and replayed: on its own card to the bit, on another as if it had run there."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import vgpu
from vgpu.device.recording.file import Recording, RecordingError, load, save
from vgpu.device.recording.replay import replay
from vgpu.tools.price.command import main as price

CARDS = ("T4", "A100-80GB", "H100")


def _training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(32 * 30 * 30, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        images = torch.randn(32, 3, 32, 32).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def _streams_and_events() -> None:
    side, matrix = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for _ in range(4):
        done = torch.cuda.Event()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            matrix @ matrix
            done.record()
        matrix + 1
        torch.cuda.current_stream().wait_event(done)
        matrix @ matrix
        done.synchronize()
    torch.cuda.synchronize()


def _launches_without_end() -> None:
    matrix = torch.randn(1024, 1024, device="cuda")
    for _ in range(1500):  # more than a queue takes
        matrix = matrix @ matrix


def _loaders() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(64, 256))
    for (rows,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
        (rows.cuda() @ torch.randn(256, 4096, device="cuda")).relu()


def _threads() -> None:
    def work() -> None:
        (torch.randn(2048, 2048, device="cuda") @ torch.randn(2048, 2048, device="cuda")).sum().item()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _two_gpus() -> None:
    first = torch.randn(2048, 2048, device="cuda:0")
    second = first.to("cuda:1")
    (second @ second).to("cuda:0") + (first @ first)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)


def _recorded(card: str, program: Callable[[], None], gpus: int = 1) -> tuple[Recording, list[list[tuple[float, ...]]]]:
    with vgpu.attach(card, values=False, gpus=gpus) as gpu:
        gpu.machine.record()
        program()
        recording = gpu.machine.recording(program.__name__)
        return recording, [[(kernel.start, kernel.seconds) for kernel in each.timeline] for each in gpu.machine.gpus]


def _replayed(recording: Recording, card: str) -> tuple[float, list[list[tuple[float, ...]]]]:
    spec = vgpu.get_spec(card)
    (run,) = replay([recording], spec, vgpu.get_interconnect(spec.interconnect, spec), slow={})
    return run.seconds, [[(kernel.start, kernel.seconds) for kernel in queue.timeline] for queue in run.queues]


PROGRAMS = [(_training, 1), (_streams_and_events, 1), (_launches_without_end, 1), (_loaders, 1), (_threads, 1),
            (_two_gpus, 2)]  # fmt: skip


@pytest.mark.parametrize(("program", "gpus"), PROGRAMS)
def test_on_its_own_card_a_replay_is_the_run(program: Callable[[], None], gpus: int, tmp_path: Path) -> None:
    recording, timelines = _recorded("T4", program, gpus)
    seconds, replayed = _replayed(load(save(recording, tmp_path / "run.vgpu")), "T4")
    # Who is woken between two looks at the turn goes on up to a microsecond later than its caller.
    rounding = 1e-5 if program is _threads else 1e-12
    assert seconds == pytest.approx(recording.seconds, rel=rounding)
    for ours, theirs in zip(replayed, timelines, strict=True):
        assert [kernel[1] for kernel in ours] == [kernel[1] for kernel in theirs]
        assert [kernel[0] for kernel in ours] == pytest.approx(
            [kernel[0] for kernel in theirs], rel=max(rounding, 1e-9)
        )


@pytest.mark.parametrize(("program", "gpus"), PROGRAMS)
def test_on_another_card_a_replay_takes_as_long_as_the_program_there(program: Callable[[], None], gpus: int) -> None:
    runs = {card: _recorded(card, program, gpus)[0] for card in CARDS}
    for recorded in CARDS[:2]:
        for other in CARDS:
            seconds, _ = _replayed(runs[recorded], other)
            # Kernels that a program picks by the card (a convolution's workspace, ...) are those of the recording.
            assert seconds == pytest.approx(runs[other].seconds, rel=0.01), (recorded, other)


def test_recording_changes_no_time() -> None:
    with vgpu.attach("T4", values=False) as gpu:
        _training()
        plain = gpu.now()
    assert _recorded("T4", _training)[0].seconds == plain


def test_a_pace_and_a_link_change_what_they_should() -> None:
    recording, _ = _recorded("A100-80GB", _launches_without_end)
    spec = vgpu.get_spec("A100-80GB")
    link = vgpu.get_interconnect("nvlink3")
    (usual,), (slow,) = (replay([recording], spec, link, pace=pace, slow={}) for pace in (1.0, 1.5))
    assert sum(kernel.seconds for kernel in slow.kernels) == pytest.approx(
        1.5 * sum(kernel.seconds for kernel in usual.kernels)
    )
    two, _ = _recorded("A100-80GB", _two_gpus, 2)
    (near,), (far,) = (replay([two], spec, vgpu.get_interconnect(name), slow={}) for name in ("nvlink3", "pcie3"))
    copies = [sum(kernel.seconds for kernel in run.kernels if "PtoP" in kernel.name) for run in (near, far)]
    assert copies[1] > 5 * copies[0]


def test_fp8_products_cannot_be_priced_where_a_card_has_none() -> None:
    def program() -> None:
        a, b = (torch.randn(512, 512, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device="cuda")
        torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    recording, _ = _recorded("H100", program)
    assert _replayed(recording, "H100")[0] == pytest.approx(recording.seconds)
    with pytest.raises(vgpu.SpecError, match="float8"):
        _replayed(recording, "T4")


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for name, content in (("text", b"x"), ("empty", gzip.compress(b"")), ("other", gzip.compress(b"{}"))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="no recording"):
            load(path)
    damaged = save(_recorded("T4", _launches_without_end)[0], tmp_path / "damaged.vgpu")
    document = json.loads(gzip.decompress(damaged.read_bytes()))
    document["entries"].append(["what nobody knows"])
    damaged.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(RecordingError, match="damaged"):
        load(damaged)
    with pytest.raises(RecordingError, match="no such file"):
        load(tmp_path / "nothing")
    newer = {"format": "vgpu recording", "schema": 99}
    (tmp_path / "newer").write_bytes(gzip.compress(json.dumps(newer).encode()))
    with pytest.raises(RecordingError, match="record it again"):
        load(tmp_path / "newer")
    with pytest.raises(ValueError, match=r"ends in \.vgpu"):
        save(_recorded("T4", _two_gpus, 2)[0], tmp_path / "run.json")


def test_the_command_tells_people_programs_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(_recorded("T4", _training)[0], tmp_path / "run.vgpu")
    picture, written = tmp_path / "two.png", tmp_path / "prices.json"
    arguments = [
        str(path),
        "--gpu",
        "T4,H100",
        "--dollars",
        "H100=3",
        "--json",
        str(written),
        "--picture",
        str(picture),
    ]
    assert price(arguments) == 0
    text = capsys.readouterr().out
    assert "modelled, not measured" in text
    assert "H100" in text
    assert "$" in text
    document = json.loads(written.read_text())
    assert document["simulated"] is True
    assert [entry["gpu"] for entry in document["prices"]] == ["T4", "H100"]
    t4, h100 = document["prices"]
    assert h100["seconds"] > 0
    assert t4["seconds"] == pytest.approx(load(path).seconds)
    assert t4["dollars"] is None
    assert h100["dollars"] == pytest.approx(3 * h100["seconds"] / 3600)
    assert sum(operation["share"] for operation in t4["operations"]) == pytest.approx(1)
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gpu", "X9"], "no GPU named"), (["--slow-rank", "3=2"], "--slow-rank 3"),
        (["--slow-rank", "a"], "expected"), (["--pace", "0"], "above 0"),
        (["--dollars", "H100=3", "--gpu", "T4"], "--dollars H100"),
        (["--picture", "run.txt"], "ends in"), (["--interconnect", "rope"], "no interconnect"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(_recorded("T4", _launches_without_end)[0], tmp_path / "run.vgpu")
    assert price([str(path), *options]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


_JOB = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda())
for _ in range(3):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.night
def test_ranks_wait_for_each_other_again(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB)

    def run(*words: str) -> None:
        command = [sys.executable, "-m", "vgpu", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    run("--gpu", "A100-80GB", "--gpus", "2", "--record", "run.vgpu", "torchrun", "--nproc-per-node", "2", "job.py")
    recordings = [load(tmp_path / f"run.rank{rank}.vgpu") for rank in range(2)]
    spec, link = vgpu.get_spec("A100-80GB"), vgpu.get_interconnect("nvlink3")
    usual = replay(recordings, spec, link, slow={})
    for replayed, recording in zip(usual, recordings, strict=True):
        assert replayed.seconds == pytest.approx(recording.seconds, rel=1e-6)
    slow = replay(recordings, spec, link, slow={1: 20.0})
    alone = replay(recordings[:1], spec, link, slow={})
    assert alone[0].seconds == pytest.approx(usual[0].seconds, rel=1e-6)
    # Rank 0 waits for the slow one in each step.
    assert slow[0].seconds > usual[0].seconds + 0.5 * (slow[1].seconds - usual[1].seconds) > usual[0].seconds
    run("price", "run.vgpu", "--gpu", "T4,H100", "--slow-rank", "1=2")
