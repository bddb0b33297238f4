"""One recorded run on several cards: `python -m vgpu price`, with a table for people, JSON, and timelines above each
other. Without torch. Not here: recordings and their replay (`vgpu.recording`)."""
