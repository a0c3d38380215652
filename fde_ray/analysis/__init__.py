"""Metrics, intervals, tables and reports computed from finished results; pure, no input or output.

`cells` joins planned runs with their results, `aggregates` turns the cells of one system under one
condition into numbers, `statistics` holds intervals and tests, `summary` is the documented JSON
object. `terminal`, `html` and `tables` show a summary; they return text and write nothing.
"""
