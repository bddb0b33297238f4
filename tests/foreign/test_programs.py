"""Programs of public repositories end as `programs.toml` says: at night, and where there is a mirror of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign import data, harness, mirror


@pytest.mark.night
@pytest.mark.parametrize("program", harness.programs(), ids=lambda program: f"{program.repository}: {program.name}")
def test_it_ends_as_it_should(program: harness.Program) -> None:
    if mirror.mirror() is None and not program.package:
        pytest.skip(f"no mirror of public repositories: {mirror.VARIABLE} names none")
    result = harness.run(program)
    if result.outcome == "skipped":
        pytest.skip(result.detail)
    assert result.outcome == ("refused" if program.refused else "passed"), result.detail


def test_the_list_is_in_order() -> None:
    programs = harness.programs()
    names = [(program.repository, program.name) for program in programs]
    assert len(set(names)) == len(names)
    for program in programs:
        assert bool(program.commit) != bool(program.package)
        assert program.package or (len(program.commit) == 40 and int(program.commit, 16))
        assert set(program.data.values()) <= set(data.MAKERS)


@pytest.mark.parametrize("name", data.MAKERS)
def test_data_are_made_and_the_same_every_time(name: str, tmp_path: Path) -> None:
    contents = []
    for place in ("first", "second"):
        data.MAKERS[name](tmp_path / place / "made")
        files = sorted(path for path in (tmp_path / place).rglob("*") if path.is_file())
        contents.append([(path.relative_to(tmp_path / place), path.read_bytes()) for path in files])
    assert contents[0]
    assert contents[0] == contents[1]


@pytest.mark.night
def test_a_program_that_misbehaves_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(code: str, **more: object) -> tuple[str, str]:
        (tmp_path / "program.py").write_text(code)
        program = harness.Program("x", "a/b", "0" * 40, command=["program.py"], seconds=60, **more)  # type: ignore[arg-type]
        result = harness._judge(program, tmp_path)
        return result.outcome, result.detail

    use = "import torch; x = torch.ones(3, device='cuda' if torch.cuda.is_available() else 'cpu'); x += 1\n"
    assert outcome(use + "print('loss', 1.5)", numbers="loss ") == (
        "passed",
        "numbers behind 'loss ' are those of the CPU",
    )
    assert outcome(use + "print('loss', float('nan'))") == ("failed", "it printed NaN")
    assert outcome(use + "raise ValueError('no')")[1] == "exit code 1: ValueError: no"
    assert outcome(use + "print('loss', 1.5 + x.is_cuda)", numbers="loss ")[0] == "failed"
    assert outcome("print(1)") == ("failed", "it never used the GPU")
    assert outcome(use + "x.__dlpack__()", refused="DLPack") == ("refused", "DLPack")
