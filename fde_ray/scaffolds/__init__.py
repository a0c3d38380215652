"""Agent loops that turn a model into a system under test."""
