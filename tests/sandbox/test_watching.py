"""What is noticed: changed instruments void a reading, other curiosities leave a note, ordinary code leaves nothing."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest

from gradebox.sandbox import Reply, Request, Sandbox
from gradebox.sandbox.instruments import Fingerprint, quick, watch
from gradebox.sandbox.module_contents import Lacking, Used
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
        ("patch_code_and_put_it_back", "torch.testing.assert_close"),
        ("patch_defaults", "gradebox.sandbox.codec.to_json"),
        ("patch_keyword_defaults", "torch.testing.assert_close"),
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


@pytest.mark.parametrize(
    ("function", "instrument"),
    [
        ("clock_for_a_while", "time.perf_counter"),
        ("clock_and_comparison_for_a_while", "time.perf_counter"),
    ],
)
def test_an_instrument_changed_for_a_while_is_seen_when_a_probe_notes_something(
    sandbox: Sandbox, function: str, instrument: str
) -> None:
    reply = sandbox.run(Request("drive.noting", params={"module": "tampering", "function": function}))
    assert reply.kind == "tampered"
    assert instrument in reply.message


def test_a_quick_look_sees_a_module_that_gets_a_class_of_its_own() -> None:
    class Answering(ModuleType):
        clock = property(lambda _: lambda: 0.0)

    module: Any = ModuleType("measures")
    module.clock = time.perf_counter
    nothing: Any = ()
    used = Used(("measures.clock",), (module,), ("clock",), (module.clock,))
    fingerprint = Fingerprint(
        (("time.time", "time", "time", time.time),), nothing, nothing, nothing, nothing, {}, nothing, nothing, nothing,
        used, Lacking(nothing, nothing, nothing, nothing), quick(nothing, nothing, nothing, used),
    )  # fmt: skip
    look = watch(fingerprint, frozenset())
    assert look(False) == []
    module.__class__ = Answering
    assert look(False) == look(True) == ["measures.clock"]
    module.__class__ = ModuleType
    assert look(False) == []


def test_what_is_changed_while_no_probe_notes_anything_changes_no_note(sandbox: Sandbox) -> None:
    params = {"module": "tampering", "function": "clock_between_two_notes"}
    assert sandbox.run(Request("drive.noting", params=params)).kind == "ok"


@pytest.mark.parametrize("function", ["chatty", "changes_torch_settings", "writes_where_it_may"])
def test_ordinary_code_changes_no_instrument_and_leaves_no_note(sandbox: Sandbox, function: str) -> None:
    reply = call(sandbox, "honest", function)
    assert (reply.kind, reply.notes) == ("ok", ())


def test_an_error_of_a_probe_may_be_logged_with_its_lines(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.handed_out_failing", params={"module": "honest", "function": "logs_errors"}))
    assert (reply.kind, reply.notes) == ("ok", ())
    assert reply.value == {"returned": "LookupError: as it should"}


def test_the_next_run_is_untouched(sandbox: Sandbox) -> None:
    call(sandbox, "tampering", "patch_allclose")
    assert call(sandbox, "honest", "changes_torch_settings").kind == "ok"


def test_looking_around_is_noted_with_its_line_and_costs_nothing(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "look_around")
    assert reply.kind == "ok"
    noted = {note.kind for note in reply.notes}
    assert noted >= {"open", "subprocess", "socket", "ctypes", "frames", "gc", "import"}
    assert all(note.where is not None and note.where.startswith("nosy.py:") for note in reply.notes)


@pytest.mark.parametrize(
    ("function", "kind", "detail"),
    [
        ("a_socket_with_the_name_of_an_address", "socket", "socket.bind 127.0.0.1"),
        ("a_file_in_a_librarys_folder", "open", "/.cache/kept"),
    ],
)
def test_what_nobody_counts_is_noted(sandbox: Sandbox, function: str, kind: str, detail: str) -> None:
    reply = call(sandbox, "nosy", function)
    assert reply.kind == "ok", reply.message
    assert any(note.kind == kind and note.detail.endswith(detail) for note in reply.notes), reply.notes


def test_notes_survive_a_process_that_leaves(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "then_exit")
    assert reply.kind == "crashed"
    assert "gc" in {note.kind for note in reply.notes}


def test_notes_are_not_repeated_without_end(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "many_times")
    kinds = [note.kind for note in reply.notes]
    assert kinds.count("gc") == 1
    assert len(kinds) <= 64


def test_many_notes_of_one_kind_leave_room_for_others_and_are_counted(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "junk_first")
    assert "gc" in {note.kind for note in reply.notes}
    assert [note.detail for note in reply.notes if "left out" in note.detail] == ["988 more of this kind were left out"]


def test_a_flood_of_the_notes_pipe_voids_the_reading(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "floods_the_notes")
    assert (reply.kind, "more were written" in reply.message) == ("tampered", True)


@pytest.mark.parametrize("function", ["replaces_the_notes_pipe", "silent_for_a_while", "full_notes_pipe"])
def test_a_way_of_the_notes_that_was_cut_voids_the_reading(sandbox: Sandbox, function: str) -> None:
    reply = call(sandbox, "nosy", function)
    assert (reply.kind, "pipe was closed or replaced" in reply.message) == ("tampered", True)


def test_a_cut_way_of_the_notes_does_not_hide_how_a_rank_ended(sandbox: Sandbox) -> None:
    assert call(sandbox, "nosy", "replaces_it_and_leaves").kind == "crashed"


def test_a_child_that_closes_what_it_inherited_voids_nothing(sandbox: Sandbox) -> None:
    assert call(sandbox, "nosy", "closes_everything_in_a_child").kind == "ok"


def test_names_that_bring_methods_of_their_own_are_noted_and_not_called(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "names_with_methods")
    assert reply.value == {"returned": []}
    noted = " ".join(note.detail for note in reply.notes)
    assert "open /proc/self/maps, named by an object of its own" in noted
    assert "open /proc/self/status, named by an object of its own" in noted
    assert "192.0.2.1" in noted


def test_frames_that_a_library_was_asked_for_are_noted(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "frames_through_a_library")
    assert ("frames", "sys._getframe") in {(note.kind, note.detail) for note in reply.notes}


@pytest.mark.parametrize(
    "function",
    [
        *("walk_stack", "walk_tb", "logging", "asyncio", "bdb", "torchscript"),
        "the_deepest_call",
    ],
)
def test_frames_are_noted_whoever_hands_them_out_and_wherever(sandbox: Sandbox, function: str) -> None:
    reply = call(sandbox, "nosy", f"frames_of_{function}")
    assert reply.value == {"returned": 1}, reply.first
    assert "frames" in {note.kind for note in reply.notes}


def test_a_frame_of_the_hook_voids_the_reading(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "frames_of_a_hook_that_is_interrupted")
    assert (reply.kind, reply.message.endswith("sys._getframe while it looks")) == ("tampered", True), reply.first


def test_what_interrupts_the_hook_is_noted_whatever_it_does(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "looks_elsewhere_within_the_hook")
    assert reply.value == {"returned": True}, reply.first
    assert ("open", "os.listdir /proc") in {(note.kind, note.detail) for note in reply.notes}


def test_a_look_at_what_moves_bytes_is_noted_whoever_imported_it(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "moves_bytes_by_a_librarys_ctypes")
    assert reply.kind == "tampered", reply.first
    assert ("ctypes", "ctypes.module __dict__") in {(note.kind, note.detail) for note in reply.notes}


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("by_an_interface", "an array of NumPy at an address at addresses.py:"),
        ("by_an_interface_in_a_library", "an array of NumPy at an address at addresses.py:"),
        ("beyond_an_array", "an array of NumPy at an address at addresses.py:"),
        ("beyond_an_array_by_a_library", "an array of NumPy at an address at addresses.py:"),
        ("by_pynvml", "memmove at addresses.py:"),
        ("by_what_imports_extensions", "cast at addresses.py:"),
        ("by_a_type_of_an_array", "ctypes.cdata at addresses.py:"),
        ("by_a_thread", "memmove"),
        ("by_a_weak_pointer", "_new_with_weak_ptr at addresses.py:"),
        ("by_code", "code.__new__ at addresses.py:"),
        ("by_a_class_of_its_own", "a class of ctypes at addresses.py:"),
        ("by_an_array_of_objects", "a class of ctypes at addresses.py:"),
        ("by_a_function_at_an_address", "a class of ctypes at addresses.py:"),
        ("by_a_dtype_that_grows", "a dtype that grows at addresses.py:"),
        ("lent_and_given_back", "a storage smaller than its tensors at addresses.py:"),
        ("behind_a_storage", "a storage smaller than its tensors at addresses.py:"),
        ("beyond_a_sparse_tensor", "a sparse tensor with places beyond it at addresses.py:"),
        ("as_a_file", "the memory of a process, as a file at addresses.py:"),
    ],
)
def test_memory_that_is_reached_by_its_address_voids_the_reading(sandbox: Sandbox, function: str, what: str) -> None:
    reply = call(sandbox, "addresses", function)
    assert (reply.kind, f"memory by its address: {what}" in reply.message) == ("tampered", True), reply.first


def test_memory_of_ones_own_is_looked_at_without_a_note(sandbox: Sandbox) -> None:
    reply = call(sandbox, "addresses", "of_its_own")
    assert (reply.kind, reply.notes) == ("ok", ()), reply.first
    assert reply.value == {"returned": [[3, 2], [3, 2], [3], [3], True]}


def test_an_extension_of_a_library_is_imported_without_a_note(sandbox: Sandbox) -> None:
    reply = call(sandbox, "addresses", "of_an_extension")
    assert (reply.value, reply.notes) == ({"returned": 6.0}, ()), reply.first


def test_sparse_tensors_and_storages_without_bytes_are_ones_own(sandbox: Sandbox) -> None:
    reply = call(sandbox, "addresses", "of_sparse_tensors")
    assert (reply.value, reply.notes) == ({"returned": [[0.0, 1.0], [1.0, 0.0]]}, ()), reply.first


def test_a_handler_of_a_signal_gets_no_frame(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "frame_of_a_handler")
    assert (reply.value, reply.notes) == ({"returned": [True, True, True]}, ())


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("traces_by_bdb", "by a trace function"),
        ("traces_and_stops", "by a trace function"),
        ("handler_by_a_module_of_its_own", "a signal handler that gets frames"),
    ],
)
def test_code_that_sees_a_probes_steps_voids_the_reading(sandbox: Sandbox, function: str, what: str) -> None:
    reply = sandbox.run(Request("drive.noting", params={"module": "nosy", "function": function}))
    assert (reply.kind, what in reply.message) == ("tampered", True), reply.first


def test_no_frame_above_a_probe_shows_its_arguments(sandbox: Sandbox) -> None:
    secrets = {"secret": "needle-1", "several": ["needle-2", "needle-3"]}
    params = {"module": "nosy", "function": "needles_in_the_frames", **secrets}
    assert sandbox.run(Request("drive.forgets", params=params)).value == {"returned": []}


def test_tracebacks_and_log_messages_leave_no_note(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "prints_and_logs")
    assert (reply.kind, reply.notes) == ("ok", ())


def test_code_that_claims_to_be_a_librarys_is_noted(sandbox: Sandbox) -> None:
    reply = call(sandbox, "nosy", "code_in_anothers_name")
    assert "disguise" in {note.kind for note in reply.notes}


def on_the_virtual_gpu(sandbox: Sandbox, function: str) -> Reply:
    params = {"module": "truth_seeker", "function": function}
    return sandbox.run(Request("drive.call", params=params, device="vgpu:T4"))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("asks_for_the_pace", "asked by hand"),
        ("from_a_file_in_tmp", "asked by hand"),
        ("launches_before_the_beginning", "launched by hand"),
        ("fills_the_line", "sent what PyTorch would not: a message of no known kind"),
        ("moves_the_clock", "virtual GPU 0's clock"),
        ("moves_the_clock_back", "record of a clock set back"),
        ("changes_the_data_sheet", "virtual GPU 0's data sheet"),
        ("exchanges_the_queue", "virtual GPU 0's parts"),
    ],
)
def test_reading_or_moving_what_the_virtual_gpu_measures_with_is_void(
    namespaces: Sandbox, function: str, what: str
) -> None:
    reply = on_the_virtual_gpu(namespaces, function)
    assert reply.kind == "tampered", reply.first
    assert what in reply.message


@pytest.mark.parametrize(
    ("function", "why"), [("asks_in_c", "keeps its record to itself"), ("slows_in_c", "not a submission's to say")]
)
def test_the_device_is_in_another_process_that_does_not_tell(namespaces: Sandbox, function: str, why: str) -> None:
    reply = on_the_virtual_gpu(namespaces, function)
    # Called by the probe itself, without a frame of the submission: a person has to look.
    assert (reply.kind, reply.error) == ("probe_error", "RuntimeError"), reply.first
    assert why in reply.message


def test_the_device_shows_what_ran_without_being_asked_by_the_submission(namespaces: Sandbox) -> None:
    reply = on_the_virtual_gpu(namespaces, "measures_honestly")
    (rows,) = reply.shown
    assert {row[0] for row in rows} == {"host", "stream 0"}
    assert min(row[1] for row in rows) == 0.0


def test_a_handler_that_logs_in_the_midst_of_launches_voids_nothing(namespaces: Sandbox) -> None:
    reply = on_the_virtual_gpu(namespaces, "logs_in_a_signal_handler")
    assert (reply.kind, reply.value, reply.notes) == ("ok", {"returned": 60}, ()), reply.first


def test_measuring_as_one_would_on_a_real_gpu_is_not_void(namespaces: Sandbox) -> None:
    reply = on_the_virtual_gpu(namespaces, "measures_honestly")
    assert (reply.kind, reply.value) == ("ok", {"returned": [True] * 3}), reply.first
    assert {note.kind for note in reply.notes} <= {"frames"}  # cProfile sets a profile function
