"""A pytest plugin: tests of CUDA code on a machine without a GPU.

    pytest -p vgpu.tools.pytest_plugin --vgpu T4   # every test runs on a virtual T4 of its own
    pytest -p vgpu.tools.pytest_plugin --vgpu H100 --vgpu-gpus 2

    @pytest.mark.vgpu("A100-80GB", gpus=2, values=False)   # this test does, whatever the command line says
    @pytest.mark.needs_gpu(capability=(8, 0), gpus=2, memory_gib=40)   # skipped where the GPU, real or not, has less
    def test_it(virtual_gpu): ...       # the GPU: timeline, memory, hiccups

Each test gets a new machine, so that memory and time begin at nothing. Imports PyTorch only when a test needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_DEFAULT = "T4"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--vgpu` and what goes with it."""
    group = parser.getgroup("vgpu", "a virtual GPU for tests")
    group.addoption("--vgpu", metavar="MODEL", default=None, help="run every test on a virtual GPU: T4, A100-80GB, ...")
    group.addoption("--vgpu-gpus", metavar="N", type=int, default=1, help="with so many of them")
    group.addoption("--vgpu-shapes-only", action="store_true", help="without values")


def pytest_configure(config: pytest.Config) -> None:
    """The markers; a model that there is not ends the run at once."""
    config.addinivalue_line("markers", "vgpu(model, gpus=1, values=True): run this test on a virtual GPU")
    config.addinivalue_line(
        "markers",
        "needs_gpu(capability=(0, 0), gpus=1, memory_gib=0): skip where there is no such GPU, real or virtual",
    )
    model = config.getoption("--vgpu", None)
    if model is not None:
        from vgpu.device.errors import SpecError
        from vgpu.device.spec import get_spec

        try:
            get_spec(model)
        except SpecError as error:
            raise pytest.UsageError(f"--vgpu {model}: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What test modules ask as they are imported (`skipif(not torch.cuda.is_available())`) is asked of such a machine.

    It is not the machine of any test: a tensor that a module makes on the GPU as it is imported is on the CPU later.
    """
    asked_for = session.config.getoption("--vgpu") is not None
    with _as_asked_for(session.config) if asked_for else contextlib.nullcontext():
        return (yield)


@pytest.fixture
def virtual_gpu(_on_virtual_gpu: VirtualGPU | None) -> Iterator[VirtualGPU]:
    """The virtual GPU that the test runs on: by its marker, by `--vgpu`, or else a T4."""
    if _on_virtual_gpu is not None:
        yield _on_virtual_gpu
        return
    with _attached(_DEFAULT) as gpu:
        yield gpu


@pytest.fixture(autouse=True)
def _on_virtual_gpu(request: pytest.FixtureRequest) -> Iterator[VirtualGPU | None]:
    """Attach where the marker or the command line says so, and skip what needs more than there is."""
    marker = request.node.get_closest_marker("vgpu")
    config = request.config
    with contextlib.ExitStack() as stack:
        gpu = None
        if marker is not None:
            gpu = stack.enter_context(_attached(*marker.args, **marker.kwargs))
        elif config.getoption("--vgpu") is not None:
            gpu = stack.enter_context(_as_asked_for(config))
        needs = request.node.get_closest_marker("needs_gpu")
        if needs is not None and (lacking := _lacking(**needs.kwargs)):
            pytest.skip(lacking)
        yield gpu


def _as_asked_for(config: pytest.Config) -> Any:
    """The machine of the command line."""
    values = not config.getoption("--vgpu-shapes-only")
    return _attached(config.getoption("--vgpu"), gpus=config.getoption("--vgpu-gpus"), values=values)


def _attached(model: str = _DEFAULT, **options: Any) -> Any:
    import vgpu

    return vgpu.attach(model, force=True, **options)


def _lacking(capability: tuple[int, int] = (0, 0), gpus: int = 1, memory_gib: float = 0.0) -> str:
    """What the GPU that is there does not have; empty where it has everything."""
    import torch

    if not torch.cuda.is_available():
        return "needs a GPU (--vgpu T4 gives a virtual one)"
    if torch.cuda.device_count() < gpus:
        return f"needs {gpus} GPUs, and there {'is' if torch.cuda.device_count() == 1 else 'are'} " \
               f"{torch.cuda.device_count()}"  # fmt: skip
    here = torch.cuda.get_device_capability(0)
    if here < capability:
        return f"needs compute capability {capability[0]}.{capability[1]}, and the GPU has {here[0]}.{here[1]}"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    if memory < memory_gib:
        return f"needs {memory_gib:g} GiB of GPU memory, and there are {memory:.1f}"
    return ""
