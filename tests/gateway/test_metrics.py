"""The page that Prometheus reads, and that no plane has it."""

from __future__ import annotations

import httpx

from fde_ray.gateway.metrics import metrics_app
from fde_ray.metering.metrics import CallMetrics
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault


async def test_the_figures_are_served_and_nothing_else_is() -> None:
    metrics = CallMetrics()
    metrics.refused(Refusal(402, Fault.BUDGET, "no", code="budget_exhausted"))
    transport = httpx.ASGITransport(app=metrics_app(metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://metrics") as client:
        page = await client.get("/metrics")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain")
        assert 'fde_ray_refusals_total{code="budget_exhausted",fault="budget"} 1.0' in page.text
        for path in ("/", "/docs", "/openapi.json", "/v1/chat/completions"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/metrics")).status_code == 405
