"""Lab 5's trainer, killed at random moments: it always goes on, and ends with the bits of an uninterrupted run.

`GPULABS_KILLS=20` kills it twenty times instead of three.
"""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("GPULABS_KILLS", "3"))


@pytest.mark.night
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**31)
    done = subprocess.run(
        [sys.executable, "-m", "tests.labkit.killed_runs", str(tmp_path), str(KILLS), str(seed)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["kills"] == KILLS
    assert all(result["same"]), (seed, result)
