"""`python -m benchmarks.measured record FILE`, on a machine with an NVIDIA GPU; `... compare FILE`, anywhere."""

from __future__ import annotations

import argparse
import collections
import json
from pathlib import Path

from benchmarks.measured import compare, record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="measure on this machine's NVIDIA GPU")
    recording.add_argument("file", type=Path)
    recording.add_argument("--sections", nargs="+", choices=record.SECTIONS, default=record.SECTIONS)
    recording.add_argument("--seconds", type=float, default=600.0, help="begin nothing new after so long")
    recording.add_argument("--known", type=Path, metavar="FILE", help="take from this file what it has")
    comparing = commands.add_parser("compare", help="the virtual GPU compared with a record")
    comparing.add_argument("file", type=Path)
    comparing.add_argument(
        "--rows", default="", metavar="TEXT", help="print the rows of groups with this in their name"
    )
    comparing.add_argument("--dry-run", action="store_true", help="write nothing")
    chosen = parser.parse_args()
    if chosen.command == "record":
        record.measure(chosen.file, chosen.sections, chosen.seconds, chosen.known)
        return
    recorded = json.loads(chosen.file.read_text(encoding="utf-8"))
    rows = compare.rows_of(recorded, compare.simulate(recorded))
    numbers = compare.drawn(recorded)
    print("\n".join(compare.table(rows)))
    print("random numbers:", dict(collections.Counter(numbers.values())))
    if chosen.rows:
        for row in rows:
            if chosen.rows in row.group:
                print(f"{row.group:40} {row.name:50} {row.measured:11.4g} {row.simulated:11.4g} {row.ratio:6.2f}")
    if not chosen.dry_run:
        print("wrote", compare.write(f"{chosen.file.stem}_compared", recorded, rows, numbers))


if __name__ == "__main__":
    main()
