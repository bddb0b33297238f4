"""Functions whose C++ code makes tensors, or checks them, by the real device before any operation is seen.

They are written out here in terms of operations. Not here: layers that CUDA computes as one kernel
(`vgpu.torch_integration.kernels.cuda_kernels`, `vgpu.torch_integration.kernels.recurrent`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch

from vgpu.runtime.operations import operand_dtypes, scalar_checks
from vgpu.runtime.versions import torch_version
from vgpu.torch_integration.dispatch import factories
from vgpu.torch_integration.handling_mode import HandlingMode

_Tensor = torch.Tensor
_CTC = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")
_SECTIONS = ("tensor_indices_or_sections", "indices_or_sections")
_ROUNDED = {torch.complex64: torch.complex32, torch.float32: torch.float16}


def ctc_loss(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """LossCTC.cpp, `ctc_loss_impl`: its lengths are read on the host, the mean divides on the GPU."""
    arguments: dict[str, Any] = {"blank": 0, "reduction": 1, "zero_infinity": False}
    arguments |= dict(zip(_CTC, args, strict=False)) | kwargs
    scores, targets = arguments["log_probs"], arguments["targets"]
    if not mode.has(scores):
        return func(*args, **kwargs)
    inputs, lengths = (
        value.tolist() if isinstance(value, _Tensor) else list(value)
        for value in (arguments["input_lengths"], arguments["target_lengths"])
    )
    batched = scores if scores.dim() == 3 else scores.unsqueeze(1)
    loss = torch._ctc_loss(batched, targets, inputs, lengths, arguments["blank"], arguments["zero_infinity"])[0]
    if arguments["zero_infinity"]:
        loss = torch.where(loss == float("inf"), 0.0, loss)
    if arguments["reduction"] == 1:
        size = factories.to_device(mode, torch.tensor(lengths, dtype=loss.dtype), mode.registry.gpu_of(scores))
        return (loss / size.clamp_min(1)).mean()
    loss = loss if scores.dim() == 3 else loss.squeeze(0)
    return loss.sum() if arguments["reduction"] == 2 else loss


def where(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """TensorCompare.cpp: a number becomes a tensor on the GPU, which a 16-bit float must hold; the CPU casts."""
    values = (*args, *kwargs.values())
    tensors = [value for value in values if isinstance(value, _Tensor)]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if numbers and len(tensors) == 2 and any(mode.has(tensor) for tensor in tensors):
        condition = args[1] if func is _Tensor.where and len(args) > 1 else args[0] if args else None
        for other in tensors:
            if other is not condition:
                scalar_checks.require_fits(numbers[0], torch.result_type(other, numbers[0]))
    return func(*args, **kwargs)


def meshgrid(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """TensorShape.cpp, `meshgrid`."""
    tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    if len({mode.registry.gpu_of(tensor) for tensor in tensors if isinstance(tensor, _Tensor)}) > 1:
        raise RuntimeError("meshgrid expects all tensors to have the same device")
    return func(*args, **kwargs)


def spaced(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """RangeFactories.cpp: a start and an end in tensors are read; where they are does not decide about the result."""

    def number(value: Any) -> Any:
        return value.item() if isinstance(value, _Tensor) and not value.dim() else value

    chosen = {key: number(value) if key in ("start", "end") else value for key, value in kwargs.items()}
    return factories.factory(mode, func, (*map(number, args[:2]), *args[2:]), chosen)


def scalar_tensor(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """TensorFactories.cpp, `scalar_tensor`: only the CPU's casts."""
    result = factories.factory(mode, func, args, kwargs)
    if mode.has(result):
        scalar_checks.require_fits(args[0] if args else kwargs["s"], result.dtype)
    return result


def transform(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """FFTs of 16-bit numbers, which the CPU refuses: computed in FP32 and rounded."""
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, _Tensor) or tensor.dtype not in (torch.float16, torch.bfloat16, torch.complex32):
        return func(*args, **kwargs)
    if not mode.has(tensor):
        return func(*args, **kwargs)
    if tensor.dtype == torch.bfloat16:
        # SpectralOps.cpp, `promote_type_fft`: on CUDA it is promoted to FP32 since 2.12, and was refused before.
        if torch_version() < (2, 12):
            raise RuntimeError("Unsupported dtype BFloat16")
        arguments = {**kwargs, "input": args[0]} if args else kwargs
        return func(arguments.pop("input").float(), *args[1:], **arguments)
    wide = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    arguments = dict(zip(("input", "size", "dim"), args[:3], strict=False))
    size, dim = kwargs.get("n", kwargs.get("s", arguments.get("size"))), kwargs.get("dim", arguments.get("dim"))
    result = func(wide, *args[1:], **kwargs) if args else func(**{**kwargs, "input": wide})
    _powers_of_two(func.__name__, tensor, result, size, dim)
    return result.to(_ROUNDED[result.dtype])


def _powers_of_two(name: str, before: _Tensor, after: _Tensor, size: Any, dim: Any) -> None:
    """CuFFTPlanCache.h: in half precision the signal's sides must be powers of two."""
    ahead = {"2": (-2, -1), "n": tuple(range(before.dim())), "t": (-1,)}[name[-1]]
    sides = [size] if isinstance(size, int) else list(size or [])
    if not sides:
        axes = ahead if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        to_real = not after.is_complex()
        sides = [(after if to_real and axis == axes[-1] else before).shape[axis] for axis in axes]
    operand_dtypes.require_powers_of_two(sides)


def windowed(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """SpectralOps.cpp, `stft` and `istft`: where the window has to be, and BF16, which is promoted since 2.12."""
    tensor = args[0] if args else kwargs["input"]
    window = args[4] if len(args) > 4 else kwargs.get("window")
    home, other = mode.registry.device_of(tensor), None if window is None else mode.registry.device_of(window)
    if other is not None and home != other and "cuda" in (home.type, other.type):
        raise RuntimeError(
            f"{func.__name__} input and window must be on the same device but got self on {home} and window on {other}"
        )
    if mode.has(tensor) and tensor.dtype == torch.bfloat16 and torch_version() >= (2, 12):
        named = {**kwargs, "input": args[0]} if args else kwargs
        return func(named.pop("input").float(), *args[1:], **named)
    return func(*args, **kwargs)


def tensor_split(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """TensorShape.cpp, `tensor_split`: where to split is read on the host, from a tensor that is there."""
    sections = args[1] if len(args) > 1 else next((kwargs[name] for name in _SECTIONS if name in kwargs), None)
    if isinstance(sections, _Tensor) and mode.has(sections):
        device = mode.registry.device_of(sections)
        raise RuntimeError(f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {device}")
    return func(*args, **kwargs)


def one_hot(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Onehot.cpp: with a number of classes nothing is read back, and nothing is checked on the host."""
    arguments = dict(zip(("tensor", "num_classes"), args, strict=False)) | kwargs
    tensor: Any = arguments.get("tensor", arguments.get("input"))
    classes = arguments.get("num_classes", -1)
    if not mode.has(tensor) or classes < 1 or tensor.dtype != torch.int64:
        return func(*args, **kwargs)
    result = factories.factory(
        mode,
        torch.zeros,
        ((*tensor.shape, classes),),
        {"dtype": tensor.dtype, "device": mode.registry.device_of(tensor)},
    )
    return result.scatter_(-1, tensor.unsqueeze(-1), 1)


def matrix_rank(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """LinearAlgebra.cpp, `matrix_rank_impl`: of empty matrices it is zero, in a tensor made for their device."""
    tensor: Any = args[0] if args else kwargs.get("input", kwargs.get("A"))
    if not isinstance(tensor, _Tensor) or not mode.has(tensor) or tensor.numel() or tensor.dim() < 2 or "out" in kwargs:
        return func(*args, **kwargs)
    where = {"dtype": torch.int64, "device": mode.registry.device_of(tensor)}
    return factories.factory(mode, torch.zeros, (tensor.shape[:-2],), where)


def narrow_copy(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """TensorShape.cpp, `narrow_copy`: a view that is copied, where the CPU has a kernel with words of its own."""
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, _Tensor) or not mode.has(tensor) or "out" in kwargs:
        return func(*args, **kwargs)
    return torch.narrow(*args, **kwargs).clone(memory_format=torch.contiguous_format)


def svd(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """BatchLinearAlgebraLib.cpp, `svd_cusolver`: its drivers have one result here, LAPACK's."""
    tensor: Any = args[0] if args else kwargs.get("A")
    if mode.has(tensor):
        driver = kwargs.pop("driver", None)
        if driver not in (None, "gesvd", "gesvdj", "gesvda"):
            raise RuntimeError(
                f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. "
                "Check doc at https://pytorch.org/docs/stable/generated/torch.linalg.svd.html"
            )
    return func(*args, **kwargs)


def lstsq(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """BatchLinearAlgebra.cpp, `get_default_lstsq_driver`: on CUDA there is `gels` alone, which finds no rank."""
    tensor: Any = args[0] if args else kwargs.get("input", kwargs.get("A"))
    if mode.has(tensor):
        if kwargs.get("driver") not in (None, "gels"):
            raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
        kwargs["driver"] = "gels"
    return func(*args, **kwargs)


FUNCTIONS = {
    torch.where: where,
    torch.Tensor.where: where,
    getattr(torch._C._VariableFunctions, "meshgrid"): meshgrid,  # noqa: B009 - typed without it
    torch.linspace: spaced,
    torch.logspace: spaced,
    torch.scalar_tensor: scalar_tensor,
    torch.linalg.svd: svd,
    torch.linalg.svdvals: svd,
    torch.linalg.lstsq: lstsq,
    torch.ctc_loss: ctc_loss,
    torch._C._nn.one_hot: one_hot,
    torch.linalg.matrix_rank: matrix_rank,
    torch._C._VariableFunctions.stft: windowed,  # type: ignore[attr-defined]
    torch.istft: windowed,
    torch.tensor_split: tensor_split,
    torch.Tensor.tensor_split: tensor_split,
    torch.narrow_copy: narrow_copy,
    torch.Tensor.narrow_copy: narrow_copy,
}
FUNCTIONS |= {
    getattr(torch.fft, name): transform
    for name in dir(torch.fft)
    if name.lstrip("ihr") in ("fft", "fft2", "fftn") and callable(getattr(torch.fft, name))
}
