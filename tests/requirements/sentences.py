"""The sentences that bind a student: docstrings of what they write, of the results they fill in, and the hand-out.

Read from `solutions/`, where tasks are marked (`gradebox/authoring/release/stubs.py`); nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gradebox.authoring.release import stubs

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "solutions"
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(*])")
_ENTRY = re.compile(r"[\w*,. `]+: ")
"""How an entry of `Args:` or `Raises:` begins."""
_SECTIONS = {"Args:", "Attributes:", "Raises:", "Returns:", "Yields:"}
_GENERATED = re.compile(r"<!-- checks: .*?<!-- end of checks -->\n", re.DOTALL)
_NOT_BINDING = ("Source:", "Run:")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def of_lab(package: str, also: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Where the sentences stand, and the sentences: `amp_training.train_with_amp`, `README: Task 2.1`.

    Args:
        package: the lab's folder in `solutions/`.
        also: classes and functions elsewhere whose docstrings bind, too: `labkit/results/lab2.py:AmpTraining`.
    """
    folder = SOLUTIONS / package
    by_place: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        by_place |= {f"{module}.{name}": texts for name, texts in _tasks(file.read_text(encoding="utf-8"), file)}
    for entry in also:
        name, _, definition = entry.partition(":")
        by_place[definition] = _definition(ROOT / name, definition)
    hand_out = (folder / "README.md").read_text(encoding="utf-8")
    for title, text in _sections(_GENERATED.sub("", hand_out)):
        if sentences := list(_of_text(text)):
            by_place[f"README: {title}"] = sentences
    return by_place


def _tasks(source: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    """Each function and class of which a student writes something, and its sentences."""
    starts = [region.start + 1 for region in stubs.regions(source.splitlines(), file) if region.task]
    for name, node in _definitions(ast.parse(source)):
        if any(node.lineno <= line <= (node.end_lineno or 0) for line in starts) and (text := ast.get_docstring(node)):
            yield name, list(_of_text(text))


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, f"{prefix}{child.name}.")


def _definition(file: Path, definition: str) -> list[str]:
    """The sentences of one definition, with those that stand below the fields of a class."""
    for name, node in _definitions(ast.parse(file.read_text(encoding="utf-8"))):
        if name == definition:
            texts = [ast.get_docstring(node) or ""]
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    texts.append(f"{ast.unparse(field.target)}: {ast.literal_eval(text.value)}")
            return [sentence for text in texts for sentence in _of_text(text)]
    raise ValueError(f"{file} has no {definition}")


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Headings of a page, without their punctuation, and what stands below each."""
    title = "the lab"
    for part in re.split(r"^(#+ .*)$", text, flags=re.MULTILINE):
        if part.startswith("#"):
            title = part.lstrip("# ").split(":")[0] if part.startswith("## Task") else part.lstrip("# ")
        else:
            yield title, part


def _of_text(text: str) -> Iterator[str]:
    """Sentences, each in one line. Code, tables and where something is from are left out."""
    for block in _blocks(text):
        yield from _SENTENCE_ENDS.split(block)


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and entries of `Args:`, each in one line."""
    block: list[str] = []
    entries, code = 0, False
    for line in [*text.expandtabs().splitlines(), ""]:
        word, indent = line.strip(), len(line) - len(line.lstrip())
        fenced = word.startswith("```")
        code ^= fenced
        new = (
            not word
            or word in _SECTIONS
            or re.match(r"(?:[-*]|\d+\.) ", word)
            or (entries and indent == entries and _ENTRY.match(word))
        )
        if new and block:
            if not block[0].startswith(_NOT_BINDING):
                yield " ".join(block)
            block = []
        if word in _SECTIONS:
            entries = indent + 4
        elif not indent and word:
            entries = 0
        if word and word not in _SECTIONS and not fenced and not code and not word.startswith("|"):
            if not block and indent >= 4 and not entries and not re.match(r"(?:[-*]|\d+\.) ", word):
                continue  # an example in a page
            block.append(re.sub(r"^(?:[-*]|\d+\.) ", "", word))
