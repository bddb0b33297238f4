"""Trainings in which whatever a caller of `train_with_amp` chooses meets all else, and what each must come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradebox.run.assertions import number, require, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from grader.lab2.truth.training import Regression, Run, final_scale, relative_error, windows
from grader.shared.cases import every_value
from grader.shared.results import require_result

_ERROR = {"float64": 1e-4, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
"""Relative to the way of the weights. Sixteen bits round each product by 0.05 % and 0.4 %, float32 makes 1e-6 of it;
PyTorch's clipping adds 1e-6 to the norm, which may be as small as 0.03."""
_UNCLIPPED = 1e-9
"""In float64, where nothing is clipped."""
_NEVER = 1e6
_SMALL_LOSS = 2.0**-12
"""With the default scale of 2^16 it is as large as others at a scale of 2^4."""
_PATIENT = {"init_scale": 2.0**5, "growth_interval": 1000}
_GROWING = {"init_scale": 2.0**2, "growth_interval": 2}
_DEFAULTS = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}

CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "window": ("one batch", "divides", "short last", "longer than the epoch"),
    "sizes": ("one batch", "unequal"),
    "clipping": ("none", "never", "a limit"),
    "overflow": ("none", "forward", "backward"),
    "epochs": ("1", "several"),
    "scheduler": ("none", "decays"),
    "batches": ("a list", "a loader"),
    "scaler": ("none", "constant", "grows"),
    "optimizer": ("plain", "momentum"),
    "device": ("of the model", "given"),
}


def allowed(row: Mapping[str, Any]) -> bool:
    """Only float16 overflows, and windows of several batches need as many."""
    return (row["overflow"] == "none" or row["dtype"] == "float16") and (
        row["sizes"] != "one batch" or row["window"] in ("one batch", "longer than the epoch")
    )


def crossed(generator: InputGenerator, case: Regression) -> list[Run]:
    """Trainings of this grading, one of which clips a short window; within ten each choice meets each other one."""
    rows = every_value(generator, CHOICES, 4, allowed)
    rows += generator.cases({**CHOICES, "window": ["short last"], "clipping": ["a limit"]}, 1, allowed)
    return [_run(generator, case, row) for row in rows]


def _run(generator: InputGenerator, case: Regression, row: Mapping[str, Any]) -> Run:
    steps = 1 if row["window"] == "one batch" else generator.integer(2, 3)
    batches = {
        "one batch": generator.integer(2, 4),
        "divides": 2 * steps,
        "short last": steps + generator.integer(1, steps - 1) if steps > 1 else 1,
        "longer than the epoch": generator.integer(2, 3),
    }[row["window"]]
    if row["sizes"] == "one batch":
        batches = 1
    if row["window"] == "longer than the epoch":
        steps = batches + generator.integer(1, 2)
    sizes = [generator.integer(1, 4) * 2 + index % 2 for index in range(batches)]
    wide = row["dtype"] == "float64"
    factor = _SMALL_LOSS if row["scaler"] == "none" and row["dtype"] == "float16" else 1.0
    run: Run = {
        "dtype": "float32" if wide else row["dtype"],
        "wide": wide,
        "sizes": sizes,
        "accumulation_steps": steps,
        "epochs": 1 if row["epochs"] == "1" else generator.integer(2, 3),
        "rate": 0.02 / factor,
        "factor": factor,
        "loader": row["batches"] == "a loader",
        "moved": row["device"] == "given",
    }
    if row["scaler"] != "none":
        run["scaler"] = _GROWING if row["scaler"] == "grows" else _PATIENT
    if row["scheduler"] == "decays":
        run["decay"] = round(generator.uniform(0.5, 0.8), 3)
    if row["optimizer"] == "momentum":
        run["momentum"] = round(generator.uniform(0.5, 0.9), 3)
    if row["clipping"] == "a limit":
        first = windows(run)[0].where
        norm = factor * float(np.linalg.norm(case.gradient(case.start, first)))
        run["max_grad_norm"] = round(generator.uniform(0.1, 0.5), 3) * norm
    elif row["clipping"] == "never":
        run["max_grad_norm"] = _NEVER
    if row["overflow"] != "none":
        run["spoiled" if row["overflow"] == "forward" else "far"] = [generator.integer(0, batches - 1)]
    return run


def require_followed(case: Regression, run: Run, seen: Mapping[str, Any]) -> None:
    """Fail unless a training came to what its arguments say: weights, losses, steps, scale and schedule."""
    what = f"train_with_amp() {_told(run)}"
    result, dtype = require_result(seen["result"]), "float64" if run["wide"] else run["dtype"]
    happened = [part.overflows for part in windows(run)] * run["epochs"]
    skipped = sum(happened)
    truth = case.follow(run)
    require(
        all(np.isfinite(state).all() for state in [*seen["before"], seen["after"]]),
        f"{what} left NaN or infinity in the weights",
        "look for gradients that are not finite before the optimizer's step, and skip it",
    )
    require_equal(
        [result["optimizer_steps"], result["skipped_steps"]],
        [len(happened) - skipped, skipped],
        what=f"{what}: optimizer_steps and skipped_steps",
        hint="one step per window, in the last, shorter window of an epoch, too",
    )
    require_equal(result["dtype"], run["dtype"], what=f"{what}: AmpTraining.dtype")
    require_equal(seen["frozen"], [0.5, 0.5], what=f"{what}: a parameter that requires no gradient, afterwards")
    if "decay" in run:
        require_equal(
            seen["scheduler_steps"],
            len(happened) - skipped,
            what=f"{what}: steps of the scheduler",
            hint="once after each step that was taken",
        )
    require_equal(
        [loss is None for loss in result["losses"]],
        [loss is None for loss in truth.losses],
        what=f"{what}: whether AmpTraining.losses of each epoch is None",
        hint="None where no step was taken",
    )
    for told, loss in zip(result["losses"], truth.losses, strict=True):
        if loss is not None:
            require_close(
                number(told, f"{what}: AmpTraining.losses"),
                loss,
                relative=_ERROR[dtype],
                what=f"{what}: AmpTraining.losses of an epoch",
                hint="unscaled, the mean over the samples of the steps that were taken",
            )
    scale = final_scale({**_DEFAULTS, **run.get("scaler", {})}, happened) if run["dtype"] == "float16" else None
    require_equal(
        result["final_scale"],
        scale,
        what=f"{what}: AmpTraining.final_scale",
        hint="update() once per window, in float16 only",
    )
    hint = (
        "a step is made from the mean over all samples of its window, clipped where that is asked for, at the learning "
        "rate of that moment"
    )
    if skipped == len(happened):
        require(
            bool(np.array_equal(seen["after"], case.weight.astype(np.float64).ravel())),
            f"{what} changed the weights, though each step was to be skipped",
            hint,
        )
        return
    exact = dtype == "float64" and run.get("max_grad_norm", _NEVER) == _NEVER
    require_between(
        relative_error(seen["after"], truth.weights[-1], case.start),
        0,
        _UNCLIPPED if exact else _ERROR[dtype],
        what=f"{what}: relative error of the weights",
        hint=hint,
    )


def _told(run: Run) -> str:
    """A training in words: `in float16 for 2 epochs of batches of [3, 5], with accumulation_steps=2, ...`."""
    parts = [f"accumulation_steps={run['accumulation_steps']}"]
    if "max_grad_norm" in run:
        parts.append(f"max_grad_norm={run['max_grad_norm']:.3g}")
    if "decay" in run:
        parts.append("a scheduler")
    if "momentum" in run:
        parts.append(f"a momentum of {run['momentum']}")
    if "scaler" in run:
        parts.append(f"GradScaler({', '.join(f'{name}={value:g}' for name, value in run['scaler'].items())})")
    for name, where in (("spoiled", "forward"), ("far", "backward")):
        if name in run:
            parts.append(f"an overflow in {where} in batch {run[name][0] + 1}")
    if run["moved"]:
        parts.append("the device given")
    dtype = "float64" if run["wide"] else run["dtype"]
    epochs = f"{run['epochs']} epoch{'s' * (run['epochs'] > 1)}"
    return f"in {dtype} for {epochs} of batches of {run['sizes']}, with {', '.join(parts)}"
