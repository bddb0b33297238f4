"""What never changes about an operation: which there are, what their schemas say, their products, traffic and work.

Not here: what happens at an operation (`vgpu.torch_integration.dispatch`).
"""
