"""Extension: sharding: an optimizer by hand (ZeRO-1), FSDP2, a tensor-parallel MLP, and what each of them costs."""
