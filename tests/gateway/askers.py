"""schemathesis, asking the operations of a document one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.gateway.openapi import Api, document

ANSWERED_WITHIN_S = 15.0
LONGEST_WAIT_S = 0.05
"""For the reply to a turn, which waits for as long as it is asked to."""


class Asker:
    """Sends requests to one operation. Not for an event loop: it waits for each answer.

    known: parts of a request that find what is there: `path_parameters`, `query`, `body`.
    """

    def __init__(
        self, operation: tuple[Api, str, str], url: str, token: str, known: Mapping[str, Any]
    ) -> None:
        import schemathesis

        api, method, path = operation
        schemathesis.serializer("application/gzip")(lambda _, value: {"data": value})
        self._url, self._session, self._known = url, requests.Session(), known
        self._session.trust_env = False
        self._headers = {"authorization": f"Bearer {token}"}
        # The token is ours to give; tests of its own try others.
        config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
        self._schema = schemathesis.openapi.from_dict(document(api), config=config)
        self._operation = self._schema[path][method]

    def fuzz(self, examples: int) -> None:
        """Ask for what fits and what does not, for what is there and what is not."""

        @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
        @given(self._cases())
        def ask(case: Any) -> None:
            self._ask(case)

        ask()

    def probe(self) -> int:
        """Ask for what is at the edges of what fits, and just beyond; return how often."""
        from schemathesis import GenerationMode

        generation = self._schema.config.generation_for(operation=self._operation)
        cases = self._schema.iter_coverage_cases(
            self._operation, generation_modes=list(GenerationMode), generation_config=generation
        )
        return sum(1 for case in cases if self._ask(case))

    def find(self) -> int:
        """Ask for what is there, and return the status."""
        from schemathesis import GenerationMode

        statuses = []

        @settings(max_examples=1, derandomize=True, database=None, deadline=None)
        @given(self._operation.as_strategy(GenerationMode.POSITIVE, **self._known))
        def ask(case: Any) -> None:
            statuses.append(self._ask(case))

        ask()
        return statuses[-1]

    def _cases(self) -> st.SearchStrategy[Any]:
        from schemathesis import GenerationMode

        fits, fails = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
        strategies = [self._operation.as_strategy(mode) for mode in (fits, fails)]
        if self._known:
            strategies.append(self._operation.as_strategy(fits, **self._known))
        return st.one_of(strategies)

    def _ask(self, case: Any) -> int:
        """Return the status; AssertionError for an answer that is a fault of ours, is none of the
        document's, or refuses the form of what the document allows."""
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks

        case.query = dict(hastened(case.query or {}))
        fits = case.meta.generation.mode.is_positive
        reply = case.call(
            self._url, session=self._session, headers=self._headers, timeout=ANSWERED_WITHIN_S
        )
        case.validate_response(
            reply,
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_headers_conformance,
                checks.response_schema_conformance,
            ],
        )
        if reply.headers.get("x-fde-code") == ["bad_request"]:
            assert not fits or has_whole_float(case.body), f"{case!r}: {reply.text}"
        return int(reply.status_code)

    def close(self) -> None:
        self._session.close()


def has_whole_float(value: Any) -> bool:
    """Whether there is a number such as 1.0, which JSON Schema takes for whole and we do not."""
    if isinstance(value, float):
        return value.is_integer()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_whole_float, inner))


def hastened(query: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in query.items():
        with contextlib.suppress(TypeError, ValueError):
            if name == "wait_s" and float(value) > LONGEST_WAIT_S:
                yield name, LONGEST_WAIT_S
                continue
        yield name, value
