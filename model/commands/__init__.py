"""One module for each command of `orrery`: its first docstring line is its help."""
