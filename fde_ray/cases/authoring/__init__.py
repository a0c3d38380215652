"""Tools for people who write cases: seeded draws, writers, the evaluators' shared block, mutants."""
