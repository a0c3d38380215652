"""Metrics, intervals and tables computed from finished results."""
