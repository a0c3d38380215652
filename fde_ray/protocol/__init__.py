"""The benchmark's rules as pure functions and state machines: no clock, no network, no files.

`packs` holds every prompt text; `conditions` renders what the agent reads. `questions`, `detector`
and `dialogue` decide what a reply of the agent means and what it is told; `customer`, `extraction`
and `coverage` shape the calls of the other roles and read their replies through `replies`. `votes`
and `signatures` turn extraction routes into a score, `metrics` turns coverage into numbers, and
`deviations` lists where we differ from the paper. The story goes on in `fde_ray.customer` and
`fde_ray.grading`, which carry these decisions out.
"""
