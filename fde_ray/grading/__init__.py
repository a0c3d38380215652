"""Extraction, scoring and judging of a finished run."""
