"""Tests that take long run in turns, and none is forgotten (`tests/shares.py`)."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import shares

ROOT = Path(shares.LIST).parents[1]


def test_all_shares_together_run_every_test() -> None:
    parts = [shares.left_out(share) for share in range(shares.SHARES)]
    assert frozenset.intersection(*parts) == frozenset()
    assert frozenset.union(*parts) | {one for one in shares.slow() if one.startswith(shares.ALWAYS)} == set(
        shares.slow()
    )


def test_a_share_runs_its_own_and_what_always_runs() -> None:
    always = {name for name in shares.slow() if name.startswith(shares.ALWAYS)}
    for share in range(shares.SHARES):
        runs = set(shares.slow()) - shares.left_out(share)
        assert always < runs
        mean = len(shares.slow()) // shares.SHARES
        assert len(runs - always) in range(mean - len(always), mean + 2)


def test_the_commit_decides_and_each_share_has_its_turn() -> None:
    assert {shares.share_of(f"{number:08x}{'0' * 32}") for number in range(8)} == set(range(shares.SHARES))
    assert shares.share_of("") == 0


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_what_is_named_is_there() -> None:
    """A test that was renamed would run with every commit, and one that always has to, in turns."""
    for name in shares.slow():
        file, _, rest = name.partition("::")
        assert rest.rpartition("::")[2].partition("[")[0] in _functions(file), name
    for beginning in shares.ALWAYS:
        assert any(name.startswith(beginning) for name in shares.slow()), beginning


@pytest.mark.parametrize(("share", "ran"), [("1", 1), ("2", 2), ("all", 2)])
def test_a_run_leaves_out_what_is_another_ones(tmp_path: Path, share: str, ran: int) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    (tests / "shares.py").write_text(Path(shares.__file__).read_text())
    (tests / "slow.txt").write_text("9.0 tests/test_two.py::test_gone\n8.0 tests/test_two.py::test_slow\n")
    (tests / "test_two.py").write_text("def test_quick(): pass\ndef test_slow(): pass\n")
    (tests / "conftest.py").write_text(
        "from tests import shares\n"
        "def pytest_addoption(parser): parser.addoption('--share')\n"
        "def pytest_collection_modifyitems(config, items): shares.deselect(config, items)\n"
        "def pytest_report_header(config): return shares.described(config.option.share)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--share", share]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{ran} passed" in done.stdout, done.stdout
    assert f"slow tests: {'all' if share == 'all' else f'share {share} of {shares.SHARES}'}" in done.stdout


def test_the_list_is_written_from_what_pytest_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LIST", tmp_path / "slow.txt")
    log = (
        "0.60s setup    tests/a.py::test_one[x y]\n0.50s call     tests/a.py::test_one[x y]\n"
        "0.90s call     tests/a.py::test_two\n12.00s call     tests/b.py::test_three\n3 passed in 14.00s\n"
    )
    assert shares.write(log) == 2
    assert shares.slow() == ["tests/b.py::test_three", "tests/a.py::test_one[x y]"]
