"""What was measured, as figures for the report and for a later comparison. Judges nothing."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from cluster.acceptance.checks.communication import table
from cluster.acceptance.checks.pairs import met
from cluster.acceptance.checks.training import mean_losses, throughput
from cluster.acceptance.records import Record


def performance(records: Sequence[Record]) -> dict[str, Any]:
    """Rates, latencies, bandwidths and throughput of a run; what was not measured is an empty list or None."""
    trained = [record for record in records if record.measured("training")]
    rates = {str(record.rank): throughput(record) for record in trained}
    first = trained[0].result("training") if trained else {}
    return {
        "products": [
            {
                "rank": record.rank,
                "dtype": dtype,
                "median_seconds": median(product["seconds"]),
                "tflops": product["tflops"],
                "peak_tflops": (record.result("presence").get("peak_tflops") or {}).get(dtype),
            }
            for record in records
            if record.measured("compute")
            for dtype, product in record.result("compute")["products"].items()
        ],
        "collectives": table(records),
        "pairs": [
            {
                "ranks": [end.rank for end in pair.ends],
                "kind": pair.kind,
                "seconds": pair.seconds,
                "bytes_per_second": pair.ends[0].result("pairs")["bytes"] / pair.seconds,
            }
            for pair in met(records)
        ],
        "copies": [
            {
                "rank": record.rank,
                **{
                    f"{way}_bytes_per_second": record.result("copies")["bytes"] / seconds
                    for way, seconds in record.result("copies")["seconds"].items()
                },
            }
            for record in records
            if record.measured("copies")
        ],
        "memory": [
            {
                "rank": record.rank,
                **{f"{name}_bytes_per_second": rate for name, rate in record.result("bandwidth")["rates"].items()},
            }
            for record in records
            if record.measured("bandwidth")
        ],
        "network": [
            {"node": record.node, **record.result("network")} for record in records if record.measured("network")
        ],
        "load": [{"rank": record.rank, **record.result("load")} for record in records if record.measured("load")],
        "training": {
            "model": first["model"],
            "data": first["data"],
            "batch_size": first["batch_size"],
            "losses": mean_losses(records),
            "images_per_second": rates,
            "images_per_second_total": sum(rates.values()),
            "sha256": {str(record.rank): record.result("training")["sha256"] for record in trained},
        }
        if trained
        else None,
    }
