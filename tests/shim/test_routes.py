"""Which requests of an agent are model calls, and how it hears a refusal."""

from __future__ import annotations

import json

import pytest

from fde_ray.shim.routes import Route, error_body, error_event, route_of

ERROR = {"fault": "agent", "code": "c", "reason": "r", "message": "r"}


@pytest.mark.parametrize(
    ("method", "target", "path", "dialect"),
    [
        ("POST", "/v1/chat/completions", "/v1/chat/completions", "chat"),
        ("POST", "/v1/chat/completions?key=s", "/v1/chat/completions", "chat"),
        ("POST", "/v1/responses", "/v1/responses", "responses"),
        ("POST", "/v1/messages?beta=true", "/v1/messages", "messages"),
        ("POST", "/v1/messages/count_tokens", "/v1/messages/count_tokens", "messages"),
        ("GET", "/v1/models", "/v1/models", "chat"),
        ("GET", "/v1/models/acme/big", "/v1/models/acme/big", "chat"),
        ("GET", "/v1beta/models", "/v1beta/models", "gemini"),
    ],
)
def test_model_calls_are_passed_on(method: str, target: str, path: str, dialect: str) -> None:
    assert route_of(method, target) == Route(path, dialect)


def test_a_gemini_stream_keeps_its_form_and_loses_its_key() -> None:
    route = route_of("POST", "/v1beta/models/acme/big:streamGenerateContent?key=s&alt=sse")
    assert route is not None
    assert route.path == "/v1beta/models/acme/big:streamGenerateContent?alt=sse"
    assert route.wants_stream(b"not json")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/models"),
        ("POST", "/v1/turns"),
        ("POST", "/v1/commit"),
        ("POST", "/v1/token"),
        ("GET", "/v1/inputs"),
        ("GET", "/v1/models/../inputs"),
        ("GET", "/v1/models//x"),
        ("POST", "/v1beta/models/x:deleteContent"),
        ("POST", "/v1beta/models/:generateContent"),
        ("POST", "/v1beta/models/a\nb:generateContent"),
        ("POST", "/v1beta/models/é:generateContent"),
        ("POST", "/v1beta/models/" + "x" * 300 + ":generateContent"),
        ("DELETE", "/v1/messages"),
        ("POST", ""),
    ],
)
def test_nothing_else_is(method: str, target: str) -> None:
    assert route_of(method, target) is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[", b"[" * 100_000, b'"stream"', b'{"stream": 1}', b'"stream"' + b" " * 100_000),
        rb'{"messages": [{"content": "use \"stream\": true"}]}',
    ],
)
def test_a_body_that_asks_for_no_stream_gets_none(body: bytes) -> None:
    assert not Route("/v1/messages", "messages").wants_stream(body)
    assert Route("/v1/messages", "messages").wants_stream(b'{"stream": true}')


def test_only_headers_that_say_how_to_read_the_body_go_further() -> None:
    given = {"anthropic-beta": "a,b", "anthropic-version": "x\n", "x-api-key": "s", "cookie": "c"}
    assert Route("/v1/messages", "messages").headers(given) == {"anthropic-beta": "a,b"}
    assert Route("/v1/responses", "responses").headers(given) == {}


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_a_refusal_has_the_dialects_words_and_our_fault(dialect: str) -> None:
    value = json.loads(error_body(dialect, 403, ERROR))
    assert value["error"]["fault"] == "agent"
    assert value["error"]["message"] == "r"
    event = error_event(dialect, error_body(dialect, 403, ERROR))
    assert event.startswith(b"\n\n")
    data = event.strip().rpartition(b"data: ")[2]
    assert json.loads(data)["error"]["fault"] == "agent"
    expected = {"messages": b"event: error\n", "responses": b"event: response.failed\n"}
    assert event.lstrip().startswith(expected.get(dialect, b"data: "))
