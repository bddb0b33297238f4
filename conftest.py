"""Students' code is never collected. The grading plugin is named in `pyproject.toml`: here its options came too late."""

collect_ignore = ["labs", "solutions"]
