"""Runs probes next to a submission's code, apart from everything else. The judge imports neither torch nor that code.

    with Sandbox(Path("labs")) as sandbox:
        reply = sandbox.run(Request("lab1.shared.benchmark.matmul", params={"size": 129}, device="vgpu:T4"))
        if reply.kind == "ok":
            reply.value["seconds"], reply.tensors["product"]

`docs/threat-model.md` and `docs/threat-model-limits.md` say what is prevented, noticed and neither.
"""

from gradebox.sandbox.sandbox import Sandbox
from gradebox.sandbox.types import (
    DEFINED_AS,
    DESCENDANTS,
    TAMPERING,
    CourseFault,
    Isolation,
    Kind,
    Limits,
    Note,
    RankReply,
    Reply,
    Request,
    SandboxError,
    SubmissionError,
)

__all__ = [
    "DEFINED_AS",
    "DESCENDANTS",
    "TAMPERING",
    "CourseFault",
    "Isolation",
    "Kind",
    "Limits",
    "Note",
    "RankReply",
    "Reply",
    "Request",
    "Sandbox",
    "SandboxError",
    "SubmissionError",
]
