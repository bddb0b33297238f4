"""The loop. What happens at its corners is in methods called on_..., as one overrides them in Lightning."""

import dataclasses
import time
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.results import EpochResult, TrainerRun, ValidationResult

from . import checkpoints as files
from .parts import Progress, count_targets
from .telling import when_terminated
from .window import WindowTrainer


class ProductionTrainer(WindowTrainer):
    """See the hand-out."""

    def on_train_batch_end(self, loss, samples, rate, norm):
        (loss,) = self.sum_over_ranks(loss)
        now = time.perf_counter()
        speed = self.samples_since / max(now - self.logged_at, 1e-9)
        self.logged_at, self.samples_since = now, 0
        if self.rank != 0:
            return
        names = ("loss", "learning_rate", "grad_norm", "samples_per_second")
        values = (loss / samples, rate, norm, speed)
        self.log.add(self.steps, {f"train/{name}": value for name, value in zip(names, values, strict=True)})

    def on_train_epoch_start(self, epoch):
        where = self.train_loader
        if (where.epoch, where.position > 0, where.position < len(where)) != (epoch, True, True):
            where.set_epoch(epoch)
            self.progress = self.no_progress()
        self.next_epoch = epoch
        self.model.train()
        self.logged_at, self.samples_since = time.perf_counter(), 0

    def train_epoch(self, epoch):
        self.on_train_epoch_start(epoch)
        window = []
        for batch in self.train_loader:
            window.append(batch)
            over = self.train_loader.position == len(self.train_loader)
            if len(window) < self.config.accumulation_steps and not over:
                continue
            made, window = self.train_window(window), []
            if over:
                self.next_epoch += 1
            elif self.stopping:
                break
            elif made and self.config.save_every_steps and self.steps % self.config.save_every_steps == 0:
                self.save_checkpoint(epoch)
        return self.on_train_epoch_end(epoch)

    def on_train_epoch_end(self, epoch):
        loss, samples = self.sum_over_ranks(self.progress.loss_sum.item(), self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=self.next_epoch != epoch,
            loss=None if samples == 0 else loss / samples,
            samples=round(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def on_validation_start(self):
        for buffer in self.model.buffers() if self.world_size > 1 else ():
            dist.broadcast(buffer, src=0)
        training = {name for name, module in self.model.named_modules() if module.training}
        self.model.eval()
        return training

    def validation_step(self, batch):
        inputs, targets = batch
        count = count_targets(targets)
        outputs, mean = self.forward(self.model, inputs, targets)
        loss = mean.item() * count if count else 0.0
        if targets.is_floating_point() or targets.ndim > 1 or outputs.ndim != 2:
            return loss, 0, count, 1
        return loss, outputs.argmax(-1).cpu().eq(targets).sum().item(), count, 0

    def on_validation_end(self, training):
        for name, module in self.model.named_modules():
            module.training = name in training

    def validate(self):
        training = self.on_validation_start()
        with torch.inference_mode():
            rows = [self.validation_step(batch) for batch in self.val_loader]
        self.on_validation_end(training)
        loss, right, samples, others = self.sum_over_ranks(*(sum(row[i] for row in rows) for i in range(4)))
        if samples < 1:
            raise ValueError("no samples")
        return ValidationResult(
            loss=loss / samples, accuracy=None if others else right / samples, samples=round(samples)
        )

    def on_save_checkpoint(self):
        progress = dataclasses.asdict(self.progress)
        progress["loss_sum"] = float(self.progress.loss_sum)
        return {
            "generators": files.capture_random_state(),
            "position": self.train_loader.state_dict(),
            "progress": progress,
        }

    def save_checkpoint(self, epoch):
        mine = self.on_save_checkpoint()
        everybody = [mine] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(everybody, mine)
        path = files.checkpoint_path(Path(self.config.output_dir, "checkpoints"), self.steps)
        if self.rank == 0:
            modules = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
            history = [[vars(one), vars(other)] for one, other in zip(self.epochs, self.validations, strict=True)]
            state = {"modules": modules, "steps": self.steps, "epoch": epoch, "history": history, "ranks": everybody}
            files.write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        if self.world_size > 1:
            dist.barrier()
        return path

    def load_checkpoint(self, path):
        state = files.read_checkpoint(path)
        if self.world_size != len(state["ranks"]):
            raise ValueError(f"written by {len(state['ranks'])} ranks")
        mine = state["ranks"][self.rank]
        self.train_loader.load_state_dict(mine["position"])
        for name, own in state["modules"].items():
            getattr(self, name).load_state_dict(own)
        self.steps = state["steps"]
        sums = torch.tensor(mine["progress"].pop("loss_sum"), dtype=torch.float64, device=self.device)
        self.progress = Progress(sums, **mine["progress"])
        self.epochs = [EpochResult(**one) for one, _ in state["history"]]
        self.validations = [ValidationResult(**other) for _, other in state["history"]]
        self.next_epoch = state["epoch"] + (self.train_loader.position == len(self.train_loader))
        self.log.resume_at(self.steps)
        files.restore_random_state(mine["generators"])
        return self.next_epoch

    def on_fit_start(self):
        if self.next_epoch is not None:
            return
        found = [None]
        if self.rank == 0:
            found[0] = files.latest_checkpoint(Path(self.config.output_dir, "checkpoints"))
        if self.world_size > 1:
            dist.broadcast_object_list(found, src=0)
        self.next_epoch = 0
        if found[0]:
            self.load_checkpoint(found[0])

    @property
    def best_epoch(self):
        numbers = [(one.loss, epoch.epoch) for epoch, one in zip(self.epochs, self.validations, strict=True)]
        return min(((loss, epoch) for loss, epoch in numbers if loss == loss), default=(None, None))[1]

    @property
    def impatient(self):
        patience = self.config.patience
        if patience is None:
            return False
        best = self.best_epoch
        return len(self.epochs) - (0 if best is None else best + 1) >= patience

    def fit(self):
        begin = time.perf_counter()
        self.on_fit_start()
        self.told_to_stop = self.stopping = False
        with when_terminated(lambda: setattr(self, "told_to_stop", True)):
            while True:
                ended = (self.next_epoch >= self.config.epochs and "finished") or (self.impatient and "early")
                ended = ended or (self.stopping and "signal")
                if ended:
                    break
                epoch = self.next_epoch
                result = self.train_epoch(epoch)
                if result.complete:
                    self.on_epoch_complete(result)
                self.save_checkpoint(epoch)
        self.log.close()
        return TrainerRun(
            device=self.device.type,
            dtype=self.config.dtype,
            world_size=self.world_size,
            ended=ended,
            epochs=tuple(self.epochs),
            validations=tuple(self.validations),
            best_epoch=self.best_epoch,
            optimizer_steps=self.steps,
            learning_rate=self.scheduler.get_last_lr()[0],
            final_scale=self.scaler.get_scale() if self.dtype == torch.float16 else None,
            seconds=time.perf_counter() - begin,
        )

    def on_epoch_complete(self, result):
        tested = self.validate()
        self.epochs.append(result)
        self.validations.append(tested)
        if self.rank != 0:
            return
        self.log.add(self.steps, {"validation/loss": tested.loss})
        if tested.accuracy is not None:
            self.log.add(self.steps, {"validation/accuracy": tested.accuracy})
        if self.best_epoch == result.epoch:
            best = {
                "epoch": result.epoch,
                "model": {key: value.cpu() for key, value in self.model.state_dict().items()},
            }
            files.write_checkpoint(Path(self.config.output_dir, "best.pt"), best)
