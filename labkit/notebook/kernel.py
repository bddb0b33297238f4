"""A virtual GPU inside a Jupyter kernel: virtual time passes in the student's cells, not in the kernel's own work.

While one is attached the main thread waits in virtual time. The kernel's other threads do not, so what it hands them
between two cells, and whenever a cell prints, must be waited for really. Not for real GPUs, which need none of this.
"""

from __future__ import annotations

import contextlib
from typing import Any


def start_threads() -> None:
    """Start the thread in which ZeroMQ frees large messages: later it would count as one of the student's."""
    try:
        from zmq.utils.garbage import gc
    except ImportError:
        return
    gc.start()


def keep_real_time() -> None:
    """Let the kernel wait in real time from now on; does nothing outside of a kernel or without a virtual GPU."""
    from IPython.core.getipython import get_ipython

    import vgpu

    shell = get_ipython()
    gpu = vgpu.current()
    if shell is None or gpu is None:
        return
    between = contextlib.ExitStack()

    def after_cell(result: object) -> None:
        between.close()
        between.enter_context(gpu.clock.hold())

    def before_cell(info: object) -> None:
        between.close()

    shell.events.register("post_run_cell", after_cell)
    shell.events.register("pre_run_cell", before_cell)
    _flush_in_real_time()


def _flush_in_real_time() -> None:
    """Printing hands the text to a thread of the kernel."""
    try:
        from ipykernel.iostream import OutStream
    except ImportError:
        return
    flush = OutStream.flush

    def flush_and_hold(self: Any) -> None:
        import vgpu

        gpu = vgpu.current()
        with contextlib.nullcontext() if gpu is None else gpu.clock.hold():
            flush(self)

    OutStream.flush = flush_and_hold
