"""Do two versions of the grader give the same grades? A tool for large rearrangements, not a test.

    python -m tests.scenarios.compare grade new.json [GROUP ...]
    cd OLD && .venv/bin/python NEW/tests/scenarios/compare.py grade old.json [GROUP ...]
    python -m tests.scenarios.compare show old.json new.json

Groups are `reference`, `stubs`, `lab1/bugs`, `lab1/variants` and so on; all without any. `grade` writes every grade
with one seed, without times, digests and paths; an interrupted one goes on where it was. In a checkout from before
`gradebox` it grades as that checkout's own tests do, by `pytest --grade`. With `--replies new.json` the older version
is given the replies that the newer one got (they are written next to its grades), where it asks the same questions:
then minutes do for what takes hours, and compared is all but what runs in the sandbox. `--renamed` is a JSON table of
the names that probes' modules had and have.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SEED = 20260
_WITHOUT = ("seconds", "submission", "submission_sha256", "schema_version", "isolation", "blocked_by", "exit_code")
"""Fields of a grade that two versions need not have in common."""
_SUMS = ("score", "passed", "points")
"""Fields that say nothing where only some checks were asked; the outcome of each does."""
_PATHS = re.compile(r"/[\w./-]*/(?=labs/)|/(?:tmp|var/tmp|root|proc)/[\w./-]*")
_PROBES = re.compile(r"[\w.]+(?= (?:ended as|itself failed))")
_BLOCKED = re.compile(r"blocked by '.*' \(([\w.]+)\):")
_TIMES = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)? ?(?:s|ms|us|µs)\b")

Grade = Callable[[str, Any, str], dict[str, Any]]
"""Grades a scenario (None: the stubs), which has a name, with these labs."""
if not __package__:  # run as a file: `tests` and `grader` are those of the folder that this is started in
    sys.path[0] = str(Path.cwd())
IS_NEW = Path("gradebox").is_dir()  # of this folder, whatever is installed


def plain(value: Any, checks: Collection[str] | None = None) -> Any:
    """What of a grade document two versions must have in common; of checks, those that were asked."""
    if isinstance(value, dict):
        return {key: plain(_chosen(key, inner, checks), checks) for key, inner in value.items() if _counts(key, checks)}
    if isinstance(value, list):
        return [plain(inner, checks) for inner in value]
    return _PATHS.sub("", value) if isinstance(value, str) else value


def _chosen(key: str, value: Any, checks: Collection[str] | None) -> Any:
    if key not in ("checks", "integrity") or checks is None:
        return value
    return [entry for entry in value if entry["id" if key == "checks" else "check"] in checks]


def _counts(key: str, checks: Collection[str] | None) -> bool:
    return key not in _WITHOUT and not (checks is not None and key in _SUMS)


def groups() -> list[str]:
    return ["reference", "stubs", *(f"lab{lab}/{kind}" for lab in range(1, 6) for kind in ("variants", "bugs"))]


def todo(chosen: list[str]) -> Iterator[tuple[str, Any, str]]:
    """Name, scenario and labs of each grading."""
    build = importlib.import_module("tests.scenarios.build")
    for group in chosen or groups():
        if group in ("reference", "stubs"):
            reference = build.load(build.SCENARIOS / "exploits" / "honest_right")
            for lab in "12345":
                yield f"{group}/lab{lab}", reference if group == "reference" else None, lab
        else:
            yield from ((f"{group}/{scenario.name}", scenario, group[3]) for scenario in build.scenarios(group))


def question(request: Any, renamed: dict[str, str]) -> str:
    """The same for the same question in both versions."""
    arrays = {name: [str(array.dtype), array.shape, array.tobytes().hex()] for name, array in request.tensors.items()}
    module, _, function = request.probe.rpartition(".")
    parts = [f"{renamed.get(module, module)}.{function}", dict(request.params), arrays]
    parts += [request.ranks, request.device, request.values, request.student]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def place(out: Path, key: str, digest: str) -> Path:
    """Where the reply to a question in a grading is written; without a grading's name it is the same in all."""
    return Path(f"{out}.replies", hashlib.sha256(f"{key} {digest}".encode()).hexdigest())


def grade(out: Path, chosen: list[str], replies: Path | None, renamed: dict[str, str]) -> None:
    """Grade with the checkout that `tests` and `grader` are imported from, and write what came out."""
    done: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        run = _newer(Path(name), out) if IS_NEW else _older(Path(name), replies, renamed)
        for key, scenario, labs in todo(chosen):
            if key in done:
                continue
            try:
                done[key] = run(key, scenario, labs)
            except Exception as error:  # of one; the others can be compared
                print(f"{key}: {type(error).__name__}: {error}", flush=True)
                continue
            new = out.with_suffix(".new")
            new.write_text(json.dumps(done, indent=1))
            new.replace(out)
            print(len(done), key, flush=True)


def _newer(folder: Path, out: Path) -> Grade:
    """Grades with `gradebox`; replies are written next to the grades."""
    from gradebox.report.document import to_document
    from tests.scenarios import ours, store
    from tests.scenarios.build import ROOT
    from tests.scenarios.grading import Bench

    kept = store.Store(ROOT / "build" / "replies")
    ours.load(kept.folder / "read.json")
    bench = Bench(folder / "student", kept, SEED)
    atexit.register(bench.__exit__)
    asking, real = bench.asking, bench.asking.run
    Path(f"{out}.replies").mkdir(parents=True, exist_ok=True)
    now = [""]

    def noting(request: Any) -> Any:
        reply = real(request)
        place(out, now[0] if request.student else "", question(request, {})).write_bytes(store.encode(reply))
        return reply

    asking.run = noting  # type: ignore[method-assign]

    def run(key: str, scenario: Any, labs: str) -> dict[str, Any]:
        now[0] = key
        if scenario is None:
            graded = bench.grade_folder(ROOT / "labs", labs)
        else:
            graded = bench.grade(scenario, labs, own_checks_only=scenario.group == "bugs")
        return {"asked": sorted(graded.asked), "grade": plain(to_document(graded.grade), graded.asked)}

    return run


def _older(folder: Path, replies: Path | None, renamed: dict[str, str]) -> Grade:
    """Grades by `pytest --grade`, in this process."""
    import pytest

    module = importlib.import_module
    configuration, sandbox = module("grader.configuration"), module("grader.sandbox")
    grading, root = module("tests.scenarios.grading"), module("tests.scenarios.build").ROOT
    sys.path.append(str(HERE.parents[2]))
    spec = importlib.util.spec_from_file_location("newer_store", HERE.with_name("store.py"))
    assert spec is not None
    assert spec.loader is not None
    store = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = store
    spec.loader.exec_module(store)
    bench = grading.Bench(folder / "student")
    atexit.register(bench.sandbox.close)
    newer = json.loads(replies.read_text()) if replies else {}

    class Telling:
        """The sandbox, whose replies are those that the newer version got."""

        def __init__(self, key: str) -> None:
            self.key = key

        def run(self, request: Any) -> Any:
            if replies is None:
                return bench.sandbox.run(request)
            file = place(replies, self.key if request.student else "", question(request, renamed))
            if not file.is_file():
                raise sandbox.SandboxError(f"the newer version did not ask {request.probe}")
            kept = store.decode(file.read_bytes())
            ranks = tuple(sandbox.RankReply(**vars(rank)) for rank in kept.ranks)
            return sandbox.Reply(
                kept.kind, ranks, kept.seconds, tuple(sandbox.Note(**vars(note)) for note in kept.notes)
            )

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.sandbox, name)

    def run(key: str, scenario: Any, labs: str) -> dict[str, Any]:
        if scenario is None:
            shutil.rmtree(bench.folder)
            shutil.copytree(root / "labs", bench.folder, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            grading.rebuild(scenario, bench.folder)
        report, printed = folder / "report", io.StringIO()
        shutil.rmtree(report, ignore_errors=True)
        arguments = [*configuration.own_configuration(), "--grade", f"--submission={bench.folder}", "--device=vgpu"]
        arguments += [f"--grade-report={report}", f"--lab={labs}", f"--grade-seed={SEED}"]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            pytest.main(arguments, [grading.Keeper(Telling(key))])
        file = report / "grade.json"
        if not file.is_file():
            raise RuntimeError(printed.getvalue()[-2000:])
        document = json.loads(file.read_text())
        names = newer[key]["asked"] if key in newer else None
        return {"asked": names, "grade": plain(document, names)}

    return run


def show(earlier: Path, later: Path) -> int:
    """Print what differs; the number of gradings that do."""
    before, after = (json.loads(path.read_text()) for path in (earlier, later))
    both = [key for key in before if key in after]
    wrong = 0
    for key in both:
        names = before[key]["asked"] or after[key]["asked"]  # an older version without the newer one's replies asks all
        lines = list(differences(*(_said(plain(file[key]["grade"], names)) for file in (before, after))))
        wrong += bool(lines)
        print(*(f"{key}: {line}" for line in lines), sep="\n", end="\n" * bool(lines))
    checks = sum(len(after[key]["asked"]) for key in both)
    alone = len(before) + len(after) - 2 * len(both)
    print(f"{len(both)} gradings with {checks} checks compared, {wrong} differ; {alone} are in one file only")
    return wrong


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Places at which two documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name), after.get(name), f"{where}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for left, right in zip(before, after, strict=True):
            name = left.get("id", "") if isinstance(left, dict) else ""
            yield from differences(left, right, f"{where}[{name}]")
    elif before != after:
        yield f"{where}: {before!r} is now {after!r}"


def _said(value: Any) -> Any:
    """The same without titles (which are newer), what probes are called and how long something took."""
    if isinstance(value, dict):
        return {key: _said(inner) for key, inner in value.items() if key != "title"}
    if isinstance(value, list):
        return [_said(inner) for inner in value]
    if not isinstance(value, str):
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return _TIMES.sub("some time", _PROBES.sub("a probe", _BLOCKED.sub(r"blocked by \1:", value)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grade", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("more", nargs="*", help="groups to grade, or the file to compare with")
    parser.add_argument("--replies", type=Path, help="the newer version's grades")
    parser.add_argument("--renamed", type=Path, help="probes' names: {before: now}")
    options = parser.parse_args()
    renamed = json.loads(options.renamed.read_text()) if options.renamed else {}
    if options.what == "show":
        sys.exit(min(1, show(options.file, Path(options.more[0]))))
    grade(options.file, options.more, options.replies, renamed)


if __name__ == "__main__":
    main()
