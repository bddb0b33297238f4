"""The way of every operation: what Python code says of devices, residency of results, device rules, copies, cost.

Not here: what never changes about an operation (`vgpu.runtime.operations`), and kernels that CUDA has and the CPU lacks
(`vgpu.torch_integration.kernels`).
"""
