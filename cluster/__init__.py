"""What surrounds the package: so far `cluster.lab`, a one-machine Kubernetes for the tests."""
