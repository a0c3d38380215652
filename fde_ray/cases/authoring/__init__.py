"""Tools for people who write cases: seeded draws, writers, mutants, the shared evaluator block."""
