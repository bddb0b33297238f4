"""Make a submission from a scenario folder: the reference, with small edits and files of its own laid over it.

`scenario.toml` may hold `include` (another scenario that goes first), `[[copy]]` (from, to), `[[edit]]` (file, old,
new; `old` must occur exactly once), `[[prepend]]` (file, text), `[[link]]` (path in the submission, to: path in this
repository) and what the scenario expects; every other file of the folder is laid over the reference. `trap` is the
trap of the lesson that a bug stands for. `hangs` names the probes that do not end with it, `cold` says that a bug shows
only in new interpreters, `dear` that it takes long (2: minutes), `charged_once` that no check is charged but those of
`fails`, `kind` what a trick has in common with others.
"""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCENARIOS = Path(__file__).parent


@dataclass(frozen=True)
class Scenario:
    """One submission with a known outcome."""

    name: str
    folder: Path
    table: dict[str, Any]

    @property
    def group(self) -> str:
        """Of which kind it is: `bugs`, `variants`, `undecided`, `exploits`."""
        return self.folder.parent.name

    @property
    def is_honest(self) -> bool:
        """Whether it tries no trick: one of the two that exploits are compared with, or no exploit at all."""
        return self.group != "exploits" or self.name.startswith("honest_")

    @property
    def fails(self) -> list[str]:
        """Checks that must not pass."""
        return list(self.table.get("fails", []))

    @property
    def loses(self) -> set[str]:
        """Criteria that must lose points."""
        return set(self.table.get("loses", []))

    @property
    def trap(self) -> str:
        """The trap of its lab (`docs/labs/`) that a planted bug stands for, in the words of the page."""
        return str(self.table.get("trap", ""))

    @property
    def may_lose(self) -> set[str]:
        """Criteria that may lose points as well, because the mistake shows there too."""
        return set(self.table.get("may_lose", []))

    @property
    def is_charged_once(self) -> bool:
        """Whether no other check may be charged: one cause, one charge."""
        return bool(self.table.get("charged_once", False))

    @property
    def notes(self) -> set[str]:
        """Kinds of integrity notes that must be there."""
        return set(self.table.get("notes", []))

    def build(self, target: Path) -> Path:
        """Write the submission to `target`.

        Raises:
            ValueError: an edit's `old` text is not there exactly once; the reference has changed under the scenario.
        """
        if "include" in self.table:
            load(SCENARIOS / self.table["include"]).build(target)
        else:
            shutil.copytree(ROOT / "solutions", target, ignore=shutil.ignore_patterns("__pycache__"))
        for copy in self.table.get("copy", []):
            shutil.copyfile(target / copy["from"], target / copy["to"])
        for edit in self.table.get("edit", []):
            file = target / edit["file"]
            text = file.read_text(encoding="utf-8")
            if text.count(edit["old"]) != 1:
                raise ValueError(
                    f"{self.folder}: {text.count(edit['old'])} places in {edit['file']} match {edit['old']!r}"
                )
            file.write_text(text.replace(edit["old"], edit["new"]), encoding="utf-8")
        for addition in self.table.get("prepend", []):
            file = target / addition["file"]
            file.write_text(addition["text"] + file.read_text(encoding="utf-8"), encoding="utf-8")
        for link in self.table.get("link", []):
            assert (ROOT / link["to"]).exists(), f"{self.name}: there is no {link['to']} to link to"
            (target / link["path"]).symlink_to(ROOT / link["to"])
        overlay = shutil.ignore_patterns("scenario.toml", "__pycache__")
        shutil.copytree(self.folder, target, ignore=overlay, dirs_exist_ok=True)
        return target


def load(folder: Path) -> Scenario:
    """The scenario in this folder."""
    file = folder / "scenario.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return Scenario(folder.name, folder, table)


def scenarios(group: str) -> list[Scenario]:
    """All scenarios of one folder, `lab1/bugs` or `exploits`, by name."""
    return [load(folder) for folder in sorted((SCENARIOS / group).iterdir()) if folder.is_dir()]
