"""What the labs measure, as plain frozen values, and how it is kept in JSON.

Not for measuring: nothing here touches PyTorch, so a grader without PyTorch can read what a student wrote. Each lab's
values are in a module of its own; import them from here.
"""

from labkit.results.files import SCHEMA, Provenance, ResultsError, Saved, load_json, save_json
from labkit.results.kernels import KernelPlace, KernelWork, Tiles, TileTiming
from labkit.results.lab1 import (
    STAGES,
    Comparison,
    Environment,
    MatmulResult,
    MemoryProfile,
    OperationTime,
    StageMemory,
)
from labkit.results.lab2 import AmpTraining, NumberFormat, PrecisionConclusions, PrecisionResult, StabilityRun
from labkit.results.lab3 import AccumulationResult, DdpTraining, ScalingPoint, StepProfile
from labkit.results.lab4 import (
    ATTENTION_METHODS,
    AttentionResult,
    CheckpointingResult,
    LargeTraining,
    MemoryComparison,
    MemoryPrediction,
    TrainingSetup,
)
from labkit.results.lab5 import EpochResult, TrainerRun, ValidationResult
from labkit.results.lab5_monitoring import MonitorOverhead
from labkit.results.lab5_profiling import DeviceTime, PipelineSettings, PipelineStage, TuningPoint
from labkit.results.sharding import ShardedMemory, ShardingResult

__all__ = [
    "ATTENTION_METHODS",
    "SCHEMA",
    "STAGES",
    "AccumulationResult",
    "AmpTraining",
    "AttentionResult",
    "CheckpointingResult",
    "Comparison",
    "DdpTraining",
    "DeviceTime",
    "Environment",
    "EpochResult",
    "KernelPlace",
    "KernelWork",
    "LargeTraining",
    "MatmulResult",
    "MemoryComparison",
    "MemoryPrediction",
    "MemoryProfile",
    "MonitorOverhead",
    "NumberFormat",
    "OperationTime",
    "PipelineSettings",
    "PipelineStage",
    "PrecisionConclusions",
    "PrecisionResult",
    "Provenance",
    "ResultsError",
    "Saved",
    "ScalingPoint",
    "ShardedMemory",
    "ShardingResult",
    "StabilityRun",
    "StageMemory",
    "StepProfile",
    "TileTiming",
    "Tiles",
    "TrainerRun",
    "TrainingSetup",
    "TuningPoint",
    "ValidationResult",
    "load_json",
    "save_json",
]
