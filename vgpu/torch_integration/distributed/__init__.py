"""`torch.distributed` on virtual GPUs, one process per rank: values travel by gloo, time by agreement of the clocks.

`messages.VirtualProcessGroup` is the process group that programs see: `group` has its collectives, `runner` decides
where and when they run, `channel` how the ranks agree on a moment, `carry` how values move, `work` what a call returns,
`ddp` what DistributedDataParallel needs. Not here: which names are replaced
(`vgpu.torch_integration.patches.distributed`), how processes are started (`vgpu.tools.launch`).
"""
