"""Sessions in pods of a cluster.

`backend.opened_kubernetes` opens it. `pods` builds a pod, `starting` and `removing` bring it up and
down, `watching` keeps one `cache` of `views` of all of them, `ends` tells from a view whose doing
an end was. `client` speaks to the API server with the `credentials` of the process; `contract`
holds the names that pods, fence and the programs inside agree on. `fence` and `checking` are the
operator's: what surrounds the pods, and whether it holds.
"""
