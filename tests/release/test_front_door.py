"""What somebody who comes to the repository finds: the README, how to report and to join, and how a release is made."""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from grader import figures_table
from tests.deploy.conftest import tool

ROOT = Path(__file__).parents[2]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MOST_WORDS = 700


def _release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("project_release", ROOT / "packaging" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_figures_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bugs = [
        {"kind": "bugs", "lost": {"lab1.basics": 1}},
        {"kind": "bugs", "lost": {}},
        {"kind": "variants", "lost": {}},
    ]
    results = {
        "grade_cost": {"machine": {"cores": 3}, "all_labs": {"wall_seconds": {"median": 12.3}}},
        "planted_bugs": {"rows": bugs},
        "published": {"figures": {"a": {"ratio": 0.9}, "b": {"ratio": 1.2}, "c": {"ratio": 1.0}}},
    }
    for name, recorded in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(figures_table, "_RESULTS", tmp_path)
    page = figures_table.with_figures("<!-- figures -->\nold\n<!-- end of figures -->\n")
    assert "12 seconds on 3 cores" in page
    assert "notices 1 of 2 planted bugs " in page
    assert "by 11 % (median of 3;" in page  # 0.9 times and 1.11 times are equally wrong
    assert "old" not in page


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.citation-file-format", ROOT / "CITATION.cff"),
        ("vendor.github-issue-config", ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"),
        *(("vendor.github-issue-forms", form) for form in FORMS),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_published_schema_accepts_it(schema: str, file: Path) -> None:
    program = tool("check-jsonschema", brings="pip install check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", schema, "--default-filetype", "yaml", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_citation_has_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(r"(?m)^version: (.+)$", (ROOT / "CITATION.cff").read_text()) == [version]


def test_the_dev_container_runs_commands_that_are_there() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    targets = re.findall(r"^([a-z-]+)(?: test-all)?:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    make, target = container["postCreateCommand"].split()
    assert (make, target in targets) == ("make", True)
    for page in container["customizations"]["codespaces"]["openFiles"]:
        assert (ROOT / page).is_file()


def test_before_each_commit_runs_what_continuous_integration_runs_first() -> None:
    yaml = pytest.importorskip("yaml")
    makefile = (ROOT / "Makefile").read_text()
    hooks = {
        hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    }
    assert (hooks["lint"]["entry"], hooks["lint"]["always_run"]) == ("make lint", True)
    before, tests = (
        re.findall(rf"\n{name}: .*\n\t@.* --jobs 2 (.*)", makefile)[0].split() for name in ("lint", "test")
    )
    assert set(before) <= set(tests), "`make test` runs all of it"
    assert set(re.findall(r"(?m)^(lint-[a-z]+):", makefile)) == set(before)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (f"{'x' * 72}\n\n{'a reason ' * 20}\n", 0),
        (f"{'x' * 73}\n", 1),
        (f"# a comment of Git's, which is longer than {'x' * 72}\n\nShort\n", 0),
        (f"\n{'ä' * 72}\n", 0),
    ],
)
def test_a_commit_has_a_short_subject(message: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "message").write_text(message, encoding="utf-8")
    yaml = pytest.importorskip("yaml")
    hook = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"][1]
    assert hook["stages"] == ["commit-msg"]
    done = subprocess.run([ROOT / hook["entry"], tmp_path / "message"], capture_output=True, text=True, check=False)
    assert (done.returncode, "at most 72" in done.stderr) == (code, bool(code))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project of which one version can be released."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    course = tmp_path / "packaging" / "gpu-computing-labs" / "pyproject.toml"
    course.parent.mkdir(parents=True)
    course.write_text('dependencies = ["vgpu[nvml,pictures]==0.1.0", "gradebox[pytest]==0.1.0", "other==0.1.0"]\n')
    (tmp_path / "CITATION.cff").write_text("title: a course\nversion: 0.1.0\ndate-released: 2029-01-01\n")
    for file in (tmp_path / "CHANGELOG.md", tmp_path / "packaging" / "vgpu" / "CHANGELOG.md"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# Changes\n\n## Not released yet\n\n- Something is better.\n")
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    _git(tmp_path, "config", "user.email", "maintainers@example.org")
    _git(tmp_path, "config", "user.name", "Maintainers")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "-m", "Begin")
    return tmp_path


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


DAY = datetime.date(2030, 1, 2)


def test_a_release_sets_the_version_everywhere_and_tags_it(checkout: Path) -> None:
    built: list[str] = []
    said = _release().release("1.0.0", checkout, lambda: built.append((checkout / "pyproject.toml").read_text()), DAY)
    assert built == ['[project]\nversion = "1.0.0"\n'], "what is built has the new version"
    assert (checkout / "CITATION.cff").read_text() == "title: a course\nversion: 1.0.0\ndate-released: 2030-01-02\n"
    for file in (checkout / "CHANGELOG.md", checkout / "packaging" / "vgpu" / "CHANGELOG.md"):
        assert "## Not released yet\n\n## 1.0.0 (2030-01-02)\n\n- Something is better." in file.read_text()
    assert (_git(checkout, "tag"), _git(checkout, "status", "--porcelain")) == ("v1.0.0", "")
    course = (checkout / "packaging" / "gpu-computing-labs" / "pyproject.toml").read_text()
    assert course == 'dependencies = ["vgpu[nvml,pictures]==1.0.0", "gradebox[pytest]==1.0.0", "other==0.1.0"]\n'
    assert "git push" in said


def test_every_version_of_this_checkout_is_set_by_a_release(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CITATION.cff", "packaging/gpu-computing-labs/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in ("CHANGELOG.md", "packaging/vgpu/CHANGELOG.md"):  # right after a release nothing is in ours
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Changes\n\n## Not released yet\n\n- Something is better.\n")
    texts = _release().new_texts("987.6.5", tmp_path, DAY)
    set_ = {str(file.relative_to(tmp_path)): text for file, text in texts.items()}
    assert tomllib.loads(set_["pyproject.toml"])["project"]["version"] == "987.6.5"
    needed = tomllib.loads(set_["packaging/gpu-computing-labs/pyproject.toml"])["project"]["dependencies"]
    parts = [text for text in needed if re.match("vgpu|gradebox", text)]
    assert [text.partition("==")[2] for text in parts] == ["987.6.5"] * 2, "the wheels of a release fit each other"
    assert "\nversion: 987.6.5\n" in set_["CITATION.cff"]


@pytest.mark.parametrize(
    ("version", "spoil", "message"),
    [
        ("1.0", None, "three numbers"),
        ("1.0.0", "note.txt", "commit or stash"),
        ("0.1.0", "tag", "v0.1.0 exists"),
        ("0.0.9", "tag", "not larger than 0.1.0"),
        ("1.0.0", "changelog", "write down what changed"),
    ],
)
def test_what_cannot_be_released_changes_nothing(version: str, spoil: str | None, message: str, checkout: Path) -> None:
    if spoil == "tag":
        _git(checkout, "tag", "v0.1.0")
    elif spoil == "changelog":
        (checkout / "CHANGELOG.md").write_text("# Changes\n\n## Not released yet\n\n## 0.1.0\n\n- The first.\n")
        _git(checkout, "commit", "--quiet", "-am", "Empty it")
    elif spoil:
        (checkout / spoil).touch()
    before = _git(checkout, "rev-parse", "HEAD"), _git(checkout, "status", "--porcelain")
    module = _release()
    with pytest.raises(module.ReleaseError, match=message):
        module.release(version, checkout, lambda: None, DAY)
    assert (_git(checkout, "rev-parse", "HEAD"), _git(checkout, "status", "--porcelain")) == before


def test_a_build_that_edits_a_file_of_the_repository_releases_nothing(checkout: Path) -> None:
    (checkout / "README.md").write_text("a page\n")
    _git(checkout, "add", "README.md")
    _git(checkout, "commit", "--quiet", "-m", "Add a page")
    module = _release()
    with pytest.raises(module.ReleaseError, match=r"commit them first: README\.md"):
        module.release("1.0.0", checkout, lambda: (checkout / "README.md").write_text("a table\n"), DAY)
    assert (_git(checkout, "tag"), _git(checkout, "diff", "--name-only")) == ("", "README.md")


def test_a_build_that_fails_leaves_the_checkout_as_it_was(checkout: Path) -> None:
    def fails() -> None:
        raise RuntimeError("no wheel")

    with pytest.raises(RuntimeError, match="no wheel"):
        _release().release("1.0.0", checkout, fails, DAY)
    assert (_git(checkout, "status", "--porcelain"), _git(checkout, "tag")) == ("", "")
