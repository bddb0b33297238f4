"""Students' code is never collected. The plugin is named in `pyproject.toml`: from here its options came too late."""

collect_ignore = ["labs", "solutions"]
