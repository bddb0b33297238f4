"""Mistakes in a monitor that its checks recognise."""

from __future__ import annotations

from gradebox.run.assertions import Cause

_BACKGROUND = "lab5.monitoring.sampled_in_background"
ASKED = Cause(
    "log_metrics_asks_the_gpus",
    "Take the latest sample in `log_metrics`. Only `sample` asks the GPUs, and the background thread calls it.",
    _BACKGROUND,
    mistake="log_metrics asks the GPUs, so that each training step waits for NVML",
)
THREAD_LEFT = Cause(
    "thread_outlives_the_monitor",
    "Stop the thread in `close`, and join it.",
    _BACKGROUND,
    mistake="close does not end the thread",
)
NO_THREAD = Cause(
    "no_thread_samples",
    "Start a daemon thread that samples every `interval` seconds, until `close` stops it.",
    _BACKGROUND,
    mistake="No thread samples in the background",
)
MESSAGE_KEPT = Cause(
    "message_not_in_the_snapshot",
    "Put the reader's message into the snapshot as well. The page for people shows it.",
    mistake="The snapshot does not say why there are no GPUs",
)
LEFT_OPEN = Cause(
    "nvml_left_open",
    "Close the reader in `close`, after the thread has ended.",
    _BACKGROUND,
    mistake="NVML stays initialised after close",
)
TIME_FALLS = Cause(
    "time_from_before_the_reading",
    "Take the time of a snapshot when you make it, after the GPUs have answered: time must not fall between two calls "
    "of `AlertEngine.evaluate`.",
    _BACKGROUND,
    mistake="A sample has the time from before its GPUs were read, so that time falls if a step is logged meanwhile",
)
FILES_NOT_COUNTED = Cause(
    "own_time_without_the_files",
    "Read the clock at the end of `log_metrics`, after the files are written.",
    _BACKGROUND,
    mistake="monitor_seconds_total leaves out what writing the files takes",
)
