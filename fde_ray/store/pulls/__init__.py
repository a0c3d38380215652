"""Copies what the bucket holds of a sweep into a folder: checked, and nothing twice.

`selecting` says what is wanted, `keeping` is the folder with its receipts, `fetching` brings one
object, `puller` does it for a whole sweep.
"""

from .puller import Pull, Puller, Standing
from .selecting import Kind, Where, kinds_of

__all__ = ["Kind", "Pull", "Puller", "Standing", "Where", "kinds_of"]
