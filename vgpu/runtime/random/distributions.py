"""Random operations of PyTorch as its CUDA kernels compute them, by the operation's name.

Each draws from a generator's seed and offset, moves the offset on as far as the kernel does, and stores in the order of
memory. Sources: ATen/native/cuda/DistributionTemplates.h, Distributions.cpp, Dropout.cu, Randperm.cu and
ATen/native/Distributions.cpp. Not here: `poisson`, `binomial`, gamma and sampling with replacement, whose numbers stay
those of another generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vgpu.device.spec import Spec
from vgpu.runtime.faults import DeviceAssert
from vgpu.runtime.random import launch, numbers, philox
from vgpu.runtime.random.generator import CudaGenerator
from vgpu.runtime.random.launch import Launch

_Tensor = torch.Tensor
_LARGE_RANGE = 1 << 28
"""From so many integers on, each is made of 64 bits (`random_from_to_kernel`)."""
_DIGITS = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}
"""Bits of a mantissa: `random_` without bounds draws integers that the type can represent exactly."""
_NAMES = {
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip
_C_NAMES = {
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.float32: "float", torch.float64: "double", torch.complex32: "c10::complex<c10::Half>",
    torch.complex64: "c10::complex<float>", torch.complex128: "c10::complex<double>",
}  # fmt: skip
_MOST_CATEGORIES = 1 << 24
"""Places are kept in FP32 numbers, which represent no more whole numbers exactly."""
_NUMBERS_OF_EACH_BERNOULLI = 10
"""Numbers that `bernoulli` with a tensor of probabilities reserves (`philox_cuda_state(10)`)."""


class Source:
    """A card, and the generator that an operation draws from."""

    def __init__(self, spec: Spec, generator: CudaGenerator) -> None:
        self.spec = spec
        self.generator = generator

    def each(self, target: _Tensor, make: launch.Make, *, double: bool, dtype: torch.dtype | None = None) -> _Tensor:
        """A value for each element of `target`, in the order of memory, by `distribution_nullary_kernel`."""
        kind = dtype or (torch.float64 if double else torch.float32)
        if not target.numel():
            return torch.empty(0, dtype=kind)
        grid = Launch.of(self.spec, target.numel(), 2 if double else 4)
        seed, offset = self.generator.advance(grid.offset)
        return launch.spread(grid, seed, offset, kind, make)

    def uniform(self, target: _Tensor) -> _Tensor:
        """In (0, 1]; float64 for a target of that type, else float32."""
        double = target.dtype == torch.float64
        return self.each(target, numbers.uniform_double if double else numbers.uniform, double=double)

    def normal(self, target: _Tensor) -> _Tensor:
        double = target.dtype == torch.float64
        return self.each(target, numbers.normal_double if double else numbers.normal, double=double)


def store(target: _Tensor, values: _Tensor) -> _Tensor:
    """`values` in the order of the target's memory, whatever the order of its dimensions (TensorIterator)."""
    order = sorted(range(target.dim()), key=target.stride, reverse=True)
    view = target.permute(order)
    view.copy_(values.view(view.shape))
    return target


def _require_floats(target: _Tensor, kernel: str) -> None:
    if not target.is_floating_point():
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{_NAMES[target.dtype]}'")


def _require_continuous(target: _Tensor, distribution: str) -> None:
    """Distributions.cpp, `exponential_` and `cauchy_`."""
    if not target.is_floating_point():
        raise RuntimeError(
            f"{distribution} distribution is a continuous probability distribution. dtype must be a floating point but "
            f"you specified {_C_NAMES[target.dtype]}"
        )


def _require_range(name: str, bound: float, dtype: torch.dtype) -> None:
    """DistributionTemplates.h, `check_from_to_in_range` and `CHECK_OUT_OF_BOUNDS`."""
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype) if dtype != torch.bool else None
    if not (limits.min <= bound <= limits.max if limits is not None else 0 <= bound <= 1):
        raise RuntimeError(f"{name} is out of bounds for {_C_NAMES[dtype]}")


def _uniform_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    if target.is_complex():  # DistributionTemplates.h, `uniform_impl_`: both parts
        _uniform_(source, torch.view_as_real(target), arguments)
        return target
    _require_floats(target, "check_uniform_bounds")
    low, high = float(arguments.get("from", 0.0)), float(arguments.get("to", 1.0))
    for name, bound in (("from", low), ("to", high)):
        _require_range(name, bound, target.dtype)
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
    drawn = source.uniform(target)
    if (low, high) != (0.0, 1.0):  # one rounding, as a fused multiply-add does
        drawn = (drawn.double() * (high - low) + low).to(drawn.dtype)
    values = drawn.to(target.dtype)
    return store(target, torch.where(values == high, low, values))


def _normal_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    mean, deviation = float(arguments.get("mean", 0.0)), float(arguments.get("std", 1.0))
    if deviation < 0.0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {deviation:g}")
    if not target.is_complex():
        _require_floats(target, "normal_kernel_cuda")
    if target.is_complex():
        _normal_(source, torch.view_as_real(target), {"mean": 0.0, "std": deviation / math.sqrt(2.0)})
        return target.add_(mean) if mean else target
    return store(target, source.normal(target).mul_(deviation).add_(mean))


def _exponential_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    _require_continuous(target, "Exponential")
    rate = float(arguments.get("lambd", 1.0))
    if not rate > 0.0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={rate:g}")
    drawn = source.uniform(target)
    least = torch.finfo(drawn.dtype).eps / 2
    logarithm = torch.where(drawn >= 1.0 - least, -least, drawn.log())
    return store(target, logarithm.mul_(-1.0 / rate))


def _cauchy_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    _require_continuous(target, "Cauchy")
    if (scale := float(arguments.get("sigma", 1.0))) <= 0.0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={scale:g}")
    drawn = source.uniform(target)
    least = torch.finfo(drawn.dtype).eps
    drawn = torch.where(drawn > 1.0 - least, 1.0 - least, torch.where(drawn < least, least, drawn))
    values = (drawn.sub_(0.5).mul_(math.pi)).tan_().mul_(scale)
    return store(target, values.add_(float(arguments.get("median", 0.0))))


def _log_normal_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    if (deviation := float(arguments.get("std", 2.0))) <= 0.0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={deviation:g}")
    values = source.normal(target).mul_(deviation).add_(float(arguments.get("mean", 1.0)))
    return store(target, values.exp_())


def _geometric_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    share = float(arguments["p"])
    if not 0.0 < share < 1.0:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={share:g}")
    return store(target, source.uniform(target).log_().div_(math.log1p(-share)).ceil_())


def _bernoulli_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    share = arguments.get("p", 0.5)
    if isinstance(share, _Tensor):
        if share.is_floating_point():
            _require_real(target, "bernoulli_tensor_cuda_self_")
        return _bernoulli_each(source, target, share)
    if not 0.0 <= share <= 1.0:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={share:g}")
    _require_real(target, "bernoulli_scalar_cuda_")
    return store(target, source.uniform(target) < share)


def _bernoulli_each(source: Source, target: _Tensor, shares: _Tensor) -> _Tensor:
    """Each thread takes four neighbours (`CUDA_tensor_apply2` with a step of 4); there are as many as are needed."""
    count = target.numel()
    seed, offset = source.generator.advance(_NUMBERS_OF_EACH_BERNOULLI)
    if not count:
        return target
    if not shares.is_floating_point():
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {_NAMES[shares.dtype]}")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise DeviceAssert("DistributionBernoulli.cu: `0 <= p4 && p4 <= 1`")
    shares = shares.to(torch.float64 if target.dtype == torch.float64 else torch.float32).expand(target.shape)
    flat = shares.contiguous().view(-1)
    drawn = torch.cat([part for _, part in launch.neighbours(count, -(-count // 4), seed, offset, 4)])[:count]
    target.copy_((drawn <= flat).view(target.shape))
    return target


def _random_(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    dtype = target.dtype
    if not {"from", "to"} & arguments.keys():
        _require_real(target, "random_kernel_cuda")
    if "from" in arguments or "to" in arguments:
        low, high = (arguments["from"], arguments.get("to")) if "from" in arguments else (0, arguments["to"])
        if high is None:  # up to the largest number of the type
            high = (1 << _DIGITS[dtype]) + 1 if dtype in _DIGITS else torch.iinfo(dtype).max + 1
        _require_integers(target, int(low), int(high))
        return store(target, _integers(source, target, int(low), int(high)))
    if dtype in (torch.float64, torch.int64):
        drawn = source.each(target, numbers.whole_64, double=True, dtype=torch.int64)
        return store(target, numbers.modulo(drawn, 1 << 63 if dtype == torch.int64 else (1 << 53) + 1))
    drawn = source.each(target, numbers.whole, double=False, dtype=torch.int64)
    if dtype == torch.bool:
        return store(target, drawn & 1)
    return store(target, drawn % ((1 << _DIGITS[dtype]) + 1 if dtype in _DIGITS else torch.iinfo(dtype).max + 1))


def _require_real(target: _Tensor, kernel: str) -> None:
    if target.is_complex():
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{_NAMES[target.dtype]}'")


def _require_integers(target: _Tensor, low: int, high: int) -> None:
    if high > low and target.is_complex():
        raise RuntimeError("check_random_bounds handles only integral, floating-point and boolean types")
    if high > low:
        _require_range("from", low, target.dtype)
        _require_range("to - 1", high - 1, target.dtype)


def _integers(source: Source, target: _Tensor, low: int, high: int) -> _Tensor:
    """In [low, high), int64."""
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    extent = high - low
    if extent < _LARGE_RANGE:
        return source.each(target, numbers.whole, double=False, dtype=torch.int64).remainder_(extent).add_(low)
    drawn = source.each(target, numbers.whole_64, double=True, dtype=torch.int64)
    return numbers.modulo(drawn, extent).add_(low)


def _randint(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    low, high = arguments.get("low", 0), arguments["high"]
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    _require_integers(target, int(low), int(high))
    return store(target, _integers(source, target, int(low), int(high)))


def _randperm(source: Source, target: _Tensor, arguments: Mapping[str, Any]) -> _Tensor:
    """Sorts 0..n-1 by random keys of so many bits that few are equal, and shuffles within those (Randperm.cu)."""
    count = int(arguments["n"])
    if not count:
        return target
    bits = min(64, math.ceil(math.log2(count - (6 * count**2 + 1) / (12 * math.log(0.9)))))
    if bits <= 32:
        keys = _integers(source, target, -(1 << 31), (1 << 31) - 1)
    else:  # keys of 64 bits, whose sign is not among those compared
        keys = source.each(target, numbers.whole_64, double=True, dtype=torch.int64)
    compared = keys & ((1 << bits) - 1) if bits != 32 and bits < 64 else keys
    order = compared.argsort(stable=True)
    seed, offset = source.generator.advance(count)
    ordered = compared[order]
    ends = (ordered[1:] == ordered[:-1]).nonzero().view(-1).tolist()
    begins = [end for end in ends if end - 1 not in set(ends)]
    for begin in begins:
        size = 1
        while begin + size < count and ordered[begin + size] == ordered[begin]:
            size += 1
        words = [int(word) for call in range(-(-size // 4)) for word in
                 philox.words(seed, torch.tensor([begin]), offset // 4 + call)]  # fmt: skip
        for last, word in zip(range(size - 1, 0, -1), words, strict=False):
            other = word % (last + 1)
            order[[begin + last, begin + other]] = order[[begin + other, begin + last]]
    return store(target, order)


def _dropout(source: Source, arguments: Mapping[str, Any]) -> tuple[_Tensor, _Tensor]:
    """Output and mask of `native_dropout`, by the vectorised kernel where the input allows it (`get_vector_size`)."""
    tensor, share, train = arguments["input"], float(arguments["p"]), arguments.get("train")
    mask = torch.empty_like(tensor, dtype=torch.bool)
    if train is False:
        return tensor.clone(), mask.fill_(True)
    if share == 1.0:
        return torch.zeros_like(tensor), mask.fill_(False)
    count, keep = tensor.numel(), 1.0 - share
    if not count:
        return tensor.clone(), mask
    grid = Launch.of(source.spec, count)
    seed, offset = source.generator.advance(grid.offset)
    width = _width(tensor)
    if width == 1:
        drawn = launch.spread(grid, seed, offset, torch.float32, numbers.uniform)
    else:
        drawn = torch.cat([part for _, part in launch.neighbours(count, grid.threads, seed, offset, width)])[:count]
    exact = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    kept = store(mask, drawn.to(exact) < torch.tensor(keep, dtype=exact))
    factor = torch.tensor(1.0 / keep, dtype=exact)
    return (tensor.to(exact) * kept * factor).to(tensor.dtype), mask


def _width(tensor: _Tensor) -> int:
    """Elements that a thread loads at once: 16 bytes, where memory is dense, aligned and a multiple of that."""
    dense = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in dense:
        if stride != expected:
            return 1
        expected *= size
    width = 16 // tensor.element_size()
    while width > 1 and (tensor.numel() % width or tensor.storage_offset() % width):
        width //= 2
    return width


def _normal_by_tensors(source: Source, arguments: Mapping[str, Any]) -> _Tensor:
    mean, deviation = arguments["mean"], arguments.get("std", 1.0)
    like = [tensor for tensor in (mean, deviation) if isinstance(tensor, _Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in like))
    result = torch.empty(shape, dtype=torch.result_type(*like) if len(like) == 2 else like[0].dtype)
    if not isinstance(deviation, _Tensor):
        return _normal_(source, result, {"std": deviation}).add_(mean)
    return _normal_(source, result, {}).mul_(deviation).add_(mean)


def _multinomial(source: Source, arguments: Mapping[str, Any]) -> _Tensor | None:
    """Without replacement, or one sample: the largest of the shares, each divided by an exponential number.

    The checks are those of `multinomial_out` in ATen/native/Distributions.cpp, in its order; the two of values are made
    by `_assert_async` on the device.
    """
    shares, samples = arguments["self"], int(arguments["num_samples"])
    replaced = bool(arguments.get("replacement"))
    if shares.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not shares.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {_NAMES[shares.dtype]}")
    if samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replaced and samples > shares.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if shares.shape[-1] > _MOST_CATEGORIES:
        raise RuntimeError("number of categories cannot exceed 2^24")
    if replaced and samples > 1:
        return None
    if not shares.numel():
        return torch.empty((*shares.shape[:-1], samples), dtype=torch.int64)
    low, high = shares.aminmax()
    if not (low >= 0 and high < math.inf):
        raise DeviceAssert("TensorCompare.cu: `probability tensor contains either `inf`, `nan` or element < 0`")
    if (shares.sum(-1) == 0).any():
        raise DeviceAssert("TensorCompare.cu: `invalid multinomial distribution (sum of probabilities <= 0)`")
    quotients: _Tensor = shares / _exponential_(source, torch.empty_like(shares), {})
    return quotients.argmax(-1, keepdim=True) if samples == 1 else quotients.topk(samples, -1).indices


_IN_PLACE: dict[str, Callable[[Source, _Tensor, Mapping[str, Any]], _Tensor]] = {
    "uniform_": _uniform_, "normal_": _normal_, "exponential_": _exponential_, "cauchy_": _cauchy_,
    "log_normal_": _log_normal_, "geometric_": _geometric_, "bernoulli_": _bernoulli_, "random_": _random_,
}  # fmt: skip
_MADE = {"rand": _uniform_, "randn": _normal_, "randint": _randint, "randperm": _randperm}
_LIKE = {"rand_like": _uniform_, "randn_like": _normal_, "randint_like": _randint}


def compute(spec: Spec, generator: CudaGenerator, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation returns on a card; None where no kernel of it is known here.

    Args:
        spec: of the card.
        generator: it draws from this one.
        overload: of `torch.ops.aten`.
        args: as the dispatcher gives them.
        kwargs: likewise.
    """
    schema = overload._schema
    names = [argument.name for argument in schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    name = schema.name.removeprefix("aten::")
    source = Source(spec, generator)
    if name in _IN_PLACE:
        return _IN_PLACE[name](source, arguments["self"], arguments)
    if "out" in arguments or any(argument.is_out for argument in schema.arguments):
        return None
    if name in _MADE:
        size = [int(arguments["n"])] if name == "randperm" else arguments["size"]
        default = torch.int64 if name in ("randint", "randperm") else None
        target = torch.empty(size, dtype=arguments.get("dtype") or default)
        return _MADE[name](source, target, arguments)
    if name in _LIKE:
        target = torch.empty_like(
            arguments["self"],
            dtype=arguments.get("dtype"),
            memory_format=arguments.get("memory_format") or torch.preserve_format,
        )
        return _LIKE[name](source, target, arguments) if not isinstance(arguments.get("high"), _Tensor) else None
    if name == "native_dropout":
        return _dropout(source, arguments)
    if name == "multinomial":
        return _multinomial(source, arguments)
    if name == "bernoulli":
        share = arguments["p"] if "p" in arguments else arguments["self"]
        target = torch.empty_like(arguments["self"], memory_format=torch.contiguous_format)
        return _bernoulli_(source, target, {"p": share})
    if name == "normal" and "size" in arguments:
        return _normal_(source, torch.empty(arguments["size"], dtype=arguments.get("dtype")), arguments)
    if name == "normal" and any(isinstance(arguments.get(parameter), _Tensor) for parameter in ("mean", "std")):
        return _normal_by_tensors(source, arguments)
    return None
