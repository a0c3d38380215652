"""Sweep specifications that ship with the package."""
