"""What handlers of Python-level calls share: the mode that calls them, and what autocast would cast."""
