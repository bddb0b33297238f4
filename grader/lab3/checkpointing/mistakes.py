"""Mistakes in Lab 3's checkpoints, as students are told of them."""

from __future__ import annotations

from gradebox.run.assertions import Cause

_CONTINUES = "lab3.checkpointing.continues_as_if_never_stopped"
_LOADS = "lab3.checkpointing.loads_with_and_without_ddp"
EPOCHS = "Begin with the number of epochs that load_checkpoint() returns: epochs counts those before, too."
EACH_EPOCH = "Write it after every epoch, and wait for it: a training may be killed at any moment."
BEGINS_AGAIN = Cause(
    "begins_at_epoch_zero",
    EPOCHS,
    _CONTINUES,
    mistake="A resumed training begins at epoch 0 again, as if it had just begun",
)
AT_THE_END = Cause(
    "checkpoint_at_the_end_only",
    EACH_EPOCH,
    _CONTINUES,
    mistake="train() writes its checkpoint once, after the last epoch, and not after every epoch",
)
NOT_TIMED = Cause(
    "checkpoints_not_timed",
    "Let the clock run from the first epoch to the end: checkpoints are part of the time.",
    _CONTINUES,
    mistake="In train() the time of checkpoints is taken off",
)
EPOCHS_AS_ASKED = Cause(
    "epochs_as_asked",
    "Report the larger one of `epochs` and the epochs of the checkpoint.",
    mistake="train() reports the argument epochs, although the checkpoint has more epochs behind it",
)
EARLIER_STEPS_COUNTED = Cause(
    "earlier_steps_counted",
    "Count the optimizer steps that this call made, not those before its checkpoint.",
    mistake="In train(), optimizer_steps counts the steps before the checkpoint, too",
)
NOTHING_LOADED = Cause(
    "nothing_loaded",
    "Save and load the module that DistributedDataParallel wraps, strictly: its names have no 'module.'.",
    _LOADS,
    mistake="load_checkpoint() leaves the model as it was and says nothing (names with 'module.', strict=False)",
)
WRONG_DEVICE = Cause(
    "loaded_onto_the_old_device",
    "Pass map_location to torch.load: the device on which the model is.",
    _LOADS,
    mistake="load_checkpoint() loads onto the device that the file was saved from",
)
_LOST = {
    "momentum": "What the optimizer remembers of its steps (momentum, Adam's averages) does not come back",
    "rates": "The learning rates of the optimizer's groups do not come back",
    "options": "Options of the optimizer other than its learning rates (momentum, weight decay) do not come back",
    "count": "A buffer of the model does not come back",
    "buffer": "A buffer of the model does not come back",
    "parameters": "The model's parameters do not come back",
}
ERROR_HIDDEN = Cause(
    "error_of_writing_hidden",
    "Let the error pass: the caller must learn that there is no new checkpoint.",
    "lab3.checkpointing.saved_atomically",
    mistake="save_checkpoint() hides an error, as if the file were written",
)
EVERY_RANK_WRITES = Cause(
    "every_rank_writes",
    "Let rank 0 alone write, temporary files included: the replicas are equal, and two ranks that write one file spoil "
    "it.",
    "lab3.checkpointing.rank_zero_alone_writes",
    mistake="Every rank writes the checkpoint, not rank 0 alone",
)


def lost(name: str) -> Cause:
    """What to say if a part of a checkpoint does not come back."""
    hint = "Save and load the module that DistributedDataParallel wraps: its names have no 'module.'."
    if name in ("momentum", "rates", "options"):
        hint = "Save and load all of optimizer.state_dict(): the optimizer belongs to the checkpoint, too."
    elif name in ("buffer", "count"):
        hint = "Save and load all of state_dict(), which has the buffers, too."
    return Cause(f"lost_{name}", hint, _LOADS, mistake=_LOST[name])
