"""Extension: kernels of your own, in Triton: vectors, softmax, matrix products, flash attention, the roofline."""

from importlib.util import find_spec

if find_spec("triton") is None:
    raise ModuleNotFoundError(
        "this exercise needs Triton, which is not installed here: pip install triton (there are wheels for Linux; on "
        "Windows use WSL2, on a Mac a Linux machine or Colab)",
        name="triton",
    )
