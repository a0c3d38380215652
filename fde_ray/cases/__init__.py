"""Case packages: load, stage, check and author them.

`package.load_case` is the way in; `staging` makes the three archives, `probes` reads precomputed
deliverables, `admission.check_case` decides whether a case has earned its place.
"""
