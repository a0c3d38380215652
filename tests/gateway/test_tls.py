"""A plane that speaks HTTPS, and its certificate's files."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fde_ray.gateway.admin import Health, admin_app
from fde_ray.gateway.serve import served_on_port
from fde_ray.gateway.tls import Certificate, TlsFiles
from fde_ray.model.errors import UserError

NOW = datetime.datetime.now(datetime.UTC)


def write_certificate(folder: Path, *, password: bytes | None = None) -> TlsFiles:
    """Write a certificate of 127.0.0.1 that vouches for itself; files that are there change."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fde-ray")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    sealing = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    files.certificate.write_bytes(made.public_bytes(pem))
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, sealing))
    return files


async def status_of(port: int, trusted: bytes) -> int:
    context = ssl.create_default_context(cadata=trusted.decode())
    async with httpx.AsyncClient(verify=context, timeout=10) as client:
        return (await client.get(f"https://127.0.0.1:{port}/livez")).status_code


async def test_https_is_spoken_and_a_renewed_certificate_is_shown(tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    certificate = Certificate(files)
    old = files.certificate.read_bytes()
    app = admin_app(Health())
    async with served_on_port(app, "127.0.0.1", 0, tls=certificate.context) as port:
        assert await status_of(port, old) == 200
        write_certificate(tmp_path)
        new = files.certificate.read_bytes()
        os.utime(files.certificate, ns=(1, 1))  # a coarse clock would not tell them apart
        certificate.look()
        assert await status_of(port, new) == 200
        with pytest.raises(httpx.ConnectError):
            await status_of(port, old)
        files.key.write_text("broken")
        certificate.look()
        assert await status_of(port, new) == 200


async def test_who_speaks_no_https_is_hung_up_on(tmp_path: Path) -> None:
    certificate = Certificate(write_certificate(tmp_path))
    async with served_on_port(admin_app(Health()), "127.0.0.1", 0, tls=certificate.context) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(10):
            try:
                said = await reader.read()
            except ConnectionError:
                said = b""
        assert b"HTTP/1.1" not in said
        writer.close()


def missing(files: TlsFiles) -> None:
    files.key.unlink()


def empty(files: TlsFiles) -> None:
    files.certificate.write_bytes(b"")


def huge(files: TlsFiles) -> None:
    files.certificate.write_bytes(b"A" * 5_000_000)


def of_another(files: TlsFiles) -> None:
    kept = files.certificate.read_bytes()
    write_certificate(files.certificate.parent)
    files.certificate.write_bytes(kept)


def sealed(files: TlsFiles) -> None:
    write_certificate(files.certificate.parent, password=b"secret")


@pytest.mark.parametrize("spoil", [missing, empty, huge, of_another, sealed])
def test_files_that_are_no_certificate_and_its_key_are_refused(
    tmp_path: Path, spoil: object
) -> None:
    files = write_certificate(tmp_path)
    assert callable(spoil)
    spoil(files)
    with pytest.raises(UserError, match=r"tls\.(crt|key)"):
        Certificate(files)
