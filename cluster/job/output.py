"""What the job leaves behind for others: the model, and what is to be known of it."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cluster.job.plan import Plan
from cluster.job.settings import Settings
from cluster.job.training import package
from labkit.device import Device
from labkit.files import atomic_write
from labkit.monitoring import plain
from labkit.results import TrainerRun

MODEL_NAME = "trained-model.safetensors"
METADATA_NAME, TEXT_NAME = "training_metadata.json", "training_metadata.txt"


def write(settings: Settings, plan: Plan, trainer: Any, run: TrainerRun, device: Device) -> list[Path]:
    """Write the parameters of the best epoch, and the metadata as JSON and as text; returns the paths."""
    folder = settings.output_dir
    best = package(settings, "checkpoints").read_checkpoint(folder / "best.pt")
    with atomic_write(folder / MODEL_NAME) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in best["model"].items()}, temporary)
    document = metadata(settings, plan, trainer, run, device, best["model"])
    with atomic_write(folder / METADATA_NAME) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with atomic_write(folder / TEXT_NAME) as temporary:
        temporary.write_text("".join(f"{name}: {value}\n" for name, value in document.items()), encoding="utf-8")
    return [folder / name for name in (MODEL_NAME, METADATA_NAME, TEXT_NAME)]


def sha256(parameters: Mapping[str, Tensor]) -> str:
    """Of all parameters' names and bits: two runs with the same one have trained the same model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(parameters.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def metadata(
    settings: Settings, plan: Plan, trainer: Any, run: TrainerRun, device: Device, best_parameters: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What is to be known of a trained model; plain values."""
    best = run.best_epoch if run.best_epoch is not None else len(run.validations) - 1
    samples = sum(epoch.samples for epoch in run.epochs)
    return dict(
        plain(
            {
                "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
                "ended": run.ended,
                "model": settings.model,
                "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
                "dataset": settings.dataset_type,
                "augmented": settings.augmented,
                "epochs": len(run.epochs),
                "best_epoch": best,
                "accuracy": run.validations[best].accuracy,
                "loss": run.validations[best].loss,
                "device": device.torch_device,
                "device_name": device.name,
                "simulated": device.simulated,
                "world_size": run.world_size,
                "dtype": run.dtype,
                "samples_per_step": plan.samples,
                "learning_rate": plan.learning_rate,
                "sha256": sha256(best_parameters),
                "optimizer_steps": run.optimizer_steps,
                "samples": samples,
                "seconds_since_last_start": run.seconds,
                "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
                "torch": torch.__version__,
                "settings": {name: str(value) for name, value in asdict(settings).items() if value is not None},
                "history": [
                    {
                        "epoch": epoch.epoch,
                        "loss": epoch.loss,
                        "validation_loss": validation.loss,
                        "accuracy": validation.accuracy,
                    }
                    for epoch, validation in zip(run.epochs, run.validations, strict=True)
                ],
            }
        )
    )
