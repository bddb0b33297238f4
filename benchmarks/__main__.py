"""Run every benchmark, one after the other: `make bench`, or `python -m benchmarks NAME...` for some."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks import against

# What needs an NVIDIA GPU is asked for by `make on-a-gpu`.
LIBRARY = {"__main__", "against", "measure", "on_a_gpu"}


def main(names: list[str]) -> None:
    known = [entry.name for entry in pkgutil.iter_modules(benchmarks.__path__) if entry.name not in LIBRARY]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"there is no benchmark {unknown[0]}; there are {', '.join(known)}")
    for name in names or known:
        print(f"{name} ...", flush=True)
        path = importlib.import_module(f"benchmarks.{name}").main()
        print(f"  wrote {path}")
        for line in against.report(path):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
