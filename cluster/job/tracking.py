"""Metrics to MLflow, if asked for: the trainer tells rank 0's, as it tells them to Lab 5's monitor."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from cluster.job.settings import SettingError, Settings


class MlflowSink:
    """What Lab 5's trainer tells its metrics to.

    Args:
        mlflow: the module.
    """

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        self._mlflow.log_metrics(dict(metrics), step=step)


@contextmanager
def tracked(settings: Settings, *, rank: int) -> Iterator[MlflowSink | None]:
    """A run of MLflow around the block, on rank 0, with the settings as its parameters; None without tracking.

    The run is named after the output folder; a restart of the job begins another one of that name.

    Raises:
        SettingError: MLflow is asked for and not installed.
    """
    if settings.mlflow_tracking_uri is None or rank != 0:
        yield None
        return
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ImportError as error:
        raise SettingError("MLFLOW_TRACKING_URI is set, but mlflow is not installed: pip install mlflow") from error
    mlflow.set_tracking_uri(settings.mlflow_tracking_uri)
    mlflow.set_experiment("gpu-computing-labs")
    with mlflow.start_run(run_name=settings.output_dir.name):
        mlflow.log_params({name: str(value) for name, value in asdict(settings).items()})
        yield MlflowSink(mlflow)
