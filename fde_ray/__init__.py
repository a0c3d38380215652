"""FDE-Bench sweeps: simulated customers, sandboxed solving runs, hidden grading, reports."""

__version__ = "0.1.0"
