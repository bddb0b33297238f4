"""A trainer in one class: losses are sums, gradients are divided once, and the optimizer says what was taken."""

import math
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from labkit.results import EpochResult, TrainerRun, ValidationResult

from . import checkpoints

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NEW_EPOCH = {"loss": 0.0, "samples": 0, "taken": 0, "windows": 0}


def weight_of(targets):
    if targets.dtype.is_floating_point:
        return targets.shape[0]
    return int(targets.ne(-100).sum())


class ProductionTrainer:
    def __init__(self, model, train_loader, val_loader, config, *, criterion=None, device=None, monitor=None):
        self.config = config
        self.device = torch.device(device or next(model.parameters()).device)
        self.model = model.to(self.device)
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.criterion = criterion or torch.nn.functional.cross_entropy
        self.monitor = monitor
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(config.seed + self.rank)
        self.network = DistributedDataParallel(model) if self.ranks > 1 else model
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(
                model.parameters(), lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
            )
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
            )
        self.scheduler = self._schedule()
        self.optimizer.register_step_post_hook(self._stepped)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=config.dtype == "float16"
        )
        self.steps = 0
        self.epoch = None
        self.current = dict(NEW_EPOCH)
        self.history = []
        self.must_stop = False
        self.stopped = False
        self.writer = None
        self.purge = None

    def _schedule(self):
        config = self.config
        windows = math.ceil(len(self.train_loader) / config.accumulation_steps)
        falling = max(1, windows * config.epochs - config.warmup_steps)
        cosine = CosineAnnealingLR(self.optimizer, falling, eta_min=config.learning_rate * config.minimum_ratio)
        if config.warmup_steps == 0:
            return cosine
        rising = LinearLR(self.optimizer, 1 / config.warmup_steps, total_iters=config.warmup_steps - 1)
        return SequentialLR(self.optimizer, [rising, cosine], milestones=[config.warmup_steps])

    def _stepped(self, optimizer, args, kwargs):
        self.rate = optimizer.param_groups[0]["lr"]
        self.steps += 1
        self.current["taken"] += 1
        self.scheduler.step()

    def _together(self, *values):
        numbers = torch.tensor([float(value) for value in values], dtype=torch.float64)
        if self.ranks > 1:
            numbers = numbers.to(self.device)
            dist.all_reduce(numbers, op=dist.ReduceOp.SUM)
        return numbers.tolist()

    def _outputs(self, network, inputs):
        if self.config.dtype not in HALF:
            return network(inputs)
        with torch.autocast(self.device.type, dtype=HALF[self.config.dtype]):
            outputs = network(inputs)
        return outputs.to(torch.float32)

    def train_epoch(self, epoch):
        loader = self.train_loader
        resumed = loader.epoch == epoch and 0 < loader.position < len(loader)
        if not resumed:
            loader.set_epoch(epoch)
            self.current = dict(NEW_EPOCH)
        self.epoch = epoch
        self.model.train()
        self.lap = [time.perf_counter(), 0]
        window = []
        for batch in loader:
            window.append(batch)
            last = loader.position == len(loader)
            if len(window) < self.config.accumulation_steps and not last:
                continue
            before = self.steps
            self._window(window)
            window = []
            if last:
                self.epoch = epoch + 1
            elif self.stopped:
                break
            elif self.steps > before and self.config.save_every_steps and not self.steps % self.config.save_every_steps:
                self.save_checkpoint(epoch)
        loss, samples = self._together(self.current["loss"], self.current["samples"])
        return EpochResult(
            epoch=epoch,
            complete=self.epoch == epoch + 1,
            loss=loss / samples if samples else None,
            samples=round(samples),
            optimizer_steps=self.current["taken"],
            skipped_steps=self.current["windows"] - self.current["taken"],
        )

    def _window(self, window):
        self.optimizer.zero_grad(set_to_none=True)
        summed, weights = 0.0, 0
        for number, (inputs, targets) in enumerate(window, start=1):
            if self.ranks > 1:
                self.network.require_backward_grad_sync = number == len(window)
            weight = weight_of(targets)
            outputs = self._outputs(self.network, inputs.to(self.device))
            loss = self.criterion(outputs, targets.to(self.device)) * weight if weight else 0 * outputs.sum()
            self.scaler.scale(loss).backward()
            summed += float(loss.detach())
            weights += weight
        total_loss, total, stop = self._together(summed, weights, self.must_stop)
        if total == 0:
            self.stopped = stop > 0
            self.current["windows"] += 1
            return
        self.scaler.unscale_(self.optimizer)
        for parameter in self.model.parameters():
            if parameter.grad is not None:  # it has divided by the ranks already
                parameter.grad.mul_(self.ranks / total)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if self.config.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.max_grad_norm, norm)
        before = self.steps
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.stopped = stop > 0
        self.current["loss"] += summed
        self.current["samples"] += weights
        self.current["windows"] += 1
        self.lap[1] += total
        if self.steps > before and self.steps % self.config.log_every_steps == 0:
            now = time.perf_counter()
            self._tell(
                {
                    "train/loss": total_loss / total,
                    "train/learning_rate": self.rate,
                    "train/grad_norm": float(norm),
                    "train/samples_per_second": self.lap[1] / (now - self.lap[0] + 1e-12),
                }
            )
            self.lap = [now, 0]

    def _tell(self, metrics):
        if self.rank != 0:
            return
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(f"{self.config.output_dir}/tensorboard", purge_step=self.purge)
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, global_step=self.steps)
        if self.monitor is not None:
            self.monitor.log_metrics(self.steps, metrics)

    @torch.inference_mode()
    def validate(self):
        if self.ranks > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train(False)
        loss = right = samples = 0
        classes = True
        for inputs, targets in self.val_loader:
            outputs = self._outputs(self.model, inputs.to(self.device))
            targets = targets.to(self.device)
            weight = weight_of(targets)
            if weight:
                loss += float(self.criterion(outputs, targets)) * weight
            samples += weight
            if targets.dtype.is_floating_point or targets.ndim != 1 or outputs.ndim != 2:
                classes = False
            else:
                right += int(outputs.max(dim=1).indices.eq(targets).sum())
        for module, training in modes:
            module.training = training
        loss, right, samples, others = self._together(loss, right, samples, not classes)
        if samples == 0:
            raise ValueError("nothing to validate with")
        accuracy = None if others else right / samples
        return ValidationResult(loss=loss / samples, accuracy=accuracy, samples=round(samples))

    def save_checkpoint(self, epoch):
        mine = {
            "rng": checkpoints.capture_random_state(),
            "where": self.train_loader.state_dict(),
            "current": dict(self.current),
        }
        gathered = [mine]
        if self.ranks > 1:
            gathered = [None] * self.ranks if self.rank == 0 else None
            dist.gather_object(mine, gathered, dst=0)
        path = checkpoints.checkpoint_path(Path(self.config.output_dir) / "checkpoints", self.steps)
        if self.rank == 0:
            parts = ("model", "optimizer", "scheduler", "scaler")
            state = {name: getattr(self, name).state_dict() for name in parts}
            state |= {"steps": self.steps, "epoch": epoch, "history": self.history, "own": gathered}
            checkpoints.write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        if self.ranks > 1:
            dist.barrier()
        return path

    def load_checkpoint(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if len(state["own"]) != self.ranks:
            raise ValueError(f"{len(state['own'])} ranks wrote it, {self.ranks} read it")
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]
        self.history = [dict(each) for each in state["history"]]
        mine = state["own"][self.rank]
        self.train_loader.load_state_dict(mine["where"])
        self.current = mine["current"]
        self.epoch = state["epoch"] + (self.train_loader.position == len(self.train_loader))
        if self.writer is not None:
            self.writer.close()
        self.writer, self.purge = None, self.steps + 1
        checkpoints.restore_random_state(mine["rng"])
        return self.epoch

    def fit(self):
        began = time.perf_counter()
        if self.epoch is None:
            choice = [None]
            if self.rank == 0:
                choice[0] = checkpoints.latest_checkpoint(Path(self.config.output_dir, "checkpoints"))
            if self.ranks > 1:
                dist.broadcast_object_list(choice, 0)
            self.epoch = 0
            if choice[0] is not None:
                self.load_checkpoint(choice[0])
        self.must_stop = self.stopped = False
        old = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            ended = self._run()
        finally:
            signal.signal(signal.SIGTERM, old)
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        return TrainerRun(
            device=self.device.type,
            dtype=self.config.dtype,
            world_size=self.ranks,
            ended=ended,
            epochs=tuple(EpochResult(**each["train"]) for each in self.history),
            validations=tuple(ValidationResult(**each["test"]) for each in self.history),
            best_epoch=self._best()[0],
            optimizer_steps=self.steps,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            final_scale=self.scaler.get_scale() if self.scaler.is_enabled() else None,
            seconds=time.perf_counter() - began,
        )

    def _on_signal(self, number, frame):
        self.must_stop = True

    def _run(self):
        while self.epoch < self.config.epochs:
            patience = self.config.patience
            if patience is not None and self._best()[1] >= patience:
                return "early"
            if self.stopped:
                return "signal"
            epoch = self.epoch
            result = self.train_epoch(epoch)
            if result.complete:
                tested = self.validate()
                self.history.append({"train": vars(result), "test": vars(tested)})
                metrics = {"validation/loss": tested.loss}
                if tested.accuracy is not None:
                    metrics["validation/accuracy"] = tested.accuracy
                self._tell(metrics)
                if self.rank == 0 and self._best()[0] == epoch:
                    best = {"model": self.model.state_dict(), "epoch": epoch}
                    checkpoints.write_checkpoint(Path(self.config.output_dir, "best.pt"), best)
            self.save_checkpoint(epoch)
        return "finished"

    def _best(self):
        """The best epoch, and how many followed it."""
        best, lowest, since = None, math.inf, 0
        for each in self.history:
            since += 1
            if each["test"]["loss"] < lowest:
                best, lowest, since = each["train"]["epoch"], each["test"]["loss"], 0
        return best, since
