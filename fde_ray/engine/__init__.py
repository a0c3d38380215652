"""Scheduling of runs from planned to graded."""
