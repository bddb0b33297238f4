"""LSTM, GRU and RNN as cuDNN runs them: one operation for all layers and time steps, in FP32 inside.

`torch.lstm` and its kin become `aten::_cudnn_rnn` on the GPU (aten/src/ATen/native/cudnn/RNN.cpp); PyTorch's own
autograd formula saves what it saves on CUDA. Not here: single cells, which are ordinary operations, and the cost
(`vgpu.runtime.operations.kernel_cost`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.operations import precision
from vgpu.runtime.operations.cuda_dtypes import DTYPE_NAMES
from vgpu.torch_integration import autocast
from vgpu.torch_integration.handling_mode import HandlingMode

_Tensor = torch.Tensor
# cudnnRNNMode_t, and how many gates each has.
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_NAMES = {number: name for name, number in _MODES.items()}
_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
# The seed of the dropout between layers is at the beginning of the reserved space.
_SEED_BYTES = 8
_SCATTERED = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted "
    "at every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)
_FORWARD = [argument.name for argument in torch.ops.aten._cudnn_rnn.default._schema.arguments]
_BACKWARD = [argument.name for argument in torch.ops.aten._cudnn_rnn_backward.default._schema.arguments]


def call(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.lstm` and its kin, with padded input or with a packed sequence's data and batch sizes."""
    given = args[3 if isinstance(args[3], (list, tuple)) else 2]
    args, kwargs = autocast.prepare(mode.gpu, mode.weights, func.__name__, args, kwargs)
    packed = isinstance(args[3], (list, tuple))  # the weights: one place later, behind the batch sizes
    data, *rest = args
    batch_sizes, hidden, weights, *options = rest if packed else (None, *rest)
    states = list(hidden) if isinstance(hidden, (list, tuple)) else [hidden]
    if not any(mode.has(tensor) for tensor in (data, *states, *weights)):
        return func(*args, **kwargs)
    _same_device(mode, data, states, weights)
    _same_dtype(data, states, weights)
    if not torch.backends.cudnn.enabled:
        # Native RNN.cpp: products and elementwise kernels, step by step.
        fused = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return func(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(fused)
    if given is weights and mode.gpu.values and not _is_one_chunk(weights):
        warnings.warn(_SCATTERED, stacklevel=2)
    has_biases, layers, dropout, train, bidirectional = options[:5]
    hidden_size, projected = weights[1].shape[0] // _GATES[func.__name__], 0
    per_layer = (2 if not has_biases else 4) + (len(states) == 2 and states[0].shape[2] != states[1].shape[2])
    if per_layer in (3, 5):
        projected = states[0].shape[2]
    result = torch.ops.aten._cudnn_rnn(
        data, list(weights), per_layer, None, states[0], states[1] if len(states) == 2 else None,
        _MODES[func.__name__], hidden_size, projected, layers, bool(options[5]) if not packed else False, dropout,
        train, bidirectional, [] if batch_sizes is None else batch_sizes.tolist(), None,
    )  # fmt: skip
    return result[:3] if len(states) == 2 else result[:2]


def pack(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_pack_padded_sequence` (PackedSequence.cpp): the steps behind each other; the batch sizes stay on the host."""
    data, lengths, batch_first = args
    if mode.has(lengths):
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D "
            f"{mode.registry.device_of(lengths)} {DTYPE_NAMES[lengths.dtype]} tensor"
        )
    if not mode.has(data):
        return func(*args, **kwargs)
    sizes = func(torch.empty(data.shape[:2], device="cpu"), lengths, batch_first)[1]  # checks the lengths, too
    padded = data.transpose(0, 1) if batch_first else data
    return torch.cat([padded[step, :size] for step, size in enumerate(sizes.tolist())]), sizes


def unpack(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_pad_packed_sequence`: steps of equal batch size are padded together."""
    data, sizes, batch_first, value, total = args
    if not mode.has(data):
        return func(*args, **kwargs)
    lengths = func(torch.empty(data.shape[0], 1, device="cpu"), sizes, batch_first, value, total)[1]
    pieces, first = [], 0
    for size, steps in Counter(sizes.tolist()).items():
        piece = data[first : first + size * steps].view(steps, size, *data.shape[1:])
        first += size * steps
        missing = int(sizes[0]) - size
        pieces.append(torch.nn.functional.pad(piece, (0, 0) * (data.dim() - 1) + (0, missing), value=value))
    if total > len(sizes):
        pieces.append(data.new_full((total - len(sizes), int(sizes[0]), *data.shape[1:]), value))
    output = torch.cat(pieces)
    return (output.transpose(0, 1) if batch_first else output), lengths


def _is_one_chunk(weights: Sequence[_Tensor]) -> bool:
    """Whether the weights are where `flatten_parameters` puts them (RNN.cpp, `try_get_weight_buf`)."""
    first = weights[0].untyped_storage().data_ptr()
    return all(weight.untyped_storage().data_ptr() == first for weight in weights)


def flatten(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Tensor:
    """`_cudnn_rnn_flatten_weight`: moves the weights behind each other into one buffer, and returns it."""
    weights: Sequence[_Tensor] = args[0]
    buffer = weights[0].new_empty(sum(weight.numel() for weight in weights))
    parts = buffer.split([weight.numel() for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        view = part.view(weight.shape)
        view.copy_(weight)
        weight.set_(view)
    return buffer


def _same_device(mode: HandlingMode, data: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor]) -> None:
    """RNN.cpp, `check_attributes`."""
    device = mode.registry.device_of(data)
    for kind, tensors in (("hidden", states), ("parameter", weights)):
        for tensor in tensors:
            other = mode.registry.device_of(tensor)
            if other != device:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {device} and "
                    f"{kind} tensor at {other}"
                )


def _same_dtype(data: _Tensor, states: Sequence[_Tensor], weights: Sequence[_Tensor]) -> None:
    for kind, tensors in (("hidden", states), ("parameter", weights)):
        for tensor in tensors:
            if tensor.dtype != data.dtype:
                raise RuntimeError(
                    f"Input and {kind} tensors are not the same dtype, found input tensor with "
                    f"{DTYPE_NAMES[data.dtype]} and {kind} tensor with {DTYPE_NAMES[tensor.dtype]}"
                )


def forward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """(output, hidden state, cell state, reserved space, weight buffer)."""
    arguments = dict(zip(_FORWARD, args, strict=False)) | dict(kwargs)
    data, hx, cx = arguments["input"], arguments["hx"], arguments["cx"]
    size = arguments["proj_size"] or arguments["hidden_size"]
    width = size * (2 if arguments["bidirectional"] else 1)
    output = data.new_empty((*data.shape[:-1], width))
    last = torch.empty_like(hx, memory_format=torch.contiguous_format)
    cell = torch.empty_like(cx, memory_format=torch.contiguous_format) if cx is not None else data.new_empty(0)
    reserve = data.new_empty(_reserve_bytes(arguments) if arguments["train"] else 0, dtype=torch.uint8)
    if gpu.values:
        seed = gpu.generator.next_seed() if _drops(arguments) else 0
        if arguments["train"]:
            reserve[:_SEED_BYTES].view(torch.int64).fill_(seed)
        with torch.no_grad():
            computed = _compute(gpu, arguments, _wide(gpu, arguments), seed)
        for target, source in zip((output, last, cell), computed, strict=False):
            target.copy_(source)
    return output, last, cell, reserve, data.new_empty(0)


def backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Gradients of input, hidden state, cell state and the list of weights."""
    arguments = dict(zip(_BACKWARD, args, strict=False)) | dict(kwargs)
    if not arguments["train"]:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    cx = arguments["cx"]
    inputs = [arguments["input"], arguments["hx"], *([] if cx is None else [cx]), *arguments["weight"]]
    grads = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs]
    if gpu.values:
        seed = int(arguments["reserve"][:_SEED_BYTES].view(torch.int64)) if _drops(arguments) else 0
        with _autograd():
            wide = [tensor.requires_grad_() for tensor in _wide(gpu, arguments)]
            results = _compute(gpu, arguments, wide, seed)
            incoming = [arguments["grad_output"], arguments["grad_hy"], arguments["grad_cy"]]
            pairs = [
                (result, g.to(result.dtype)) for result, g in zip(results, incoming, strict=False) if g is not None
            ]
            computed = torch.autograd.grad([p[0] for p in pairs], wide, [p[1] for p in pairs], allow_unused=True)
        for target, source in zip(grads, computed, strict=True):
            target.zero_() if source is None else target.copy_(source)
    states = 2 if cx is None else 3
    d_cell = grads[2] if cx is not None else arguments["input"].new_empty(0)
    return grads[0], grads[1], d_cell, grads[states:]


def _drops(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["train"] and arguments["dropout"] > 0 and arguments["num_layers"] > 1)


def _reserve_bytes(arguments: Mapping[str, Any]) -> int:
    """cuDNN does not publish its size: modelled as every gate and one state per step, layer and direction."""
    data = arguments["input"]
    steps = data.shape[:-1].numel()
    per_step = (
        (_GATES[_NAMES[arguments["mode"]]] + 1) * arguments["hidden_size"] * (2 if arguments["bidirectional"] else 1)
    )
    return int(_SEED_BYTES + steps * per_step * arguments["num_layers"] * data.element_size())


def _wide(gpu: VirtualGPU, arguments: Mapping[str, Any]) -> list[_Tensor]:
    """Copies of input, states and weights in at least FP32; input and weights in TF32 where that is allowed."""
    data, cx = arguments["input"], arguments["cx"]
    wide = torch.promote_types(data.dtype, torch.float32)
    states = [arguments["hx"], *([] if cx is None else [cx])]
    tensors = [tensor.detach().to(wide, copy=True) for tensor in (data, *states, *arguments["weight"])]
    if data.dtype == torch.float32 and "tf32" in gpu.spec.peak_flops and precision.tf32_allowed("rnn"):
        kept = range(1, 1 + len(states))
        tensors = [tensor if index in kept else precision.to_tf32(tensor) for index, tensor in enumerate(tensors)]
    return tensors


def _compute(gpu: VirtualGPU, arguments: Mapping[str, Any], wide: Sequence[_Tensor], seed: int) -> tuple[_Tensor, ...]:
    name = _NAMES[arguments["mode"]]
    function: Callable[..., tuple[_Tensor, ...]] = getattr(torch, name)
    states: Any = [wide[1], wide[2]] if name == "lstm" else wide[1]
    weights = list(wide[3 if name == "lstm" else 2 :])
    options = [
        arguments["weight_stride0"] in (4, 5), arguments["num_layers"], arguments["dropout"], arguments["train"],
        arguments["bidirectional"],
    ]  # fmt: skip
    with _seeded(seed) if _drops(arguments) else contextlib.nullcontext():
        if arguments["batch_sizes"]:
            return function(wide[0], torch.tensor(arguments["batch_sizes"]), states, weights, *options)
        return function(wide[0], states, weights, *options, arguments["batch_first"])


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    default = torch.default_generator
    saved = default.get_state()
    default.manual_seed(seed)
    try:
        yield
    finally:
        default.set_state(saved)


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Autograd inside a dispatch mode, which is below it."""
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    recording = keys(key.AutogradCPU) | keys(key.ADInplaceOrView) | keys(key.AutogradFunctionality)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - recording), torch.enable_grad():
        yield


KERNELS = {"_cudnn_rnn": forward, "_cudnn_rnn_backward": backward, "_cudnn_rnn_flatten_weight": flatten}
NAMES = tuple(_MODES)
