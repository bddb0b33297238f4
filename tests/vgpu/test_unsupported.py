"""Each entry of the list of what is unsupported really raises, and says what to do; what is not on it works."""

from __future__ import annotations

import io
import os
import pickle
import sys
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import vgpu
from vgpu.runtime.unsupported import INSTEAD

DOUBLE = torch.jit.script(nn.ReLU())  # made before any attach


def _x(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*(shape or (2,)), device="cuda", **options)


def _with_group(run: Callable[[], object]) -> None:
    port_file = f"/tmp/vgpu-unsupported-{os.getpid()}"
    Path(port_file).unlink(missing_ok=True)
    dist.init_process_group("nccl", init_method=f"file://{port_file}", rank=0, world_size=1)
    try:
        run()
    finally:
        dist.destroy_process_group()
        Path(port_file).unlink(missing_ok=True)


def _script_autocast() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda"):
            return x @ x

    torch.jit.script(product)


def _save_script() -> None:
    torch.jit.save(torch.jit.script(nn.ReLU().cuda()), "/nowhere.pt")


def _not_scriptable(x: torch.Tensor) -> list[torch.Tensor]:
    return [row for row in x if row.is_cuda]


def _extension() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load_inline("nothing", cpp_sources="", cuda_sources="__global__ void f() {}")


def _triton() -> None:
    from vgpu.runtime.attachment import attached
    from vgpu.torch_integration.compiled import programs

    programs.launch(lambda _: attached(), "kernel", lambda: (1, programs.Tally()), {"x": _x()})


def _several_devices() -> None:
    with vgpu.attach("T4", gpus=2):
        model = nn.Sequential(nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2).to("cuda:1"))
        _with_group(lambda: nn.parallel.DistributedDataParallel(model))


def _sparse_collective() -> None:
    _with_group(lambda: dist.all_reduce(torch.ones(2, 2).to_sparse()))


def _functional_collective() -> None:
    from torch.distributed import _functional_collectives as functional

    with vgpu.attach("T4", values=False):
        _with_group(lambda: functional.all_reduce(_x(), "sum", dist.group.WORLD).sum().item())


def _profiled() -> Any:
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        _x() + 1
    return profiler


def _no_matplotlib() -> None:
    class Refusing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] == "matplotlib":
                raise ImportError(name)

    finder, hidden = Refusing(), {name: sys.modules.pop(name) for name in list(sys.modules) if "matplotlib" in name}
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        current = vgpu.current()
        assert current is not None
        current.save_picture("/nowhere.png")
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        sys.modules.update(hidden)


def _shapes_only(run: Callable[[], object]) -> Callable[[], None]:
    def inside() -> None:
        with vgpu.attach("T4", values=False):
            run()

    return inside


def _load_without_values() -> None:
    torch.save({"x": _x()}, "/tmp/vgpu-unsupported.pt")
    try:
        with vgpu.attach("T4", values=False):
            torch.load("/tmp/vgpu-unsupported.pt")
    finally:
        Path("/tmp/vgpu-unsupported.pt").unlink()


def _observe() -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback("/tmp/vgpu-unsupported.json")
    observer.start()


def _causal_bias() -> None:
    from torch.nn.attention.bias import causal_lower_right

    causal_lower_right(2, 3)


PROVOKED: dict[str, Callable[[], object]] = {
    "causal biases of torch.nn.attention.bias": _causal_bias,
    "TorchScript code made before attach": lambda: DOUBLE(_x()),
    "parts of TorchScript": _script_autocast,
    "traces that depend on values": lambda: torch.jit.trace(lambda x: x * 2 if x.sum() > 0 else x, _x()),
    "saving TorchScript": _save_script,
    "torch.jit.load to the GPU": lambda: torch.jit.load("/nowhere.pt", map_location="cuda"),
    "torch.export": lambda: torch.export.export(nn.Linear(2, 2).cuda(), (_x(1, 2),)),
    "torch.onnx.export": lambda: torch.onnx.export(nn.Linear(2, 2).cuda(), (_x(1, 2),), "/nowhere.onnx"),
    "torch.cuda.MemPool": lambda: torch.cuda.MemPool(),
    "pluggable allocators": lambda: torch.cuda.memory.CUDAPluggableAllocator("a.so", "alloc", "free"),
    "raw allocations": lambda: torch.cuda.caching_allocator_alloc(512),
    "cudart calls": lambda: torch.cuda.cudart().cudaMalloc(512),  # type: ignore[attr-defined]
    "CUDA C++ extensions": _extension,
    "CUDA C++ kernels compiled at run time": lambda: torch.cuda.jiterator._create_jit_fn("T f(T x) { return x; }")(
        _x()
    ),
    "Triton kernels with shapes only": _shapes_only(_triton),
    "streams of other libraries": lambda: torch.cuda.ExternalStream(12345),
    "handles of CUDA's libraries": lambda: torch.cuda.current_blas_handle(),
    "DLPack": lambda: torch.from_dlpack(_x()),
    "__cuda_array_interface__": lambda: _x().__cuda_array_interface__,
    "sharing GPU tensors with another process": lambda: ForkingPickler.dumps(_x()),
    "MKL-DNN tensors on the GPU": lambda: _x(2, 2).to_mkldnn(),
    "nested tensors with layout torch.strided": lambda: torch.nested.nested_tensor([_x(2), _x(3)]),
    "kernels that the CPU underneath lacks": lambda: torch.ops.aten._cslt_compress(_x(64, 64, dtype=torch.float16)),
    "torch.cuda.tunable": lambda: torch.cuda.tunable.enable(),
    "direct calls of NCCL": lambda: torch.cuda.nccl.all_reduce([_x()]),
    "DistributedDataParallel of a module on several devices": _several_devices,
    "collectives of sparse tensors": _sparse_collective,
    "ReduceOp.PREMUL_SUM": lambda: _with_group(
        lambda: dist.all_reduce(_x(), op=dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
    ),
    "reductions of float8": lambda: _with_group(lambda: dist.all_reduce(_x().to(torch.float8_e4m3fn))),
    "torch.distributed.shrink_group": lambda: _with_group(lambda: dist.shrink_group([1])),  # type: ignore[attr-defined]
    "functional collectives with shapes only": _functional_collective,
    "hardware counters (profiler_metrics)": lambda: torch.profiler.profile(
        experimental_config=types.SimpleNamespace(profiler_metrics=["smsp__inst_executed.sum"], trace_only=False)
    ).__enter__(),
    "annotations of CUDA graphs": lambda: _profiled().profiler.export_chrome_trace("/x", cuda_graph_annotations=[1]),
    "raw memory events (.raw.json.gz)": lambda: _profiled().export_memory_timeline("/tmp/x.raw.json.gz"),
    "execution traces (ExecutionTraceObserver)": _observe,
    "emit_itt": lambda: torch.autograd.profiler.emit_itt().__enter__(),
    "a picture without matplotlib": _no_matplotlib,
    "results that depend on values, with shapes only": _shapes_only(lambda: _x().nonzero()),
    "operations without a rule for shapes": _shapes_only(lambda: torch.ops.aten._cslt_compress(_x(64, 64).half())),
    "sparse tensors with shapes only": _shapes_only(lambda: torch.eye(2).to_sparse().cuda()),
    "saving GPU tensors with shapes only": _shapes_only(lambda: torch.save(_x(), io.BytesIO())),
    "loading tensors to the GPU with shapes only": _load_without_values,
}


def test_every_entry_is_provoked() -> None:
    assert list(PROVOKED) == list(INSTEAD)


@pytest.mark.parametrize("name", INSTEAD)
@pytest.mark.filterwarnings("ignore")
def test_it_raises_and_says_what_to_do(gpu: vgpu.VirtualGPU, name: str) -> None:
    with pytest.raises(vgpu.Unsupported) as raised:
        PROVOKED[name]()
    assert raised.value.operation.startswith(name)
    assert str(raised.value) == f"the virtual GPU does not support {raised.value.operation}: {INSTEAD[name]}"


# ---- ways around that are promised -----------------------------------------------------------------------------------


def test_torchscript_is_pytorchs_own_and_sees_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/42673: a number in `to` is a dtype there."""

    @torch.jit.script
    def branch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.device, int]:
        y = torch.zeros([2], device=x.device) + torch.tensor([1.0, 2.0], device=x.device)
        return (
            y + 1 if x.is_cuda else y,
            torch.rand([2], device="cuda"),
            x.to(x.get_device()),
            x.cpu().device,
            x.get_device(),
        )

    draws = []
    for _ in range(3):  # the first calls are profiled, the third one is optimised
        y, drawn, bytes_, host, index = branch(_x())
        assert (y.tolist(), y.is_cuda, bytes_.dtype, host.type, index) == ([2.0, 3.0], True, torch.uint8, "cpu", 0)
        draws.append(drawn.tolist())
    assert draws[0] != draws[1] != draws[2]


def test_scripted_code_fails_in_torchscripts_words(gpu: vgpu.VirtualGPU) -> None:
    @torch.jit.script
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros([2])

    with pytest.raises(RuntimeError, match=r"(?s)failed in the TorchScript interpreter.*RuntimeError: Expected all"):
        mixed(_x())
    with pytest.raises(torch.jit.frontend.FrontendError, match="Comprehension ifs"):
        torch.jit.script(_not_scriptable)


def test_scripted_modules_compute_on_the_gpu_that_they_were_moved_to(gpu: vgpu.VirtualGPU) -> None:
    class Old(torch.jit.ScriptModule):
        @torch.jit.script_method
        def forward(self, x: torch.Tensor) -> bool:
            return x.is_cuda

    assert Old()(_x())
    layer = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LSTM(2, 3))).cuda()
    with torch.autocast("cuda", torch.float16):
        result = layer(_x(4, 2))[0]
    result.float().sum().backward()
    weight = next(layer.parameters())
    assert (result.dtype, result.is_cuda) == (torch.float16, True)
    assert weight.grad is not None
    assert weight.grad.is_cuda


def test_a_trace_is_a_python_function(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(2, 2).cuda()
    assert torch.jit.trace(layer, _x(1, 2)) is layer
    assert DOUBLE(torch.tensor([-1.0])).item() == 0.0  # TorchScript on the CPU goes on as ever


def test_profiler_switches_of_the_runtime_do_nothing(gpu: vgpu.VirtualGPU) -> None:
    with torch.cuda.profiler.profile():
        torch.cuda.cudart().cudaProfilerStart()  # type: ignore[attr-defined]
    assert torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info()  # type: ignore[attr-defined]
    torch.cuda.check_error(0)


def test_refused_classes_are_still_classes(gpu: vgpu.VirtualGPU) -> None:
    assert not isinstance(_x(), torch.cuda.CUDAGraph)


# ---- what works ------------------------------------------------------------------------------------------------------


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as DTensor and quantised tensors are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [value.inner if isinstance(value, Wrapper) else value for value in args]
        result = func(*plain, **(kwargs or {}))
        return Wrapper(result) if isinstance(result, torch.Tensor) else result


class Counting(torch.Tensor):
    """A subclass that watches the functions called on it."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses_live_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    wrapped = Wrapper(_x())
    result = wrapped * 2 + _x()
    assert isinstance(result, Wrapper)
    assert (result.device, result.inner.device, result.inner.tolist()) == (_x().device, _x().device, [3.0, 3.0])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        wrapped + torch.ones(2)
    counting = torch.ones(2).as_subclass(Counting).cuda()
    assert isinstance(counting, Counting)
    assert (counting * 2).is_cuda
    assert "mul" in Counting.calls


def test_custom_operators_run_their_cuda_kernel_and_are_seen_inside(gpu: vgpu.VirtualGPU) -> None:
    @torch.library.custom_op("vgpu_tests::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x * x

    torch.library.register_autograd(
        "vgpu_tests::square", lambda ctx, g: 2 * ctx.x * g,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]),
    )  # fmt: skip
    x = _x(requires_grad=True)
    before = len(gpu.timeline)
    square(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert gpu.timeline[before].name == "aten::mul"

    library = torch.library.Library("vgpu_tests2", "DEF")
    library.define("choose(Tensor x) -> Tensor")
    library.impl("choose", lambda x: x + 1, "CPU")
    with pytest.raises(NotImplementedError, match="Could not run 'vgpu_tests2::choose' with arguments from the 'CUDA'"):
        torch.ops.vgpu_tests2.choose(_x())
    library.impl("choose", lambda x: x + 2, "CUDA")
    assert torch.ops.vgpu_tests2.choose(_x()).tolist() == [3.0, 3.0]
    assert torch.ops.vgpu_tests2.choose(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_custom_operator_without_tensors_is_chosen_by_its_device(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/129389"""

    @torch.library.custom_op("vgpu_tests::made", mutates_args=(), device_types="cuda")
    def made(device: torch.device) -> torch.Tensor:
        return torch.ones(3, device=device)

    assert made(torch.device("cuda")).is_cuda
    assert made(device=torch.device("cuda", 0)).tolist() == [1.0] * 3
    with pytest.raises(RuntimeError, match="does not have a kernel registered for cpu"):
        made(torch.device("cpu"))


def _per_sample(layer: nn.Module, x: torch.Tensor) -> Any:
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, (x.unsqueeze(0),)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)["weight"]


WORKS: dict[str, Callable[[], Any]] = {
    "vmap": lambda: torch.vmap(lambda row: row * 2)(_x(3, 2)),
    "grad": lambda: torch.func.grad(lambda x: (x**2).sum())(_x(3)),
    "jvp": lambda: torch.func.jvp(lambda x: x**2, (_x(3),), (_x(3),))[1],
    "jacrev": lambda: torch.func.jacrev(lambda x: x**2)(_x(3)),
    "jacfwd": lambda: torch.func.jacfwd(lambda x: x**2)(_x(3)),
    "hessian": lambda: torch.func.hessian(lambda x: (x**3).sum())(_x(3)),
    "per-sample gradients": lambda: _per_sample(nn.Linear(3, 3).cuda(), _x(5, 3)),
    "symbolic trace": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda())(_x(1, 2)),
    "jagged nested tensors": lambda: nn.Linear(3, 4).cuda()(
        torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], device="cuda", layout=torch.jagged)
    ),
    "complex numbers": lambda: (torch.randn(4, 4, device="cuda", dtype=torch.complex64) @ _x(4, 4).to(torch.complex64)),
    "FFT": lambda: torch.fft.irfft(torch.fft.rfft(_x(8))),
    "STFT": lambda: torch.stft(_x(64), 16, return_complex=True),
    "linalg": lambda: torch.linalg.solve(torch.eye(3, device="cuda") * 2, _x(3, 1)),
    "svd": lambda: torch.linalg.svd(_x(4, 3)).S,
    "embedding bag": lambda: nn.EmbeddingBag(5, 2).cuda()(torch.tensor([[0, 1, 2]], device="cuda")),
    "CTC loss": lambda: nn.functional.ctc_loss(
        (_x(10, 2, 5) * torch.tensor([0.0, 3, 1, 2, 4], device="cuda")).log_softmax(2),
        torch.ones(2, 4, dtype=torch.long, device="cuda"),
        torch.full((2,), 10), torch.full((2,), 4),
    ),
    "packed sequences": lambda: nn.LSTM(4, 4).cuda()(
        nn.utils.rnn.pack_padded_sequence(_x(5, 2, 4), torch.tensor([5, 3]))
    )[0].data,
    "quantile": lambda: _x(10).quantile(0.5),
    "masked tensors": lambda: torch.masked.masked_tensor(_x(3), _x(3) > 0).sum().get_data(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3).cuda())(_x(1, 3)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3).cuda())(_x(1, 3)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3).cuda())(_x(1, 3)),
    "fake quantisation": lambda: torch.fake_quantize_per_tensor_affine(_x(), 0.1, 0, 0, 255),
    "encoder with padding": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    .cuda().eval()(_x(2, 3, 8), src_key_padding_mask=torch.tensor([[False, False, True]] * 2, device="cuda")),
    "pickle": lambda: pickle.loads(pickle.dumps(_x())),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.filterwarnings("ignore")
def test_it_works_on_the_gpu(gpu: vgpu.VirtualGPU, name: str) -> None:
    result = WORKS[name]()
    assert result.is_cuda
    values = result.values() if result.layout is torch.jagged else result
    assert torch.view_as_real(values).isfinite().all() if values.is_complex() else values.isfinite().all()


def _on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, device=None, **options: make(*args, device="cpu", **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["hessian", "CTC loss", "packed sequences", "linalg", "jagged nested tensors"])
def test_its_values_are_those_of_the_cpu(name: str) -> None:
    def on(device: str) -> Any:
        torch.manual_seed(0)
        result = WORKS[name]()
        result = result.values() if result.layout is torch.jagged else result
        return result.detach().cpu() if device == "cuda" else result.detach()

    with vgpu.attach("T4"):
        got = on("cuda")
    # The same program, with every "cuda" read as the CPU.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "cuda", lambda self: self)
        for space in (torch, torch.nested):
            for function in ("ones", "randn", "tensor", "eye", "nested_tensor"):
                if hasattr(space, function):
                    patch.setattr(space, function, _on_cpu(getattr(space, function)))
        expected = on("cpu")
    torch.testing.assert_close(got, expected)


def test_numpy_is_refused_with_cudas_words(gpu: vgpu.VirtualGPU) -> None:
    for use in (np.asarray, np.sin):
        with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
            use(_x())


def test_the_list_names_things_once() -> None:
    assert isinstance(INSTEAD, types.MappingProxyType)
    assert all(advice and not advice.endswith(".") and name.strip() == name for name, advice in INSTEAD.items())


def test_the_documentation_prints_the_list() -> None:
    text = (Path(__file__).parents[2] / "docs" / "virtual-gpu-unsupported.md").read_text(encoding="utf-8")
    assert f"These {len(INSTEAD)} things" in text
    assert [name for name, advice in INSTEAD.items() if f"| {name} | {advice} |" not in text] == []
