"""One certificate authority and a leaf for each part of the cluster; good for thirty days."""

from __future__ import annotations

from datetime import datetime, timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .network import Network

LIFETIME = timedelta(days=30)
SERVICE_ACCOUNTS = "service-accounts"
"""Name of the key that signs service-account tokens; it has no certificate."""


class Leaf(NamedTuple):
    """name: of its files; common_name and group: who the API server takes it for."""

    name: str
    common_name: str
    group: str | None = None
    hosts: tuple[str, ...] = ()


def leaves(network: Network, node: str) -> tuple[Leaf, ...]:
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    addresses = tuple(map(str, (IPv4Address("127.0.0.1"), network.node, network.api_service)))
    return (
        Leaf("apiserver", "kube-apiserver", hosts=(*addresses, "localhost", *service)),
        Leaf("apiserver-client", "apiserver-kubelet-client", "system:masters"),
        Leaf("admin", "admin", "system:masters"),
        Leaf("controller-manager", "system:kube-controller-manager"),
        Leaf("scheduler", "system:kube-scheduler"),
        Leaf("kubelet", f"system:node:{node}", "system:nodes", (*addresses[:2], node)),
        Leaf("proxy", "system:kube-proxy"),
    )


def write_certificates(folder: Path, wanted: tuple[Leaf, ...], now: datetime) -> None:
    """Write `ca`, the service-account key and each leaf as NAME.key and NAME.crt."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_key, ca = _authority(now)
    _write(folder, "ca", ca_key, ca)
    _write(folder, SERVICE_ACCOUNTS, _key(), None)
    for leaf in wanted:
        key = _key()
        _write(folder, leaf.name, key, _signed(leaf, key, ca, ca_key, now))


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _authority(now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = _key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fde-ray lab")])
    builder = _builder(name, name, key, now).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    return key, builder.sign(key, hashes.SHA256())


def _signed(
    leaf: Leaf,
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)]
    if leaf.group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.group))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(x509.Name(parts), ca.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    if leaf.hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in leaf.hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _host(host: str) -> x509.GeneralName:
    if host[0].isdigit():
        return x509.IPAddress(ip_address(host))
    return x509.DNSName(host)


def _write(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate | None
) -> None:
    encoding = serialization.Encoding.PEM
    # The one format of an elliptic key that the API server also takes as the public one.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    secret = key.private_bytes(encoding, form, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    (folder / f"{name}.key").chmod(0o600)
    if certificate is not None:
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(encoding))
