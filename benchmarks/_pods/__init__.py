"""Parts of `benchmarks.pods`: the place in the lab, supervisors, kubelets, and what they cost."""
