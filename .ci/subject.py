#!/usr/bin/env python3
"""A hook of Git for messages of commits (`.pre-commit-config.yaml`): .ci/subject.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

MOST = 72

lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
subject = next((line for line in lines if line.strip() and not line.startswith("#")), "")
if len(subject) > MOST:
    sys.exit(
        f"the subject has {len(subject)} characters, and at most {MOST} are allowed; put the reasons into the body:\n"
        f"{subject}"
    )
