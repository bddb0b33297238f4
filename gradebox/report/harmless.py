"""Why right solutions leave notes as well: what an instructor should think of before a trick.

Not for what is noted (`gradebox.sandbox.audit`, `gradebox.run.source_scan`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.grade import IntegrityNote

_HARMLESS = {
    "frames": "Right solutions look at frames, too: traceback.print_stack(), a logger or a debugger does.",
    "disguise": "Right solutions make code at run time, too: exec or compile of a text that stands next to it.",
    "gc": "Right solutions ask the garbage collector, too, to find what keeps memory.",
    "source": "Such a name alone is no trick. Read the line.",
}
"""What to think of first, by the kind of a note."""


def harmless_reasons(notes: Sequence[IntegrityNote]) -> list[tuple[str, str]]:
    """For each kind among these notes that right solutions leave as well, how they come to."""
    kinds = dict.fromkeys(note.kind for note in notes)
    return [(kind, _HARMLESS[kind]) for kind in kinds if kind in _HARMLESS]
