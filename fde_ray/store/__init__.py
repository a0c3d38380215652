"""Where the truth lives: the run store (SQL) and the object store (a folder with S3 semantics).

`runs` holds what supervisors decide from, `objects` holds bytes that are written once, `results`
reads a finished sweep back from the bucket alone. The story goes on in `fde_ray.engine`.
"""
