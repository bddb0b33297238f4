"""Why right solutions leave notes as well: what an instructor should think of before a trick.

Not for what is noted (`gradebox.sandbox.audit`, `gradebox.run.source_scan`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.grade import IntegrityNote

_HARMLESS = {
    "frames": "Right solutions may do this: traceback.print_stack(), a logger and a debugger look at frames.",
    "disguise": "Right solutions may do this: exec and compile turn a text of the same file into code.",
    "gc": "Right solutions may do this: the garbage collector shows what keeps memory.",
    "chance": "Right solutions may do this: a clock limits how long something runs, a date is part of a file's name.",
    "source": "Such a name alone is no trick. Read the line.",
}
"""What to think of first, by the kind of a note."""


def harmless_reasons(notes: Sequence[IntegrityNote]) -> list[tuple[str, str]]:
    """For each kind among these notes that right solutions leave as well, how they come to."""
    kinds = dict.fromkeys(note.kind for note in notes)
    return [(kind, _HARMLESS[kind]) for kind in kinds if kind in _HARMLESS]
