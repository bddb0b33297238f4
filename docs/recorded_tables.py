"""Sphinx extension: writes the pages that are tables of recorded results, so that nobody commits them.

Each page is written before the build, from files in `benchmarks/results/`:

    planted-bugs.md        planted_bugs.json        made by `make matrix`
    mutants.md             mutants.json             made by `make mutants`
    acceptance-faults.md   acceptance_faults.json   made by `python -m tests.cluster.faults.table`
                           acceptance_drawn.json    made by `python -m tests.cluster.faults.drawn`
    diagnosis.md           planted_bugs.json, pairs.json (made by `python -m tests.scenarios.pairs`) and
                           report_readings.json (written by hand)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_DOCS = Path(__file__).resolve().parent
_RESULTS = _DOCS.parent / "benchmarks" / "results"
_MOST_SUBJECTS = 2
"""More subjects than these are counted, not named."""

_PARTS = {
    "The state of a GPU before the run": ("before", "board", "sound"),
    "Number of GPUs, and expected values": ("baseline", "expected", "presence"),
    "Work of a single GPU": ("compute", "copy", "gradient", "load", "memory", "product"),
    "Times that vary": ("steadiness",),
    "Communication": ("all_gather", "all_reduce", "broadcast", "pairs", "point_to_point", "reduce_scatter"),
    "Network ports": ("network",),
    "Training": ("training",),
    "The state of a GPU after the run": ("health",),
    "Processes and nodes": ("run",),
}
"""The subheadings of the faults in records. A fault belongs where the first word of the check that finds it is."""

_KINDS = {
    "reference": "The reference, with several seeds",
    "styles with seeds": "Two correct styles, with several seeds",
    "bugs": "Planted bugs",
    "variants": "Correct styles",
}


def planted_bugs(recorded: Mapping[str, Any]) -> str:
    """A table per lab: the points that each planted bug loses in each criterion."""
    rows: Sequence[Mapping[str, Any]] = recorded["rows"]
    lines = [
        "# What every planted bug costs", "",
        f"{_made_by('make matrix', recorded)} Each row is a submission with one planted bug. **Bold** points are "
        "those that the bug must lose; the mistake may also show in the others. The submission kept every point of "
        f"the {'lab' if recorded['own_lab'] else 'labs'} in the criteria that have no column"
        f"{'; it was graded with the checks of its own lab only' if recorded['own_lab'] else ''}.", "",
    ]  # fmt: skip
    lines += _summary([row for row in rows if row["kind"] == "bugs"])
    for kind, lab in dict.fromkeys((row["kind"], row["lab"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["lab"]) == (kind, lab)]
        right = sum(not row["problem"] for row in own)
        of_lab = "" if lab == "all" else f", Lab {lab.removeprefix('lab')}"
        lines += [f"## {_KINDS[kind]}{of_lab}: {right} of {len(own)} as they should be", ""]
        if kind == "bugs":
            lines += [*_bugs(lab, own), *_charged_twice(own)]
        else:
            lines += _right_submissions(own)
        lines.append("")
    return "\n".join(lines)


def _summary(bugs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """How often one mistake is one charge, and how often a report begins with the function that is wrong."""
    yield "| lab | planted bugs | charged once | charged more than once | the report begins with the right function |"
    yield "|---|---:|---:|---:|---:|"
    for lab in [*dict.fromkeys(row["lab"] for row in bugs), "all"]:
        own = [row for row in bugs if lab in (row["lab"], "all")]
        once = sum(len(row["charged"]) == 1 for row in own)
        more = sum(len(row["charged"]) > 1 for row in own)
        right = sum(row["leads_there"] for row in own)
        yield f"| {lab} | {len(own)} | {_share(once, own)} | {_share(more, own)} | {_share(right, own)} |"
    yield ""


def _share(count: int, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{count} ({100 * count / len(rows):.0f} %)" if rows else "0"


def _bugs(lab: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    criteria = sorted({name for row in rows for name in (*row["lost"], *row["loses"])})
    yield (
        "| bug | the report begins with | charges | "
        + " | ".join(name.removeprefix(f"{lab}.") for name in criteria)
        + " |"
    )
    yield "|---|---|---:|" + "---:|" * len(criteria)
    for row in rows:
        problem = f" — **wrong: {row['problem']}**" if row["problem"] else ""
        cells = (_points(row, name) for name in criteria)
        yield f"| {_title(row)}{problem} | {row['first']} | {len(row['charged'])} | {' | '.join(cells)} |"


def _points(row: Mapping[str, Any], criterion: str) -> str:
    if criterion not in row["lost"]:
        return ""
    points = f"{row['lost'][criterion]:g}"
    return f"**{points}**" if criterion in row["loses"] else points


def _charged_twice(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        checks: dict[str, list[str]] = {}
        for check in row["charged"]:
            criterion, _, name = check.rpartition(".")
            checks.setdefault(criterion, []).append(name.replace("_", " "))
        if several := [", ".join(names) for names in checks.values() if len(names) > 1]:
            lines.append(f"- {_title(row)}: {'; '.join(several)}.")
    return ["", "These bugs lose the points of more than one check of a criterion:", "", *lines] if lines else []


def _right_submissions(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """One line per submission; gradings of the same one with different seeds share a line."""
    seeds: dict[str, list[str]] = {}
    for row in rows:
        if not row["problem"]:
            seeds.setdefault(_title(row), []).append(row["name"].rpartition("seed ")[2])
    for title, right in seeds.items():
        counted = f", {len(right)} seeds" if len(right) > 1 else ""
        yield f"- {title}: every point{counted}."
    yield from (f"- {_title(row)}: **{row['problem']}**" for row in rows if row["problem"])


def _title(row: Mapping[str, Any]) -> str:
    return str(row["title"]) or str(row["name"]).partition(", seed")[0].replace("_", " ")


def mutants(recorded: Mapping[str, Any]) -> str:
    """How many mutants of each lab and of each kind a check noticed, and which nobody noticed."""
    labs: Mapping[str, Mapping[str, Any]] = recorded["labs"]
    columns = "| graded | noticed | excused | open | noticed of those not excused |"
    total: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    rows = []
    for lab, result in labs.items():
        own: Counter[str] = Counter()
        for kind, counts in result["kinds"].items():
            own.update(counts)
            kinds.setdefault(kind, Counter()).update(counts)
        total.update(own)
        rows.append(f"| {lab} | {result['mutants']} | {_counts(own)} |")
    made = sum(result["mutants"] for result in labs.values())
    sample = f" This is a sample: {total['graded']} of {made} mutants were graded." if total["graded"] < made else ""
    excused = Counter[str](recorded["excused"])
    return "\n".join([
        "# Mutants: the reference, changed once", "",
        f"{_made_by('make mutants', recorded)} The command changes each line that students write in every way that "
        "`tests/mutants/mutators.py` knows, one change at a time, and grades the result.", "",
        "- *Noticed*: a check did not pass.",
        "- *Excused*: nothing changes, or no page requires it; `tests/mutants/excused.toml` gives the reason.",
        f"- *Open*: no check notices it yet.{sample}", "", "A lab without a row was not graded with this version.", "",
        f"| lab | mutants {columns}", "|---" + "|---:" * 6 + "|",
        *rows, f"| all | {made} | {_counts(total)} |", "",
        "## By kind", "", f"| kind {columns}", "|---" + "|---:" * 5 + "|",
        *(f"| {kind} | {_counts(kinds[kind])} |" for kind in sorted(kinds)), "",
        "## Excused", "", "| reason | mutants |", "|---|---:|",
        *(f"| {reason} | {count} |" for reason, count in excused.most_common()), "",
        "## Open", "", *(f"- {_code(line)}" for line in recorded["open"]), *([] if recorded["open"] else ["None."]), "",
    ])  # fmt: skip


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"


def _counts(counts: Counter[str]) -> str:
    counted = counts["graded"] - counts["excused"]
    share = f"{100 * counts['noticed'] / counted:.0f} %" if counted else "-"
    left = counted - counts["noticed"]
    return f"{counts['graded']} | {counts['noticed']} | {counts['excused']} | {left} | {share}"


def acceptance_faults(recorded: Mapping[str, Any], drawn: Mapping[str, Any]) -> str:
    """Faults that were drawn, by size; then every fault that was planted: who finds it, whom it names, how it ends."""
    columns = "| fault | the check that finds it | named | verdict | exit code | seconds |"
    rule = "|---|---|---|---|---:|---:|"
    verdicts = Counter(fault["verdict"] for fault in (*recorded["records"], *recorded["runs"]))
    noticed = verdicts.total() - len(recorded["wrong"])
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    return "\n".join([
        "# Faults that the acceptance test finds", "",
        "For cluster engineers who want to know whether the [acceptance test](cluster.md) finds a certain fault. You "
        "need no GPU. At the end you know which check finds the fault, and what the verdict is. No real GPU was broken "
        "for these tables.", "",
        "The page has three parts:", "",
        "- [Simulated machines](#simulated-machines): how often the test finds a fault, by the share of a rate "
        "that the fault costs",
        "- [Faults planted in records](#faults-planted-in-records): which check finds a fault of a GPU, a link, a port "
        "or a rank",
        "- [Faults planted in running processes](#faults-planted-in-running-processes): what happens if a process, a "
        "node or a disk fails during the run", "",
        f"The last two parts have {verdicts.total()} faults. The acceptance test found {noticed} of them. If a GPU, "
        f"a node or a link was faulty, the report named it. The verdicts were: {counted}. "
        f"{_made_by('python -m tests.cluster.faults.table', recorded)}", "",
        *_drawn(drawn),
        "## Faults planted in records", "",
        "A *rank* is one process of the test, with a GPU of its own. Its *record* is what it measured. For each fault "
        "of this part, we changed the records of a machine without a fault, and let the test judge them. The machine "
        "is a node with eight H100s, or four nodes with two H100s each and InfiniBand.", "",
        "- *Named* is the part that the report blames.",
        "- *Seconds* is the time that the test took to judge the records.",
        "- *Added later* marks faults that we took over from [other tools](acceptance-compared.md).", "",
        *_in_parts(recorded["records"], (columns, rule)),
        "## Faults planted in running processes", "",
        "Some of these faults are planted with [`--inject`](cluster-faults.md), on two virtual T4s or on the CPU. For "
        "the others, a program kills or stops processes, or fills a disk. Some faults need several nodes. For these, "
        "several torchruns ran on one machine, one for each node.", "",
        "- The *store* is the process through which the ranks find each other.",
        "- *Seconds* is the time of the whole run, on two cores with other work.",
        "- *Left running* counts processes of the test that were still running when it had ended.",
        "- The exit code -9 means that torchrun itself was killed.", "",
        f"{columns} left running |", f"{rule}---:|",
        *(f"{_fault(fault)} {fault['left']} |" for fault in recorded["runs"]), "",
    ])  # fmt: skip


def _in_parts(faults: Sequence[Mapping[str, Any]], head: Sequence[str]) -> Iterable[str]:
    """A table per part of the machine. Every fault is in one, or the page is not written."""
    parts = {word: part for part, words in _PARTS.items() for word in words}
    of = [parts[fault["check"].partition(":")[0].partition(" ")[0]] for fault in faults]
    for part in (part for part in _PARTS if part in of):
        rows = [_fault(fault) for fault, own in zip(faults, of, strict=True) if own == part]
        yield from (f"### {part}", "", *head, *rows, "")


def _drawn(drawn: Mapping[str, Any]) -> Iterable[str]:
    """Machines that were drawn: false alarms, then detection by fault and size."""
    rows: Sequence[Mapping[str, Any]] = drawn["faults"]
    alarms = sum(drawn["alarms"].values())
    noticed = sum(row["FAIL"] + row["INCOMPLETE"] for row in rows)
    total, blamed = noticed + sum(row["PASS"] for row in rows), sum(row["blamed"] for row in rows)
    yield from (
        "## Simulated machines", "",
        f"A program simulates machines of 1 to 64 nodes, with GPUs of {drawn['cards']} models, and lets the acceptance "
        "test judge them. The rates of each machine are random, near published values. The times of repeated "
        "work vary at random as well. "
        f"{_made_by('python -m tests.cluster.faults.drawn', drawn)}", "",
        f"- {drawn['healthy']} machines had no fault. Of these, {alarms} did not pass.",
        f"- {total} machines had one fault. Of these, {total - noticed} passed. For {blamed} machines, the report "
        "named the faulty part and no other.", "",
        "Two kinds of faults are not among them. The test cannot find these, because sound machines can look the "
        "same:", "",
        "- All GPUs of all nodes are slower by less than a quarter, and no value that the test reads says why.",
        "- Copies from one GPU are slower by less than a quarter. This also happens if the host's memory is on a "
        "distant NUMA node.",
        "",
        "The columns of the table:", "",
        "- *Lost* is the share of a rate that the fault costs.",
        "- *Fails*, *incomplete* and *passes* count machines by their verdict.",
        "- *Incomplete* is not a pass: the report asks whether the value is intended.",
        "- *Named* counts machines whose report blames the faulty part and no other.", "",
        "| fault | lost | fails | incomplete | passes | named |", "|---|---:|---:|---:|---:|---:|",
    )  # fmt: skip
    for row in rows:
        lost = "" if row["size"] is None else f"{row['size']:.0%}".replace("%", " %")
        yield f"| {row['what']} | {lost} | {row['FAIL']} | {row['INCOMPLETE']} | {row['PASS']} | {row['blamed']} |"
    yield ""


def _fault(fault: Mapping[str, Any]) -> str:
    named = fault["named"]
    more = f" and {len(named) - _MOST_SUBJECTS} more" if len(named) > _MOST_SUBJECTS else ""
    subjects = ", ".join(named[:_MOST_SUBJECTS]) + more
    later = " (added later)" if fault.get("later") else ""
    seconds = f"{fault['seconds']:.{0 if fault['seconds'] >= 10 else 2}f}"
    check = f"{fault['check'] or 'no check: the program itself reports it'}{later}"
    return f"| {fault['what']} | {check} | {subjects} | {fault['verdict']} | {fault['exit_code']} | {seconds} |"


def diagnosis(bugs: Mapping[str, Any], pairs: Mapping[str, Any], readings: Mapping[str, Any]) -> str:
    """How well a report names a mistake: charges of one bug, two bugs at once, and what a reader understood."""
    rows = [row for row in bugs["rows"] if row["kind"] == "bugs"]
    both: Sequence[Mapping[str, Any]] = pairs["pairs"]
    sums = [round(pair["together"] - sum(pair["alone"]), 3) for pair in both]
    same, less, more = (sum(test) for test in ([s == 0 for s in sums], [s < 0 for s in sums], [s > 0 for s in sums]))
    read: Sequence[Mapping[str, Any]] = readings["readings"]
    return "\n".join([
        "# How well a report names a mistake", "",
        "For instructors who want to know how far they can rely on a report. You need nothing. At the end you know how "
        "often a mistake loses points once, and how often a report leads to it.", "",
        "A mistake should lose its points once, and the report should begin with it. We test this with *planted bugs*. "
        "A planted bug is a copy of the reference solution with one mistake.", "",
        "## One mistake, one charge", "",
        f"{_made_by('make matrix', bugs)} *Charged once* means that only one check loses points. The last column "
        "counts reports that begin with the function that the bug changed. If the bug is outside of all functions that "
        "students know, the file counts. [Every bug](planted-bugs.md) is listed with its points.", "",
        *_summary(rows),
        "## Two mistakes at once", "",
        f"{_made_by('python -m tests.scenarios.pairs', pairs)} We drew {len(both)} pairs of bugs at random, each from "
        "one lab. Each bug was graded alone, then both together. A pair is *joined* if the report takes the two "
        "mistakes for one. A student who fixes one of them would then find the other in the next report.", "",
        f"- {pairs['joined']} pairs are joined.",
        f"- {same} pairs lose as many points as the two bugs lose alone, added up.",
        f"- {less} pairs lose less. For example, both bugs make the same check fail, and it is charged once.",
        f"- {more} pairs lose more. Together the two bugs make a check fail that passes with each bug alone.", "",
        "## What a reader understands", "",
        f"Made by hand on {readings['machine']['date']}. {readings['what']}", "", readings["rule"], "",
        "| lab | reports | right |", "|---|---:|---:|",
        *(
            f"| {lab} | {len(own)} | {_share(sum(row['right'] for row in own), own)} |"
            for lab in [*dict.fromkeys(sorted(row["lab"] for row in read)), "all"]
            for own in [[row for row in read if lab in (row["lab"], "all")]]
        ), "",
        "These answers were wrong:", "",
        "| lab | planted bug | what is wrong with the answer |", "|---|---|---|",
        *(f"| {row['lab']} | {row['title']} | {row['why_not']} |" for row in read if not row["right"]), "",
    ])  # fmt: skip


def _made_by(command: str, recorded: Mapping[str, Any]) -> str:
    machine = recorded["machine"]
    # Rows that were added to an older table have the dates of their own.
    dates = sorted({row["date"] for row in recorded.get("rows", ()) if "date" in row} | {machine["date"]})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Made by `{command}` (torch {machine['torch']}, Python {machine['python']}, {period})."


PAGES: Mapping[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "planted-bugs.md": (("planted_bugs.json",), planted_bugs),
    "mutants.md": (("mutants.json",), mutants),
    "acceptance-faults.md": (("acceptance_faults.json", "acceptance_drawn.json"), acceptance_faults),
    "diagnosis.md": (("planted_bugs.json", "pairs.json", "report_readings.json"), diagnosis),
}
"""What each page is made from, and by what."""


def write(folder: Path = _DOCS) -> None:
    """Write the pages into a folder. A page that would not change is not touched."""
    for name, (results, render) in PAGES.items():
        text = render(*(json.loads((_RESULTS / file).read_text(encoding="utf-8")) for file in results))
        page = folder / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for sources."""
    write(Path(app.srcdir))
    return {"parallel_read_safe": True}
