"""What only a real GPU can show, as a queue of jobs in the order of their value.

    python3 -m benchmarks.on_a_gpu --minutes 12 [--out DIR]

A GPU can be had rarely and for minutes, so the queue is prepared for that: it skips what is known of this card and this
content, starts nothing that would not end in time, and writes after every job. docs/on-a-gpu.md says how to use it.

`jobs` lists the jobs, `gradings` and `programs` carry them out in a process of their own (`worker`), `schedule` decides
which comes next, `results` keeps what came out, `table` writes it into docs/on-a-gpu.md, and `rehearsal` does all of it
on a virtual GPU that passes for a real one. Not here: what a measurement means for the virtual GPU
(`benchmarks.measured`).
"""
