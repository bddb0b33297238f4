"""Compiled code: what `torch.compile` makes of a program's kernels. Values are those of the eager operations.

`fusion` makes few kernels of many, `regions` runs a function as compiled code. Not here: `torch.compile` itself
(`vgpu.torch_integration.patches.dynamo`).
"""
