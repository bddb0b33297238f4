"""Views of a run: NVML, the profiler, pictures, traces and summaries. All of it is simulated, and says so."""
