"""The GPU's memory: the caching allocator's model, which storages live where, what for, and what libraries take."""
