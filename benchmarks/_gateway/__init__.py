"""The processes and the load of `benchmarks.gateway`."""
