"""Every leaf is signed by the one authority and says who it is."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from cluster.lab.certificates import SERVICE_ACCOUNTS, leaves, write_certificates
from cluster.lab.network import Network

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_leaves_are_signed_and_named(tmp_path: Path, network: Network) -> None:
    wanted = leaves(network, "lab")
    write_certificates(tmp_path, wanted, NOW)
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    for leaf in wanted:
        found = x509.load_pem_x509_certificate((tmp_path / f"{leaf.name}.crt").read_bytes())
        found.verify_directly_issued_by(ca)
        (name,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert name.value == leaf.common_name
        assert found.not_valid_before_utc < NOW < found.not_valid_after_utc


def test_api_server_is_known_by_every_address_it_is_called_by(
    tmp_path: Path, network: Network
) -> None:
    (server,) = (leaf for leaf in leaves(network, "lab") if leaf.name == "apiserver")
    write_certificates(tmp_path, (server,), NOW)
    found = x509.load_pem_x509_certificate((tmp_path / "apiserver.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = set(map(str, names.get_values_for_type(x509.IPAddress)))
    assert addresses == {"127.0.0.1", "10.250.0.1", "10.250.64.1"}
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_keys_are_for_the_owner_alone(tmp_path: Path, network: Network) -> None:
    folder = tmp_path / "pki"
    write_certificates(folder, leaves(network, "lab"), NOW)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = list(folder.glob("*.key"))
    assert folder / f"{SERVICE_ACCOUNTS}.key" in keys
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
