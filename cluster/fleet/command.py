"""The command line of `python -m cluster.fleet`: node, merge, accept."""

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cluster.acceptance import expectations
from cluster.acceptance.verdict import EXIT_CODES, Outcome
from cluster.fleet import history, kubernetes, quick_check, reports, slurm, state
from cluster.fleet.actions import ActionError
from cluster.fleet.metrics import Metrics
from labkit import LabError, program

STATE = Path("/var/lib/gpu-labs/node.json")
COULD_NOT_RUN = EXIT_CODES["COULD NOT RUN"]
ORDER: tuple[Outcome, ...] = ("FAIL", "COULD NOT RUN", "INCOMPLETE", "PASS")
"""Of a fleet, the first that any node has."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; 0 pass, 1 fail, 2 could not run or act, 3 incomplete."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (LabError, OSError) as error:
        print(f"could not run: {_told(error)}", file=sys.stderr)
        return COULD_NOT_RUN


def _told(error: Exception) -> str:
    """For people."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.fleet",
        description="Nodes over time. Exit codes: 0 pass, 1 fail, 2 could not run or act, 3 incomplete.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    node = commands.add_parser("node", help="look at this node, while other programs run on it, in about a second")
    node.set_defaults(run=run_node)
    node.add_argument("--expect", type=Path, metavar="FILE", help="TOML: what its GPUs and ports should be")
    node.add_argument("--expect-gpus", type=program.positive_int, metavar="N", help="fail unless N GPUs answer")
    node.add_argument("--every", type=float, metavar="S", help="again and again, so many seconds apart")
    node.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    node.add_argument("--kernel-log", type=Path, default=Path("/dev/kmsg"), metavar="FILE")
    _acting(node)
    node.add_argument("--taint", action="store_true", help="with --kubernetes: also keep new pods away from it")
    merge = commands.add_parser("merge", help="merge reports: verdicts, outliers, what got slower")
    merge.set_defaults(run=run_merge)
    merge.add_argument("reports", type=Path, nargs="*", metavar="REPORT", help="cluster_test_report.json of many runs")
    merge.add_argument("--history", type=Path, metavar="FILE", help="JSON lines that the runs are added to")
    merge.add_argument("--keep-days", type=program.positive_int, metavar="N", help="forget older runs")
    merge.add_argument("--textfile", type=Path, metavar="FILE", help="for node_exporter's textfile collector: X.prom")
    merge.add_argument("--json", type=Path, metavar="FILE", help="nodes and outliers for programs")
    accept = commands.add_parser("accept", help="put a node back whose acceptance test passed")
    accept.set_defaults(run=run_accept)
    accept.add_argument("report", type=Path, help="cluster_test_report.json of a run that passed on this node")
    accept.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    accept.add_argument("--kernel-log", type=Path, default=Path("/dev/kmsg"), metavar="FILE")
    _acting(accept)
    return parser


def _acting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NODE", help="of this node (default: SLURMD_NODENAME, NODE_NAME, host name)")
    parser.add_argument("--state", type=Path, default=STATE, metavar="FILE", help=f"what it is compared with ({STATE})")
    parser.add_argument("--textfile", type=Path, metavar="FILE", help="for node_exporter's textfile collector: X.prom")
    parser.add_argument("--slurm", action="store_true", help="drain it in Slurm when it fails; `accept`: resume it")
    parser.add_argument("--kubernetes", action="store_true", help="label it in Kubernetes; `accept`: untaint it")


def run_node(options: argparse.Namespace) -> int:
    """Look once, or until a signal ends it."""
    if options.textfile is not None and options.textfile.suffix != ".prom":
        raise ActionError(f"--textfile {options.textfile}: the collector reads files that end in .prom")
    if options.every is None:
        return _look(options)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    code = 0
    while not stop.is_set():
        try:
            code = _look(options)
        except (LabError, OSError) as error:  # tell, and try again: what is away may come back
            print(f"could not run: {_told(error)}", file=sys.stderr, flush=True)
            code = COULD_NOT_RUN
        stop.wait(options.every)
    return code


def _look(options: argparse.Namespace) -> int:
    started = time.time()
    file = expectations.read(options.expect) if options.expect is not None else None
    earlier = state.read(options.state)
    current, unread, xids = quick_check.look(options.sysfs, options.kernel_log, options.name)
    report = quick_check.judge(
        current, unread, xids, state=earlier, expectations=file, gpus=options.expect_gpus, node=options.name
    )
    print(f"{report.node}: {report.outcome}", flush=True)
    for line in report.reasons if report.outcome != "INCOMPLETE" else report.doubts:
        print(f"  {line}", flush=True)
    # A node that was found broken the first time has not been accepted by anybody.
    good = earlier is not None or report.outcome != "FAIL"
    if good:
        accepted = earlier.accepted if earlier is not None else current
        state.write(options.state, state.State(accepted=_of_boot(accepted, current), last=current))
    metrics = Metrics()
    metrics.verdict(report.node, "light", report.outcome, started)
    metrics.counts(report.node, "light", Counter(check.status for check in report.checks))
    failed = [(check.name, check.subject) for check in report.checks if check.status == "fail"]
    metrics.failures(report.node, "light", failed)
    metrics.set("duration_seconds", time.time() - started, node=report.node, kind="light")
    if options.textfile is not None:
        metrics.write(options.textfile)
    try:
        _act(options, report)
    except ActionError as error:
        print(f"could not act: {error}", file=sys.stderr, flush=True)
        # A node that failed has failed, whoever does not hear of it.
        return EXIT_CODES["FAIL"] if report.outcome == "FAIL" else COULD_NOT_RUN
    return EXIT_CODES[report.outcome]


def _act(options: argparse.Namespace, report: quick_check.Found) -> None:
    if options.slurm and report.outcome == "FAIL":
        print(slurm.drain(report.node, report.reason), flush=True)
    if options.kubernetes:
        api = kubernetes.Api.of_pod()
        print(kubernetes.mark(api, report.node, report.outcome, report.reason, taint=options.taint), flush=True)


def _of_boot(accepted: state.Seen, current: state.Seen) -> state.Seen:
    """After another boot the counters begin again, and which GPUs and ports there should be stays."""
    if accepted.boot == current.boot:
        return accepted
    gpus = {uuid: quick_check.at_boot(reading) for uuid, reading in accepted.gpus.items()}
    return state.Seen(boot=current.boot, gpus=gpus, ports=accepted.ports, last_record=-1)


def run_accept(options: argparse.Namespace) -> int:
    """From a passed report: the node as it is now is what later looks are compared with, and it is put back."""
    entry = reports.read(options.report)
    node = options.name or quick_check.node_name()
    verdict = entry.verdicts.get(node)
    if verdict is None:
        raise ActionError(f"{options.report} is not about {node}, but about {', '.join(entry.verdicts)}")
    if verdict != "PASS":
        print(f"{node} stays as it is: the verdict of {options.report} is {verdict}", file=sys.stderr)
        return EXIT_CODES[verdict]
    current, unread, xids = quick_check.look(options.sysfs, options.kernel_log, node)
    report = quick_check.judge(current, unread, xids, state=None, node=node)
    if report.outcome == "FAIL":
        print(f"{node} stays as it is, it is broken now: {report.reason}", file=sys.stderr)
        return EXIT_CODES["FAIL"]
    state.write(options.state, state.State(accepted=current, last=current))
    print(f"{node}: accepted")
    if options.slurm:
        print(slurm.resume(node))
    if options.kubernetes:
        print(kubernetes.clear(kubernetes.Api.of_pod(), node))
    return 0


def run_merge(options: argparse.Namespace) -> int:
    """Read the reports, tell what stands out."""
    if not options.reports and options.history is None:
        raise ActionError("nothing to merge: name reports, or a --history")
    new, refused = [], []
    for path in options.reports:
        try:
            new.append(reports.read(path))
        except (reports.ReportError, OSError) as error:
            refused.append(str(error))
            print(f"left out: {error}", file=sys.stderr)
    if options.history is not None:
        entries = history.add(options.history, new, keep_days=options.keep_days)
    else:
        entries = sorted(new, key=lambda entry: entry.time_seconds)
    if not entries:
        raise ActionError("no report could be used")
    latest = history.latest(entries)
    outliers = history.outliers(entries)
    _print_fleet(latest, outliers, runs=len(entries))
    if options.textfile is not None:
        _metrics(latest, entries, outliers).write(options.textfile)
    if options.json is not None:
        _write_json(options.json, latest, outliers)
    outcomes = {entry.verdicts[node] for node, entry in latest.items()}
    outcomes |= {"FAIL"} if outliers else set()
    outcomes |= {"COULD NOT RUN"} if refused else set()
    return EXIT_CODES[next(outcome for outcome in ORDER if outcome in outcomes)]


def _print_fleet(latest: dict[str, reports.Entry], outliers: list[history.Outlier], *, runs: int) -> None:
    counts = Counter(entry.verdicts[node] for node, entry in latest.items())
    summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome])
    print(f"{len(latest)} nodes, {runs} runs: {summary}")
    for node, entry in sorted(latest.items()):
        if entry.verdicts[node] != "PASS":
            print(f"{entry.verdicts[node]:<13} {node} ({entry.time})")
            for name, subject in entry.failures[node][:4]:
                print(f"{'':<13} {name}, {subject}")
    for outlier in outliers:
        print(f"{'OUTLIER' if outlier.against == 'fleet' else 'SLOWER':<13} {outlier}")


def _metrics(
    latest: dict[str, reports.Entry], entries: list[reports.Entry], outliers: list[history.Outlier]
) -> Metrics:
    metrics = Metrics()
    for node, entry in latest.items():
        metrics.verdict(node, "acceptance", entry.verdicts[node], entry.time_seconds)
        metrics.failures(node, "acceptance", entry.failures[node])
        metrics.set("outliers", sum(node in outlier.node.split(",") for outlier in outliers), node=node)
    units = {"(TFLOP/s)": ("product_flops_per_second", 1e12), "(images/s)": ("images_per_second", 1.0)}
    for (_, name, node, gpu), values in history.series(entries).items():
        what, _, unit = name.rpartition(" ")
        kind = "copy" if what.startswith("copy") else "bus"
        metric, scale = units.get(unit, (f"{kind}_bytes_per_second", 1e9))
        metrics.set(metric, values[-1] * scale, node=node, gpu=gpu, what=what)
    for comparison in history.ratios(entries):
        metrics.set(
            f"{comparison.against}_ratio",
            comparison.ratio,
            node=comparison.node,
            gpu=comparison.gpu,
            what=comparison.name.rpartition(" ")[0],
        )
    return metrics


def _write_json(path: Path, latest: dict[str, reports.Entry], outliers: list[history.Outlier]) -> None:
    document = {
        "nodes": {
            node: {"verdict": entry.verdicts[node], "time": entry.time, "failures": entry.failures[node]}
            for node, entry in sorted(latest.items())
        },
        "outliers": [vars(outlier) for outlier in outliers],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
