"""How trainings are drawn, and the dimensions in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Unpack

import numpy as np

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.codec import put_back
from grader.lab5.pipeline.cases import GROWTH, Epochs, Logged, Mixed, Resume, Settings, Stopped, Training, Validate
from grader.shared.cases import Row, full_rows
from grader.shared.dimensions import Case, Dimension, Space, drawable

BATCHES = 5
"""Of each rank in an epoch."""
OPTIMIZERS: dict[str, Settings] = {
    "momentum": {"optimizer": "sgd"},
    "decay": {"optimizer": "sgd", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}

# What cases differ in: for each dimension its values, and what is drawn to have each of them.

_RANKS = {"1": (1,), "2": (2,)}
_WINDOWS = {"one batch": (1,), "short last": (2,)}
_LOGS = {"each step": (1,), "every other": (2,)}
_TRAININGS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "ranks": _RANKS,
    "window": {"one batch": (1,), "short last": (2, 3), "longer than the epoch": (7,)},
    "limit": {"none": (None,), "never reached": (1e6,), "a limit": ("some",)},
    "optimizer": {"sgd with momentum": ("momentum",), "sgd with weight decay": ("decay",), "adamw": ("adamw",)},
    "last": {"full": ("full",), "smaller": ("smaller",), "padded": ("padded",)},
    "epochs": {"1": (1,), "2": (2,)},
    "warmup": {"none": ("none",), "a part of the run": ("part",), "longer than the run": ("longer",)},
}
_MIXED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "dtype": {"float16": ("float16",), "bfloat16": ("bfloat16",)},
    "window": _WINDOWS,
    "log": _LOGS,
}
_RESUMES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "run": {"float32": (("float32", 1),), "float16": (("float16", 1),), "2 ranks": (("float32", 2),)},
    "optimizer": {"sgd": ("momentum",), "adamw": ("adamw",)},
    "middle": {"between two epochs": (False,), "in the middle of an epoch": (True,)},
}
_LOGGED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "ranks": _RANKS,
    "window": _WINDOWS,
    "every": _LOGS,
    "clipped": {"none": (False,), "a limit": (True,)},
}


def training(
    generator: InputGenerator, *, ranks: int = 1, last: str = "smaller", **settings: Unpack[Settings]
) -> Training:
    """A training whose windows do not fill its two epochs, with clipping, warm-up and momentum, unless settings differ.

    Args:
        ranks: on how many it will be.
        last: whether an epoch's last batch is "full" or "smaller"; or "padded": smaller, and one sample comes twice.
        settings: of the configuration.
    """
    batch_size, features, outputs = generator.integer(4, 6), generator.odd(5, 9), generator.integer(3, 5)
    samples = ranks * (
        (BATCHES - 1) * batch_size + (batch_size if last == "full" else generator.integer(1, batch_size - 2))
    )
    samples -= last == "padded"
    config: Settings = {
        **OPTIMIZERS["momentum"],
        "epochs": 2,
        "momentum": generator.uniform(0.6, 0.85),
        "learning_rate": generator.uniform(0.08, 0.16),
        "warmup_steps": 2,
        "minimum_ratio": 0.1,
        "accumulation_steps": 3,
        "max_grad_norm": generator.uniform(0.15, 0.25),
        "keep_checkpoints": 3,
        **settings,
    }
    classes = np.array([generator.integer(0, outputs - 1) for _ in range(samples)])
    # Not all alike: the batches' own gradients must differ, and many must be longer than the limit.
    inputs = generator.normal(samples, features) * np.linspace(0.3, 2.0, samples, dtype=np.float32)[:, None]
    weight = generator.normal(outputs, features + 1)
    return Training(weight=weight, inputs=inputs, classes=classes, batch_size=batch_size, config=config)


def _with_optimizer(training: Training, name: str) -> Training:
    """The same with another of OPTIMIZERS. AdamW divides a gradient by its own size: smaller rates."""
    slower: Settings = {"learning_rate": training.config["learning_rate"] / 8} if name == "adamw" else {}
    return replace(training, config={**training.config, **OPTIMIZERS[name], **slower})


def trainings(generator: InputGenerator, ranks: int) -> list[Training]:
    """Several trainings for so many ranks; the same for all checks of a grading."""
    drawn = [training(generator.shared(f"lab5.steps{ranks}"), ranks=ranks)]
    rows = full_rows(generator.shared("lab5.trainings"), drawable(_TRAININGS), 6, _can_be)
    for place, row in enumerate(row for row in rows if row["ranks"] == ranks):
        shared = generator.shared(f"lab5.training{ranks}.{place}")
        settings: Settings = {"epochs": row["epochs"], "accumulation_steps": row["window"]}
        if row["limit"] != "some":
            settings["max_grad_norm"] = row["limit"]
        each = training(shared, ranks=ranks, last=row["last"], **settings)
        longer = each.total_steps(ranks) + shared.integer(1, 3)
        warmup_steps = {"none": 0, "part": each.config["warmup_steps"], "longer": longer}[row["warmup"]]
        each = replace(each, config={**each.config, "warmup_steps": warmup_steps})
        drawn.append(_with_optimizer(each, row["optimizer"]))
    return [*drawn, wide(generator, ranks)] if ranks > 1 else drawn


def wide(generator: InputGenerator, ranks: int) -> Training:
    """A training whose gradient is so large that the network's counters tell how often it is exchanged."""
    shared = generator.shared(f"lab5.wide{ranks}")
    usual = training(shared, ranks=ranks, accumulation_steps=BATCHES + 2)
    features, outputs = 2 * shared.integer(1020, 1050) + 1, len(usual.weight)
    inputs = shared.normal(len(usual.inputs), features)
    return replace(usual, inputs=inputs, weight=shared.normal(outputs, features + 1) * np.float32(features**-0.5))


def asleep(generator: InputGenerator) -> float:
    """How many times as large logits are in evaluation mode, in which nothing is trained."""
    return generator.shared("lab5.asleep").uniform(0.3, 0.6)


def _can_be(row: Mapping[str, object]) -> bool:
    """With AdamW the size of a gradient has no influence: clipping is not seen. One rank has all samples."""
    return (row["optimizer"], row["limit"]) != ("adamw", "some") and (row["ranks"], row["last"]) != (1, "padded")


def mixed(generator: InputGenerator) -> list[Mixed]:
    """Trainings in 16 bits."""
    shared = generator.shared("lab5.mixed")
    cases = []
    for row in full_rows(shared, drawable(_MIXED), 2):
        settings: Settings = {"epochs": 3, "initial_scale": 2.0**20, "dtype": row["dtype"]}
        settings |= {"accumulation_steps": row["window"], "log_every_steps": row["log"]}
        settings["save_every_steps"] = 1000  # more than there are, so that nothing is saved
        cases.append(Mixed(training=training(shared, **settings), growth=GROWTH))
    return cases


def validations(generator: InputGenerator) -> list[Validate]:
    """Batches of different sizes, on one rank and on two, one of which has hardly any."""
    classes, large = generator.integer(3, 5), generator.odd(9, 15)
    # From 2048 on float16 does not hold every number: who counts in it is wrong.
    huge, dtypes = generator.odd(2081, 2141), generator.shuffled(["float32", "bfloat16", "float16"])
    cases = []
    for sizes, dtype in zip(([[huge, 2, large, 1]], [[4, large], [1]], [[], [large, 2, 3]]), dtypes, strict=True):
        samples = sum(map(sum, sizes))
        shared = generator.shared(f"lab5.validate{sizes}")
        logits = shared.normal(samples, classes) * 2
        targets = np.array([shared.integer(0, classes - 1) for _ in range(samples)])
        known = max(0, samples - 20)
        targets[:known] = logits[:known].argmax(axis=1)
        logits[-1, targets[-1]] -= 9.0  # the last, smallest batch is the worst
        cases.append(Validate(logits=logits, classes=targets, sizes=sizes, dtype=dtype, epochs=1))
    return cases


def run_in_two_parts(generator: InputGenerator, dtype: str, ranks: int) -> Resume:
    """A training, after how many epochs it is left, and whether it is continued in the middle of the next one."""
    rows = full_rows(generator.shared("lab5.resumes"), drawable(_RESUMES), 3)
    (row,) = [row for row in rows if row["run"] == (dtype, ranks)]
    shared, middle = generator.shared(f"lab5.resume.{dtype}.{ranks}"), row["middle"]
    # The larger scale overflows in the first steps. Of an epoch that is left in its middle there have to be several
    # steps: the checkpoint at the end of one with a single step would take the place of what is loaded.
    settings: Settings = {"dtype": dtype, "accumulation_steps": 2, "initial_scale": 2.0 ** (8 if middle else 20)}
    settings["epochs"] = shared.integer(4, 5)
    drawn = training(shared, ranks=ranks, **settings)
    return Resume(training=_with_optimizer(drawn, row["optimizer"]), stop=shared.integer(1 + middle, 3), middle=middle)


IN_AN_EPOCH, ONCE_MORE = "in the middle of the first epoch", "elsewhere in the first epoch"
IN_THE_LAST_WINDOW = "in the last window"


def stops(generator: InputGenerator, ranks: int) -> Stopped:
    """A training that SIGTERM stops in the middle of an epoch, each rank once, and in the last window of one."""
    shared = generator.shared(f"lab5.sigterm{ranks}")
    drawn = training(shared, ranks=ranks, epochs=3, accumulation_steps=2, save_every_steps=2, keep_checkpoints=99)
    own, size = len(drawn.inputs) // ranks, drawn.batch_size
    # The last of five batches, a smaller one, is a window of its own.
    middle = {place: shared.integer(2, 3 * size) for place in (IN_AN_EPOCH, ONCE_MORE)[:ranks]}
    places = {**middle, IN_THE_LAST_WINDOW: shared.integer(4 * size + 1, own)}
    each_epoch = drawn.steps_per_epoch(ranks)
    kept = 2 * shared.integer(1, 4)
    kept -= 2 * (kept % each_epoch == 0)
    signalled = dict(zip(places, [*shared.shuffled(range(ranks)), shared.integer(0, ranks - 1)], strict=True))
    return Stopped(training=drawn, places=places, signalled=signalled, kept=f"step-{kept:08d}.pt")


def logged(generator: InputGenerator) -> list[tuple[int, Logged]]:
    """Trainings whose log is read, each with how many ranks it is for."""
    return [_logged(generator, row) for row in full_rows(generator.shared("lab5.logged"), drawable(_LOGGED), 2)]


def _logged(generator: InputGenerator, row: Row) -> tuple[int, Logged]:
    ranks = row["ranks"]
    settings: Settings = {"epochs": 3, "keep_checkpoints": 2}
    settings |= {"accumulation_steps": row["window"], "log_every_steps": row["every"]}
    if not row["clipped"]:
        settings["max_grad_norm"] = None
    drawn = training(generator.shared(f"lab5.logs{ranks}"), ranks=ranks, **settings)
    return ranks, Logged(training=drawn, back_to=drawn.steps_per_epoch(ranks) * 2)


# What a request's cases are, for the test that every value, and every pair of values, is asked for.


def _cases(request: Request) -> Iterator[Case]:
    """Each training of a request, with its configuration and what else the request says."""
    own = {name: array for name, array in request.tensors.items() if "/" not in name}
    inputs = {**put_back(request.params, request.tensors), **own}
    for each in inputs.get("trainings", [inputs.get("training")]):
        yield {**inputs, **each, "dtype": "float32", **each["config"], "ranks": request.ranks}


def _plain(name: str, *values: str) -> Dimension:
    """A value of the case as it is."""
    return Dimension(name, values, lambda case: None if name not in case else str(case[name]))


def _share(case: Case) -> int:
    """Samples of a rank, some of them drawn twice if need be."""
    return int(-(-len(case["inputs"]) // case["ranks"]))


def _window(case: Case) -> str:
    size, batches = case["accumulation_steps"], int(-(-_share(case) // case["batch_size"]))
    if size == 1:
        return "one batch"
    return "longer than the epoch" if size > batches else "short last" if batches % size else "divides"


def _limit(case: Case) -> str:
    limit = case["max_grad_norm"]
    return "none" if limit is None else "never reached" if limit >= 1e5 else "a limit"


def _optimizer(case: Case) -> str:
    if case.get("optimizer") == "adamw":
        return "adamw"
    return "sgd with weight decay" if case.get("weight_decay") else "sgd with momentum"


def _last(case: Case) -> str:
    if len(case["inputs"]) % case["ranks"]:
        return "padded"
    return "smaller" if _share(case) % case["batch_size"] else "full"


def _logs(case: Case) -> str | None:
    return {1: "each step", 2: "every other"}.get(case.get("log_every_steps", 10))


def _place(case: Case) -> str:
    return "in the middle of an epoch" if case["middle"] else "between two epochs"


SPACES = (
    Space(
        probes=(Epochs.probe,),
        cases=_cases,
        dimensions=(
            _plain("ranks", *_TRAININGS["ranks"]),
            Dimension("window", tuple(_TRAININGS["window"]), _window),
            Dimension("clipping", tuple(_TRAININGS["limit"]), _limit),
            Dimension("optimizer", tuple(_TRAININGS["optimizer"]), _optimizer),
            Dimension("last batch", tuple(_TRAININGS["last"]), _last),
            _plain("epochs", *_TRAININGS["epochs"]),
        ),
        apart={
            ("last batch=padded", "ranks=1"): "one rank has all samples",
            ("optimizer=adamw", "clipping=a limit"): "it divides a gradient by its own size",
        },
    ),
    Space(
        probes=(Mixed.probe,),
        cases=_cases,
        dimensions=(
            _plain("dtype", *_MIXED["dtype"]),
            Dimension("window", tuple(_MIXED["window"]), _window),
            Dimension("log", tuple(_MIXED["log"]), _logs),
        ),
    ),
    Space(
        probes=(Resume.probe,),
        cases=_cases,
        dimensions=(
            _plain("ranks", "1", "2"),
            _plain("dtype", "float32", "float16"),
            _plain("optimizer", *_RESUMES["optimizer"]),
            Dimension("place", tuple(_RESUMES["middle"]), _place),
        ),
        apart={("ranks=2", "dtype=float16"): "the grading device is one GPU"},
    ),
    Space(
        probes=(Logged.probe,),
        cases=_cases,
        dimensions=(
            _plain("ranks", *_LOGGED["ranks"]),
            Dimension("window", tuple(_LOGGED["window"]), _window),
            Dimension("clipping", tuple(_LOGGED["clipped"]), _limit),
            Dimension("log", tuple(_LOGGED["every"]), _logs),
        ),
    ),
)
WITHOUT = {
    Stopped.probe: "two places on one rank and on two, all in every grading",
    Validate.probe: "three ways to share samples out, all of them in every grading",
    "lab5.pipeline.trainers.make": "a helper of other probes",
}
