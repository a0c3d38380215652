"""The HTTP applications that solving and grading runs talk to."""
