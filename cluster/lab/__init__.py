"""A one-machine Kubernetes made from packages alone: no registry, no image from outside.

It lives in a mount and a network namespace and a control group of its own, joined to the machine by
one pair of links, so another cluster beside it is never touched and its end leaves nothing behind.

`layout` says where things are, `modules` what is built and `building` builds it, `images` makes
what its pods run. `network`, `rendering`, `certificates`, `daemons` and `objects` say how the
cluster looks, `fence` holds it, `raising` brings it up, `lowering` takes it down, `report` tells
how it is.
"""
