"""Judges the files of Lab 5's trainer: configurations and checkpoints. `pipeline.py` asks for them."""

from __future__ import annotations

from gradebox.assertions import (
    require,
    require_equal,
)
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.shared.cases import full_rows


def judge_configuration(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a configuration is kept, and a bad one refused."""
    number = fresh.integer(2, 99)
    settings = [
        {
            **row,
            "epochs": fresh.integer(2, 90),
            "weight_decay": fresh.log_uniform(1e-9, 1e-3),
            "warmup_steps": fresh.integer(1, 9),
            "minimum_ratio": fresh.uniform(0.1, 0.9),
            "accumulation_steps": fresh.integer(2, 9),
            "keep_checkpoints": fresh.integer(4, 9),
            "log_every_steps": fresh.integer(11, 19),
            "seed": fresh.integer(1, 99),
            "initial_scale": 2.0 ** fresh.integer(1, 12),
        }
        for row in full_rows(
            fresh.shared("lab5.settings"),
            {
                "output_dir": (f"plain-{number}", f'a "quoted" \\ folder {number}', f"Läufe {number}"),
                "learning_rate": (fresh.log_uniform(1e-7, 1e-5), fresh.uniform(0.01, 0.1), 1.0),
                "max_grad_norm": (None, fresh.uniform(0.1, 2.0), float(number)),
                "dtype": ("float32", "float16", "bfloat16"),
                "optimizer": ("sgd", "adamw"),
                "momentum": (0.0, fresh.uniform(0.1, 0.8)),
                "deterministic": (True, False),
                "patience": (None, number),
                "save_every_steps": (None, number),
            },
            5,
        )
    ]
    highest = fresh.integer(1, 9)
    unknown = [f"{name}_{fresh.integer(100, 999)}" for name in ("lerning_rate", "warm_up")]
    place = f"Läufe {fresh.integer(1, 99)}"
    given = fresh.shuffled(
        [
            (f"epochs = 4\n{unknown[0]} = 0.1\n{unknown[1]} = 3\n", "utf-8", "two unknown keys"),
            ('epochs = "four"\n', "utf-8", "a string for epochs"),
            ("epochs = \n", "utf-8", "text that is no TOML"),
            ("epochs = 0\n", "utf-8", "epochs = 0"),
            (f"epochs = {-fresh.integer(1, 9)}\n", "utf-8", "epochs below 0"),
            ("epochs = 2.5\n", "utf-8", "epochs = 2.5"),
            ("deterministic = 1\n", "utf-8", "a number for deterministic"),
            (f"learning_rate = {highest}\n", "utf-8", ""),
            (f'learning_rate = {highest}\noutput_dir = "{place}"\n', "utf-8", ""),
            # TOML is UTF-8, in its comments, too; editors and shells of Windows write other encodings.
            (f'output_dir = "{place}"\n', "latin-1", "text in Latin-1"),
            ("epochs = 4  # zwölf sind zu viel\n", "latin-1", "a comment in Latin-1"),
            ("epochs = 4\n", "utf-16", "text in UTF-16"),
        ]
    )
    texts = [[text, encoding] for text, encoding, _ in given]
    seen = submission.probe("lab5.pipeline.configuration", device="cpu", texts=texts, settings=settings)
    for values, loaded in zip(settings, seen.loaded, strict=True):
        for name, value in values.items():
            require_equal(loaded[name], value, what=f"TrainerConfig.{name} after save() and load()")
    for (text, encoding, why), outcome in zip(given, seen.outcomes, strict=True):
        about = f" with {why}" if why else ""
        require_equal(
            outcome["error"],
            "ConfigError" if why else "",
            what=f"TrainerConfig.load() of a file{about} ({text!r}) raised",
            hint="" if encoding == "utf-8" else "what is not UTF-8 is not TOML: who reads it gets an error of its own",
        )
        if why:
            require(
                bool(outcome["named"]), f"the error of a file{about} does not name the file: {outcome['message']!r}"
            )
        else:
            names = ("learning_rate", "epochs", "momentum", "patience", "output_dir")
            found = [outcome["given"][name] for name in names]
            wanted_values = [float(highest), 5, 0.9, None, place if place in text else "run"]
            about = f"{', '.join(names[:-1])} and {names[-1]} of a file with {text!r}"
            require_equal(found, wanted_values, what=about, hint="a key that is not there has its default")
        if why == "two unknown keys":
            message = outcome["message"]
            require(
                all(name in message for name in unknown),
                f"the error of a file with the unknown keys {' and '.join(unknown)} says: {message[:200]!r}",
                "name every unknown key in one message: who misspelled two wants to correct both",
            )
    for where, error in seen.unreadable.items():
        require_equal(error, "OSError", what=f"kind of TrainerConfig.load()'s error where {where}")
    require_equal(
        seen.full,
        [True, True],
        what="save() on a disk that is full: whether it raised an OSError, and left the old file as it was",
        hint="labkit.files.atomic_write: the file is replaced as a whole, or left alone",
    )


def judge_saving(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a kill, a full disk and a power failure leave the old checkpoint or the new one."""
    steps = [fresh.integer(1, 9), fresh.integer(10, 99), fresh.integer(100, 900)]
    killed = steps[-1] + fresh.integer(1, 9)
    later = killed + fresh.integer(1, 9)
    name = "step-{:08d}.pt".format
    # What was killed, and what is written next: checkpoints, best.pt, and what else somebody may keep.
    best, other = "best.pt", f"weights-{fresh.integer(10, 99)}.pt"
    files = {"a checkpoint": (name(killed), name(later)), "best.pt": (best, best), "another": (other, other)}
    drawn = full_rows(fresh.shared("lab5.swept"), {"killed": tuple(files), "written": tuple(files)}, 3)
    pairs = [(files[row["killed"]][0], files[row["written"]][1]) for row in drawn]
    seen = submission.probe("lab5.saving.saving", device="cpu", steps=steps, killed=killed, later=later, pairs=pairs)
    _, second, third = steps
    others = ["step-notes.pt"]
    require_equal(seen.everything, [name(step) for step in steps], what=f"files after checkpoints of steps {steps}")
    require_equal(seen.none, None, what="latest_checkpoint() of a folder that is not there")
    require_equal(seen.kept, [name(second), name(third)], what=f"files after checkpoints of steps {steps} with keep=2")
    require(
        bool(seen.killed),
        "write_checkpoint() neither forced anything to the disk nor gave a file its name with os.replace",
        "write beside it, os.fsync, then os.replace",
    )
    require_equal(
        seen.after_kill,
        name(third),
        what=f"latest_checkpoint() after a process was killed writing step {killed}",
        hint="write under another name beside it: a file gets its own name when its content is complete",
    )
    require_equal(
        seen.cleaned,
        [name(third), name(later), *others],
        what=f"files after checkpoint {later}, written after that",
        hint="what a killed process left behind goes with the next write; what is no checkpoint stays",
    )
    complete: set[str] = set()
    for (left, written), found in zip(pairs, seen.swept, strict=True):
        complete.add(written)
        require_equal(
            found,
            sorted(complete),
            what=f"files of a folder in which a process was killed writing {left}, and another then wrote {written}",
            hint="the next write removes what a killed one left behind, whatever the two files are called",
        )
    order = [event for event in seen.synced if event in ("file", "name")]
    require(
        "file" in order and order.index("file") < (order.index("name") if "name" in order else len(order)),
        f"write_checkpoint() forced to the disk or renamed, in this order: {seen.synced}",
        "os.fsync the temporary file first, then os.replace it, then os.fsync the folder: a rename may otherwise "
        "reach the disk before the content does",
    )
    require(
        seen.lacking <= 0,
        f"write_checkpoint() forced its file to the disk when {seen.lacking} bytes of it had not been written yet",
        "file.flush() before os.fsync(): Python still holds what was written last",
    )
    named = len(seen.synced) - 1 - seen.synced[::-1].index("name") if "name" in seen.synced else -1
    require(
        "folder" in seen.synced[named + 1 :],
        f"write_checkpoint() did not force the folder to the disk after the rename; in this order: {seen.synced}",
        "os.fsync of the folder: until then a power failure may take the new name back",
    )
    require(
        "folder" not in seen.synced[seen.synced.index("old one") :] if "old one" in seen.synced else True,
        f"write_checkpoint() removed old checkpoints before the new one was safe; in this order: {seen.synced}",
        "old checkpoints go last",
    )
    require(bool(seen.failed), "write_checkpoint() said nothing although the disk was full in the middle")
    require_equal(
        seen.after_failure, [name(third), name(later), *others], what="files after a write that failed half-way",
        hint="remove the temporary file, and old checkpoints only after the new one is complete",
    )  # fmt: skip
    require_equal(
        [seen.newest, seen.steps], [name(later), later],
        what="latest_checkpoint(), and the steps in it, after a write over it that failed",
        hint="write beside it, then os.replace",
    )  # fmt: skip
    for how, found in seen.older.items():
        require_equal(
            found, name(later), what=f"latest_checkpoint() where the newest file {how}, and an old one touched"
        )
