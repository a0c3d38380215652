"""The fde-ray command line."""
