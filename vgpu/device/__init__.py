"""The device: what it is asked to do, how long that takes it, and when it is done. Neither torch nor numpy.

The host's side (`vgpu.runtime.gpu` and all that stands on it) sends `KernelWork`; `DeviceQueue` prices it for its card
(`Pricing`) and finds its place on a stream. What a program can learn of it is what CUDA would tell: when a stream is
done. Recordings (`vgpu.device.recording`) send the same work to other cards.
"""
