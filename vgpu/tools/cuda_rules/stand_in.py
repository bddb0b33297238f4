"""Builds a stand-in for NVIDIA's libraries, on which the host code of PyTorch's CUDA build runs without a card.

PyTorch checks dtypes, shapes and devices on the host before it launches a kernel. Preloaded libraries answer for the
CUDA runtime, the driver, NVRTC, cuBLAS, cuDNN, cuFFT, cuSOLVER and cuSPARSE: memory is the host's, and kernels do
nothing. So an operation returns without values, or raises CUDA's own error. It needs gcc and PyTorch's wheels with
their headers (CUDA 13). Not here: which operations are tried (`vgpu.tools.cuda_rules.probe`).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
_LIBRARIES = re.compile(r"(cuda|cublas|cudnn|cusolver|cusparse|cufft)[A-Z]")
# The real ones work without a card.
_REAL = {"cudaGetErrorString", "cudaGetErrorName", "cudaRuntimeGetVersion"}
# Macros of crt/host_defines.h, which is in another wheel; the structs need no more.
_HOST_DEFINES = """
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
"""
_DRIVER = {
    "cuGetErrorString": 'int e, const char **t) { *t = ""; return 0; }',
    "cuDeviceGetAttribute": "int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : 1; return 0; }",
    "cuDevicePrimaryCtxGetState": "int d, unsigned *f, int *a) { if (f) *f = 0; if (a) *a = 1; return 0; }",
    "cuCtxGetCurrent": "void **c) { static int x; *c = &x; return 0; }",
    "cuModuleGetFunction": "void **f, void *m, const char *n) { static int x; *f = &x; return 0; }",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "int *n, void *f, int b, size_t s) { *n = 2; return 0; }",
    "cuFuncGetAttribute": "int *v, int a, void *f) { *v = a == 0 ? 1024 : 32; return 0; }",
    "cuGetExportTable": "void) { return 500; }",
}
_COMPILER = {
    "nvrtcGetErrorString": 'int r) { return (long)""; }',
    "nvrtcGetCUBINSize": "void *p, size_t *n) { *n = 1; return 0; }",
    "nvrtcGetPTXSize": "void *p, size_t *n) { *n = 1; return 0; }",
    "nvrtcGetProgramLogSize": "void *p, size_t *n) { *n = 1; return 0; }",
    "nvrtcVersion": "int *a, int *b) { *a = 13; *b = 0; return 0; }",
    "nvrtcGetLoweredName": 'void *p, const char *n, const char **o) { *o = "f"; return 0; }',
}


def build(packages: Path, folder: Path) -> dict[str, str]:
    """Build the stand-in of a site-packages folder's wheels in `folder`; returns the environment to run Python in."""
    headers = packages / "nvidia/cu13/include"
    (folder / "crt").mkdir(parents=True, exist_ok=True)
    (folder / "crt/host_defines.h").write_text(_HOST_DEFINES)
    runtime = (_HERE / "runtime.c").read_text()
    texts = [file.read_text(errors="replace") for file in headers.glob("cu*.h")]
    texts += [file.read_text(errors="replace") for file in (packages / "nvidia/cudnn/include").glob("*.h")]
    text = "\n".join(texts)
    known = set(re.findall(r"EXPORT [^(]*?\*?(\w+)\(", runtime))
    wanted = {name for name in _undefined(packages / "torch/lib") if _LIBRARIES.match(name)} - known - _REAL
    (folder / "rest.c").write_text(_PROLOGUE + "\n".join(_function(name, text) for name in sorted(wanted)))
    version = re.search(r"#define CUDART_VERSION +(\d+)", text)
    assert version is not None
    sources = [str(_HERE / "runtime.c"), str(folder / "rest.c")]
    _compile(folder / "libstandin.so", sources, f"-I{folder}", f"-I{headers}", f"-DCUDART_VERSION={version[1]}", "-ldl")
    driver = _stubs((headers / "cuda.h").read_text(), r"\b(cu[A-Z]\w+)\s*\(", _DRIVER)
    (folder / "driver.c").write_text(driver)
    _compile(folder / "libcuda.so.1", [str(folder / "driver.c")], "-Wl,-soname,libcuda.so.1")
    compiler = _stubs((headers / "nvrtc.h").read_text(), r"\b(nvrtc[A-Z]\w+)\s*\(", _COMPILER)
    (folder / "nvrtc.c").write_text(compiler)
    (folder / "nvrtc.map").write_text("libnvrtc.so.13 { global: *; };")
    names = ("-Wl,-soname,libnvrtc.so.13", f"-Wl,--version-script={folder / 'nvrtc.map'}")
    _compile(folder / "libnvrtc.so.13", [str(folder / "nvrtc.c")], *names)
    preloaded = " ".join(str(folder / name) for name in ("libstandin.so", "libnvrtc.so.13"))
    return {
        **os.environ, "LD_PRELOAD": preloaded, "LD_LIBRARY_PATH": str(folder),
        "PYTORCH_KERNEL_CACHE_PATH": str(folder / "kernels"), "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip


_PROLOGUE = '#include <stddef.h>\n#define EXPORT __attribute__((visibility("default")))\n'


def _undefined(libraries: Path) -> set[str]:
    """The symbols that PyTorch's libraries take from others."""
    names: set[str] = set()
    for library in libraries.glob("lib*.so"):
        command = ["nm", "-D", "--undefined-only", str(library)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names.update(line.split()[-1].split("@")[0] for line in listed.splitlines() if line.strip())
    return names


def _function(name: str, headers: str) -> str:
    """A function that succeeds; sizes and counts that it is asked for are zero."""
    plain = name.removesuffix("_v2")
    found = re.search(rf"\b(?:{name}|{plain})\s*\(([^;{{]*?)\)\s*;", headers)
    if found is None:
        return f"EXPORT long {name}(void) {{ return 0; }}"
    parameters, body = [], ""
    for place, text in enumerate(" ".join(part.split()) for part in found[1].split(",")):
        if text in ("", "void"):
            continue
        if "*" not in text and "[" not in text:
            number = re.match(r"(?:const )?(float|double)\b", text)
            parameters.append(f"{number[1] if number else 'long'} a{place}")
            continue
        parameters.append(f"void *a{place}")
        kind = re.search(r"\b(int|size_t|int64_t) ?\*", text)
        if kind and "const" not in text and re.search(r"(?i)size|work|count|nnz|position|cols|rows", text):
            body += f" if (a{place}) *({'int' if kind[1] == 'int' else 'long'} *)a{place} = 0;"
    return f"EXPORT long {name}({', '.join(parameters) or 'void'}) {{{body} return 0; }}"


def _stubs(header: str, pattern: str, written: dict[str, str]) -> str:
    names = set(re.findall(pattern, header)) - set(written)
    lines = [f"long {name}({rest}" for name, rest in written.items()]
    lines += [f"long {name}(void) {{ return 0; }}" for name in sorted(names)]
    return "#include <stddef.h>\n" + "\n".join(lines) + "\n"


def _compile(target: Path, sources: list[str], *options: str) -> None:
    command = ["gcc", "-O1", "-fPIC", "-shared", "-fvisibility=default", "-w", "-o", str(target), *sources, *options]
    subprocess.run(command, check=True)
