"""Renews the pictures of the pages: `make pictures` (NAME=grade for one). Needs Chromium and the extra browser-tests.

grade.png         the page of a grade of Lab 1 with honest mistakes, by the real grader
by-hand.png       the page for grading by hand, in a class of three
vgpu-timeline.png two training steps (`vgpu_timeline.py`)
vgpu-price.png    a training that was recorded, priced on two cards
published.svg     by `python -m benchmarks published`, with its figures
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_SEED = "7"
_RUBRIC = """title = "Report"

[[criterion]]
id = "discussion"
title = "Discussion of the results"
points = 6
lab = 1
start = "full"
about = "Are the numbers explained by what the GPU does?"

[[criterion]]
id = "figures"
title = "Figures"
points = 4
lab = 1
start = "full"
about = "Axes, units, and a caption that says what is to be seen."
"""


_COMMENTS = """[[comment]]
id = "axis"
criterion = "discussion"
text = "no unit on the axis"
points = -1.5

[[comment]]
id = "why"
criterion = "discussion"
text = "says what is faster, and not why"
points = -1
"""
_PROGRAM = """import torch
from torch import nn

layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
model = nn.TransformerEncoder(layer, 12).cuda()
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(16, 512, 1024, device="cuda")
for _ in range(4):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pictures", description="Renews the pictures of the pages.")
    parser.add_argument("name", nargs="?", choices=PICTURES, help="which; without it: all")
    only: str | None = parser.parse_args().name
    for name in [only] if only else PICTURES:
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            PICTURES[name](FOLDER / f"{name}.png", Path(folder))
        print(f"docs/images/{name}.png")
    return 0


def _grade(picture: Path, folder: Path) -> None:
    from tests.scenarios.build import SCENARIOS, load

    # A folder called labs, as a student's is: the page names it.
    submission = load(SCENARIOS / "exploits" / "honest_wrong").build(folder / "labs")
    arguments = [submission.name, "--lab=1", "--device=vgpu", f"--seed={_SEED}", "--report=report"]
    _gpulabs("grade", *arguments, folder=folder)
    with _browser() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 1260})
        page.goto((folder / "report" / "grade.html").as_uri())
        page.screenshot(path=picture)


def _by_hand(picture: Path, folder: Path) -> None:
    for student in ("Ada Lovelace", "Ben Okri", "Cleo Santos"):
        shutil.copytree(ROOT / "solutions" / "lab1_gpu_basics", folder / "class" / student / "lab1_gpu_basics")
    out = folder / "out"
    _gpulabs("class", folder / "class", f"--out={out}", "--lab=1", "--device=vgpu")
    _gpulabs("manual", "init", out)
    (out / "manual_grading" / "rubric.toml").write_text(_RUBRIC, encoding="utf-8")
    (out / "manual_grading" / "comments.toml").write_text(_COMMENTS, encoding="utf-8")
    server = subprocess.Popen(
        [*_COMMAND, "manual", "grade", str(out), "--as", "Ana"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
        with _browser() as browser:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(address)
            page.wait_for_selector(".criterion")
            for key in ("1", "2", "f", "c", "t"):
                page.keyboard.press(key)
            page.keyboard.type("The caption says nothing.")
            page.keyboard.press("Escape")
            page.keyboard.press("f")
            page.wait_for_timeout(1000)
            page.screenshot(path=picture)
    finally:
        server.terminate()
        server.wait()


def _timeline(picture: Path, folder: Path) -> None:
    from vgpu_timeline import Training  # next to this file

    import vgpu

    with vgpu.attach("T4", values=False) as gpu:
        training = Training()
        training.warm_up()
        start = gpu.now()
        training.run()
        gpu.save_picture(picture, start=start)


def _price(picture: Path, folder: Path) -> None:
    recording, train = folder / "run.vgpu", folder / "train.py"
    train.write_text(_PROGRAM, encoding="utf-8")
    program = [sys.executable, "-m", "vgpu"]
    subprocess.run(
        [*program, "record", "-o", str(recording), "--gpu", "H100", "--shapes-only", str(train)],
        cwd=ROOT, check=True,
    )  # fmt: skip
    subprocess.run(
        [*program, "price", str(recording), "--gpu", "A100-80GB,H100", "--picture", str(picture)], cwd=ROOT, check=True
    )


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "grade": _grade,
    "by-hand": _by_hand,
    "vgpu-timeline": _timeline,
    "vgpu-price": _price,
}
_COMMAND = [sys.executable, "-c", "from grader.cli import app; app()"]


def _gpulabs(*arguments: object, folder: Path = ROOT) -> None:
    """Run a command; it may find mistakes or open reviews, which are no failure of the picture."""
    done = subprocess.run(
        [*_COMMAND, *map(str, arguments)], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"gpulabs {arguments[0]} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("Chromium is not on this machine: `apt install chromium` brings it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
