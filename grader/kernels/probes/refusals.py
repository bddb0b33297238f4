"""Probes of what the functions of the exercise do with arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grader.shared.probes.endings import ending


def ask(student: Any, *, criterion: str) -> dict[str, Any]:
    """By call: the name of the error that it raised. `calls` make no sense; `sensible` are neighbours that do."""

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
        return torch.zeros(*shape, device=student.device, dtype=dtype)

    half, names = torch.float16, {"add": "vector_add", "attention": "flash_attention"}
    module = student.module(f"kernels_exercise.{names.get(criterion, criterion)}")
    calls: dict[str, Callable[[], Any]]
    sensible: dict[str, Callable[[], Any]]
    if criterion == "add":
        calls = {
            "vector_add() of 5 and 6 elements": lambda: module.vector_add(zeros(5), zeros(6)),
            "vector_add() of [2, 3] and [3, 2]": lambda: module.vector_add(zeros(2, 3), zeros(3, 2)),
            "vector_add() of float32 and float16": lambda: module.vector_add(zeros(5), zeros(5, dtype=half)),
            "vector_add() of every second element": lambda: module.vector_add(zeros(10)[::2], zeros(5)),
        }
        sensible = {
            "vector_add() of the elements from the second on": lambda: module.vector_add(zeros(6)[1:], zeros(5)),
            "vector_add() of no elements": lambda: module.vector_add(zeros(0), zeros(0)),
        }
    elif criterion == "softmax":
        calls = {
            "softmax() of a vector": lambda: module.softmax(zeros(5)),
            "softmax() of [2, 3, 4]": lambda: module.softmax(zeros(2, 3, 4)),
            "softmax() of rows without columns": lambda: module.softmax(zeros(2, 0)),
            "softmax() of 8193 columns": lambda: module.softmax(zeros(1, 8193)),
            "softmax() of every second column": lambda: module.softmax(zeros(2, 10)[:, ::2]),
        }
        sensible = {
            "softmax() of 8192 columns": lambda: module.softmax(zeros(1, 8192)),
            "softmax() of one column": lambda: module.softmax(zeros(3, 1)),
        }
    elif criterion == "matmul":
        calls = {
            "matmul() of [2, 3] and [4, 2]": lambda: module.matmul(zeros(2, 3), zeros(4, 2)),
            "matmul() of a matrix and a vector": lambda: module.matmul(zeros(2, 3), zeros(3)),
            "matmul() of float32 and float16": lambda: module.matmul(zeros(2, 3), zeros(3, 2, dtype=half)),
            "time_tiles(0, 16, 16)": lambda: module.time_tiles(0, 16, 16, device=student.device),
            "time_tiles() of no candidates": lambda: module.time_tiles(16, 16, 16, [], device=student.device),
        }
        sensible = {"matmul() of [1, 1] and [1, 1]": lambda: module.matmul(zeros(1, 1), zeros(1, 1))}
    else:

        def attend(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
            return module.flash_attention(*(zeros(*shape, dtype=dtype) for shape in shapes))

        right = (1, 1, 3, 16)
        calls = {
            "flash_attention() of 3 queries and 4 keys": lambda: attend(right, (1, 1, 4, 16), (1, 1, 4, 16)),
            "flash_attention() of three sides": lambda: attend((1, 3, 16), (1, 3, 16), (1, 3, 16)),
            "flash_attention() of head_dim 24": lambda: attend(*[(1, 1, 3, 24)] * 3),
            "flash_attention() of float64": lambda: attend(*[right] * 3, dtype=torch.float64),
            "flash_attention() of float32 and float16": lambda: module.flash_attention(
                zeros(*right), zeros(*right, dtype=half), zeros(*right)
            ),
        }
        sensible = {"flash_attention() of one query and one key": lambda: attend(*[(1, 1, 1, 16)] * 3)}
    return {
        "calls": {name: ending(call) for name, call in calls.items()},
        "sensible": {name: ending(call) for name, call in sensible.items()},
    }
