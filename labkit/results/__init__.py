"""What the labs measure, as plain frozen values, and how it is kept in JSON.

Not for measuring: nothing here touches PyTorch, so a grader without PyTorch can read what a student wrote. Each lab's
values stand in a module of its own; import them from here.
"""

from labkit.results.files import SCHEMA, Provenance, ResultsError, Saved, load_json, save_json
from labkit.results.lab1 import (
    STAGES,
    Comparison,
    Environment,
    MatmulResult,
    MemoryProfile,
    OperationTime,
    StageMemory,
)

__all__ = [
    "SCHEMA",
    "STAGES",
    "Comparison",
    "Environment",
    "MatmulResult",
    "MemoryProfile",
    "OperationTime",
    "Provenance",
    "ResultsError",
    "Saved",
    "StageMemory",
    "load_json",
    "save_json",
]
