"""The standard-library program that runs a solving attempt next to its sandbox."""
