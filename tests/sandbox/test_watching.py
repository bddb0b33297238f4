"""What is noticed: changed instruments void a reading, other curiosities leave a note, ordinary code leaves nothing."""

from __future__ import annotations

import pytest

from grader.sandbox import Sandbox
from tests.sandbox.sandbox_runs import call


@pytest.mark.parametrize(
    ("function", "instrument"),
    [
        ("patch_clock", "time.perf_counter"),
        ("patch_allclose", "torch.allclose"),
        ("patch_assert_close", "torch.testing.assert_close"),
        ("patch_synchronize", "torch.cuda.synchronize"),
        ("patch_event_method", "torch.cuda.Event"),
        ("patch_json", "json.dumps"),
        ("patch_code_object", "torch.testing.assert_close"),
        ("patch_the_sandbox", "the sandbox's own code"),
        ("patch_then_raise", "time.time"),
        ("patch_the_comparison", "the sandbox's own code"),
        ("patch_the_comparisons_code", "the sandbox's own code"),
        ("patch_builtins", "builtins"),
    ],
)
def test_a_changed_instrument_voids_the_reading(sandbox: Sandbox, function: str, instrument: str) -> None:
    reply = call(sandbox, "tampering", function)
    assert reply.kind == "tampered"
    assert instrument in reply.message
    assert "tampering" in {note.kind for note in reply.notes}


@pytest.mark.parametrize("function", ["chatty", "changes_torch_settings", "writes_where_it_may"])
def test_ordinary_code_changes_no_instrument_and_leaves_no_note(sandbox: Sandbox, function: str) -> None:
    reply = call(sandbox, "honest", function)
    assert (reply.kind, reply.notes) == ("ok", ())


def test_the_next_run_is_untouched(sandbox: Sandbox) -> None:
    call(sandbox, "tampering", "patch_allclose")
    assert call(sandbox, "honest", "changes_torch_settings").kind == "ok"


def test_looking_around_is_noted_with_its_line_and_costs_nothing(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "look_around")
    assert reply.kind == "ok"
    noted = {note.kind for note in reply.notes}
    assert noted >= {"open", "subprocess", "socket", "ctypes", "frames", "gc", "import"}
    assert all(note.where is not None and note.where.startswith("nosy.py:") for note in reply.notes)


def test_notes_survive_a_process_that_leaves(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "then_exit")
    assert reply.kind == "crashed"
    assert "gc" in {note.kind for note in reply.notes}


def test_notes_are_not_repeated_without_end(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "many_times")
    kinds = [note.kind for note in reply.notes]
    assert kinds.count("gc") == 1
    assert len(kinds) <= 64
