"""Programs that are sent as text into containers; standard library only, importing none of ours.

A function of an attempt takes its job (`id`, `nonce`, `target`, options) and returns evidence when
it got through; OSError says that it was refused, and any other error that it could not be tried.
"""
