"""`python -m benchmarks.published [--group TEXT] [--id TEXT]`: run figures and print them; writes nothing."""

from __future__ import annotations

import argparse

from benchmarks.published import figures, report, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published")
    parser.add_argument("--group", default="", help="only groups whose name contains this")
    parser.add_argument("--id", default="", help="only figures whose id contains this")
    chosen = parser.parse_args()
    comparisons = run.run_all(f for f in figures.load() if chosen.group in f.group and chosen.id in f.id)
    print("\n".join(report.group_table(comparisons)))


if __name__ == "__main__":
    main()
