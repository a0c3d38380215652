"""The vocabulary of fde_ray: frozen records, states, ids and the failure table.

Imports nothing else of the package. `base` holds the record class and its one validated `evolve`;
`specs` and `profile` are the two documents a user writes; `states` and `failures` say where a run
is and why it stopped; `dialogue`, `grading` and `result` are what a run leaves behind; `ids` turns
the science of a run into its name. The story goes on in `fde_ray.protocol`.
"""
