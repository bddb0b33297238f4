"""What several test folders share."""

pytest_plugins = ["pytester"]
