"""Virtual time: the host's clocks, whose turn it is, and the device's queues. What work costs: `vgpu.cost`."""
