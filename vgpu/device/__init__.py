"""The device: what it is asked to do, how long that takes it, and when it is done. Neither torch nor numpy.

The host's side (`vgpu.runtime.gpu` and everything above it) sends `KernelWork`; `DeviceQueue` prices it for its card
(`Pricing`) and finds its place on a stream. A program can learn of it only what CUDA would report: when a stream is
done. Recordings (`vgpu.device.recording`) send the same work to other cards.
"""
