"""What happens before what: a vector clock for each stream, and one for the host (Lamport 1978, Mattern 1989).

A stream's entries are numbered. A stream, an event or the host knows, for each stream, up to which number its entries
are over. CUDA C++ Programming Guide, "Streams" and "Events", says who learns what when. Not here: times.
"""

from __future__ import annotations

Stream = tuple[int, int]
"""Index of the GPU, number of the stream."""
Point = dict[Stream, int]
"""For each stream how many of its entries are over."""


class Order:
    """The streams of all GPUs, and the host, whose threads are taken as one."""

    def __init__(self) -> None:
        self._streams: dict[Stream, Point] = {}
        self._host: Point = {}

    def step(self, stream: Stream) -> int:
        """Number of the stream's next entry."""
        known = self._streams.setdefault(stream, {})
        number = known[stream] = known.get(stream, 0) + 1
        return number

    def point(self, stream: Stream) -> Point:
        """What is over once all that is queued on the stream is over: what an event recorded now stands for."""
        return dict(self._streams.get(stream, {}))

    def stream_waits(self, stream: Stream, point: Point) -> None:
        """What comes next on the stream begins after the point."""
        _learn(self._streams.setdefault(stream, {}), point)

    def host_waits(self, point: Point) -> None:
        """What the host does next comes after the point."""
        _learn(self._host, point)

    def host_waits_for_device(self, gpu: int) -> None:
        """`cudaDeviceSynchronize`."""
        for stream, point in list(self._streams.items()):
            if stream[0] == gpu:
                _learn(self._host, point)

    def is_before(self, stream: Stream, number: int, other: Stream) -> bool:
        """Whether an entry is over before the next one of another stream begins."""
        if stream == other or self._host.get(stream, 0) >= number:
            return True
        known = self._streams.get(other)
        return known is not None and known.get(stream, 0) >= number

    def is_over(self, stream: Stream, number: int) -> bool:
        """Whether the host has waited for an entry."""
        return self._host.get(stream, 0) >= number


def _learn(known: Point, point: Point) -> None:
    for stream, number in point.items():
        if known.get(stream, 0) < number:
            known[stream] = number
