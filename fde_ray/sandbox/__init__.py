"""Isolated places in which agent and evaluator code runs."""
