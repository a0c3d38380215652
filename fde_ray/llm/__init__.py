"""Ways to reach models, behind one interface.

`client` is the interface, `router` chooses by a model's name: `http_endpoint` passes calls on to
OpenAI-compatible endpoints, `litellm_client` translates other providers, `offline` answers without
any model; `offline_*` are its parts. What a call costs is told by `fde_ray.metering`.
"""
