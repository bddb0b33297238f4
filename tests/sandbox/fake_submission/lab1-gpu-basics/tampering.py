"""Attacks on what the probe measures with."""

import json
import sys
import time

import torch


def patch_clock():
    time.perf_counter = lambda: 0.0
    return 1


def patch_allclose():
    torch.allclose = lambda *a, **k: True
    return 1


def patch_assert_close():
    torch.testing.assert_close = lambda *a, **k: None
    return 1


def patch_synchronize():
    torch.cuda.synchronize = lambda *a: None
    return 1


def patch_event_method():
    torch.cuda.Event.elapsed_time = lambda *a: 1.0
    return 1


def patch_json():
    json.dumps = lambda *a, **k: "{}"
    return 1


def patch_code_object():
    def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
        return True

    torch.testing.assert_close.__code__ = allclose.__code__
    return 1


def patch_code_and_put_it_back():
    """Nothing is left of it when all is over."""

    def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
        return True

    own = torch.testing.assert_close.__code__
    torch.testing.assert_close.__code__ = allclose.__code__
    torch.testing.assert_close.__code__ = own
    return 1


def patch_defaults():
    _namespace("codec")["to_json"].__defaults__ = (None, "", 1000)
    return 1


def patch_keyword_defaults():
    torch.testing.assert_close.__kwdefaults__["rtol"] = 1e9
    return 1


def patch_the_sandbox():
    _namespace("codec")["dump_json"] = lambda value: b"{}"
    return 1


def _namespace(name):
    """The sandbox is not in `sys.modules`, but the frames that called us lead to it."""
    frame = sys._getframe()
    while frame.f_globals["__name__"] != "gradebox.sandbox.worker":
        frame = frame.f_back
    return vars(frame.f_globals[name])


def patch_the_comparison():
    _namespace("instruments")["_same"] = lambda before, now: True
    time.perf_counter = lambda: 0.0
    return 1


def patch_the_comparisons_code():
    _namespace("instruments")["changed"].__code__ = (lambda *a, **k: []).__code__
    time.perf_counter = lambda: 0.0
    return 1


def patch_builtins():
    import builtins

    builtins.all = lambda values: True
    time.perf_counter = lambda: 0.0
    return 1


def patch_then_raise():
    time.time = lambda: 0.0
    raise ValueError("hiding behind an error")


def clock_for_a_while(note):
    kept = time.perf_counter
    time.perf_counter = lambda: 0.0
    try:
        note()
    finally:
        time.perf_counter = kept


def clock_and_comparison_for_a_while(note):
    import builtins

    kept = builtins.all, builtins.map, builtins.any
    builtins.all, builtins.any, builtins.map = (lambda *_: True), (lambda *_: True), (lambda *_: ())
    try:
        clock_for_a_while(note)
    finally:
        builtins.all, builtins.map, builtins.any = kept


def clock_between_two_notes(note):
    note()
    clock_for_a_while(lambda: None)
    note()
