"""Input spaces of Lab 5's probes."""

from __future__ import annotations

from tests.scenarios.inputs.space import Space

SPACES: tuple[Space, ...] = ()
WITHOUT: dict[str, str] = {}
