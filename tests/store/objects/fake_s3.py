"""Just enough of S3 in memory, with faults on order."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

BUCKET = "bench"


@dataclass
class Fault:
    """What happens to the next `times` requests that fit; a reply lost = `after`, then silence."""

    method: str
    part: str = ""
    """Must be in the address."""
    status: int = 503
    code: str = "SlowDown"
    times: int = 1
    until: float = 0.0
    """Monotonic time; up to then every fitting request meets the fault."""
    after: bool = False
    """The request is carried out before the fault strikes."""
    delay_s: float = 0.0
    """How long the server is silent before it does what the rest says."""
    cut: bool = False
    """The connection ends without a reply."""
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "injected"
    spoil: Callable[[bytes], bytes] | None = None
    """Changes the body of a good reply instead."""
    short: bool = False
    """Half of the body comes, then the connection ends."""

    def strikes(self, method: str, address: str) -> bool:
        if method != self.method or self.part not in address:
            return False
        if self.until:
            return time.monotonic() < self.until
        self.times -= 1
        return self.times >= 0


@dataclass
class Stored:
    data: bytes
    metadata: dict[str, str]

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


@dataclass
class Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)
    began_at: float = field(default_factory=time.time)


class FakeS3:
    """Just enough S3 in memory, with faults on order. `calls` is what came in."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.clock_offset_s = 0.0
        self.honours_conditions = True
        self.honours_multipart_conditions = True
        self.keeps_framing = False
        self.keeps_metadata = True
        self.page = 1000
        self.lock = threading.RLock()
        fake = self

        class Handler(_Handler):
            s3 = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def reset(self) -> None:
        kept = {"lock", "endpoint", "_server", "_thread"}
        fresh = {
            "objects": {},
            "uploads": {},
            "faults": [],
            "calls": [],
            "clock_offset_s": 0.0,
            "honours_conditions": True,
            "honours_multipart_conditions": True,
            "keeps_framing": False,
            "keeps_metadata": True,
            "page": 1000,
        }
        assert kept | set(fresh) == set(vars(self))
        vars(self).update(fresh)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, method: str, address: str) -> Fault | None:
        with self.lock:
            self.calls.append(f"{method} {address}")
            return next((f for f in self.faults if f.strikes(method, address)), None)

    def count(self, start: str) -> int:
        return sum(call.startswith(start) for call in self.calls)


class _Handler(BaseHTTPRequestHandler):
    s3: FakeS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):
            self.close_connection = True

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + self.s3.clock_offset_s, usegmt=True)

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET  # noqa: N815

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.s3.fault(self.command, self.path)
        if fault and not fault.after:
            time.sleep(fault.delay_s)
        if fault and not fault.after and fault.spoil is None and not fault.short:
            self._strike(fault)
            return
        with self.s3.lock:
            status, headers, body = self._answer()
        if fault and fault.after:
            time.sleep(fault.delay_s)
            self._strike(fault)
            return
        if fault and fault.spoil:
            body = fault.spoil(body)
        self._send(status, headers, body, short=bool(fault and fault.short))

    def _strike(self, fault: Fault) -> None:
        if fault.cut:
            self.close_connection = True
            return
        self._send(fault.status, fault.headers, _error(fault.code, fault.message))

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, short: bool = False
    ) -> None:
        self.send_response(status)
        length = headers.pop("Content-Length", str(len(body)))
        for name, value in {**headers, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if short else body)
        self.wfile.flush()
        self.close_connection = self.close_connection or short

    def _answer(self) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(self.path)
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        query = {k: v[0] for k, v in parse_qs(address.query, keep_blank_values=True).items()}
        if bucket != BUCKET:
            return 404, {}, _error("NoSuchBucket")
        if not key:
            return self._uploads(query) if "uploads" in query else self._list(query)
        if "uploads" in query or "uploadId" in query:
            return self._multipart(key, query)
        verb = {"PUT": self._put, "DELETE": self._delete}.get(self.command, self._read)
        return verb(key)

    def _put(self, key: str) -> tuple[int, dict[str, str], bytes]:
        if self._wrong_digest():
            return 400, {}, _error("BadDigest")
        condition = self.s3.honours_conditions and self.headers.get("If-None-Match") == "*"
        if condition and key in self.s3.objects:
            return 412, {}, _error("PreconditionFailed")
        data = _framed(self.body) if self.s3.keeps_framing else self.body
        self.s3.objects[key] = Stored(data, self._metadata())
        return 200, {"ETag": self.s3.objects[key].etag}, b""

    def _delete(self, key: str) -> tuple[int, dict[str, str], bytes]:
        self.s3.objects.pop(key, None)
        return 204, {}, b""

    def _read(self, key: str) -> tuple[int, dict[str, str], bytes]:
        found = self.s3.objects.get(key)
        if found is None:
            return 404, {}, b"" if self.command == "HEAD" else _error("NoSuchKey")
        if self.headers.get("If-Match") not in (None, found.etag):
            return 412, {}, _error("PreconditionFailed")
        headers = {f"x-amz-meta-{k}": v for k, v in found.metadata.items()}
        headers["ETag"] = found.etag
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return 200, {**headers, "Content-Length": str(len(found.data))}, found.data
        first, last = int(asked[1]), min(int(asked[2]), len(found.data) - 1)
        if first > last:
            return 416, {}, _error("InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found.data)}"
        return 206, headers, found.data[first : last + 1]

    def _multipart(self, key: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in query:
            name = f"u{len(self.s3.calls)}"
            self.s3.uploads[name] = Upload(key, self._metadata())
            return 200, {}, _xml(f"<InitiateMultipartUploadResult>{_tag('UploadId', name)}"
                                 "</InitiateMultipartUploadResult>")  # fmt: skip
        upload = self.s3.uploads.get(query["uploadId"])
        if upload is None or upload.key != key:
            return 404, {}, _error("NoSuchUpload")
        if self.command == "DELETE":
            del self.s3.uploads[query["uploadId"]]
            return 204, {}, b""
        if self.command == "PUT":
            if self._wrong_digest():
                return 400, {}, _error("BadDigest")
            upload.parts[int(query["partNumber"])] = self.body
            return 200, {"ETag": Stored(self.body, {}).etag}, b""
        condition = self.headers.get("If-None-Match") == "*"
        if condition and self.s3.honours_multipart_conditions and key in self.s3.objects:
            return 412, {}, _error("PreconditionFailed")
        data = b"".join(upload.parts[n] for n in sorted(upload.parts))
        self.s3.objects[key] = Stored(data, upload.metadata)
        del self.s3.uploads[query["uploadId"]]
        return 200, {}, _xml("<CompleteMultipartUploadResult><ETag>x</ETag>"
                             "</CompleteMultipartUploadResult>")  # fmt: skip

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(k for k in self.s3.objects if k.startswith(prefix) and k > after)
        page = keys[: self.s3.page]
        entries = "".join(f"<Contents>{_tag('Key', quote(k))}</Contents>" for k in page)
        more = len(keys) > len(page)
        token = _tag("NextContinuationToken", page[-1]) if more else ""
        flag = _tag("IsTruncated", str(more).lower())
        url = _tag("EncodingType", "url")
        return 200, {}, _xml(f"<ListBucketResult>{url}{flag}{token}{entries}</ListBucketResult>")

    def _uploads(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", ""), query.get("key-marker", "")
        found = sorted(
            (u.key, name, u.began_at)
            for name, u in self.s3.uploads.items()
            if u.key.startswith(prefix) and u.key > after
        )
        page = found[: self.s3.page]
        entries = "".join(
            f"<Upload>{_tag('Key', key)}{_tag('UploadId', name)}"
            f"{_tag('Initiated', time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(at)))}</Upload>"
            for key, name, at in page
        )
        more = len(found) > len(page)
        marks = _tag("NextKeyMarker", page[-1][0]) + _tag("NextUploadIdMarker", "x") if more else ""
        flag = _tag("IsTruncated", str(more).lower())
        return (
            200,
            {},
            _xml(
                f"<ListMultipartUploadsResult>{flag}{marks}{entries}</ListMultipartUploadsResult>"
            ),
        )

    def _metadata(self) -> dict[str, str]:
        if not self.s3.keeps_metadata:
            return {}
        mark = "x-amz-meta-"
        return {k[len(mark) :]: v for k, v in self.headers.items() if k.lower().startswith(mark)}

    def _wrong_digest(self) -> bool:
        said = self.headers.get("Content-MD5")
        if said:
            return base64.b64decode(said) != hashlib.md5(self.body).digest()
        said = self.headers.get("x-amz-checksum-sha256")
        return bool(said) and base64.b64decode(said or "") != hashlib.sha256(self.body).digest()


def _tag(name: str, text: str) -> str:
    return f"<{name}>{text}</{name}>"


def _xml(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()


def _error(code: str, message: str = "injected") -> bytes:
    return _xml(f"<Error>{_tag('Code', code)}{_tag('Message', message)}</Error>")


def _framed(data: bytes) -> bytes:
    tail = b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n" + tail


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    server = FakeS3()
    try:
        yield server
    finally:
        server.close()
