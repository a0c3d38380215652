"""Clients for chat models, real and offline."""
