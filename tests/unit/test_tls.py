"""Contexts made of files: what is wrong is told by the name of its setting, and a bad reload changes nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rookery.errors import InvalidConfig
from rookery.server.tls import Certificates, ClientCertificates, TlsFiles, name_in


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(ca: trustme.CA, tmp_path: Path) -> TlsFiles:
    issued = ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_files_in_one_or_two(files: TlsFiles, tmp_path: Path) -> None:
    context = Certificates(files).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert files.key is not None
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    newer = Certificates(TlsFiles(both, min_version="1.3")).context
    assert newer.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("clients", "mode"), [("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_clients_are_verified(
    files: TlsFiles, tmp_path: Path, clients: ClientCertificates, mode: ssl.VerifyMode
) -> None:
    wanted = files._replace(ca=tmp_path / "ca.pem", clients=clients)
    context = Certificates(wanted).context
    assert context.verify_mode == mode
    assert len(context.get_ca_certs()) == 1


def test_a_key_with_a_password(files: TlsFiles, tmp_path: Path) -> None:
    assert files.key is not None
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"sesame"))
    )
    Certificates(files._replace(key=locked, key_password="sesame"))
    for password in ("mustard", None):
        with pytest.raises(InvalidConfig) as caught:
            Certificates(files._replace(key=locked, key_password=password))
        assert caught.value.argument == "ROOKERY_TLS_KEY_PASSWORD"
        assert "mustard" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "content", "argument", "words"),
    [
        ("cert", None, "ROOKERY_TLS_CERT", "cannot be read: No such file"),
        ("key", None, "ROOKERY_TLS_KEY", "cannot be read: No such file"),
        ("ca", None, "ROOKERY_TLS_CA", "cannot be read: No such file"),
        ("cert", "nonsense", "ROOKERY_TLS_CERT", "holds no certificate"),
        ("key", "nonsense", "ROOKERY_TLS_KEY", "holds no key"),
        ("ca", "nonsense", "ROOKERY_TLS_CA", "holds no certificate"),
        ("key", "another", "ROOKERY_TLS_KEY", "is not the key of the certificate"),
    ],
)
def test_what_is_wrong_is_told(
    files: TlsFiles, ca: trustme.CA, tmp_path: Path, change: str, content: str | None, argument: str, words: str
) -> None:
    wanted = files._replace(ca=tmp_path / "ca.pem", clients="optional")
    bad = tmp_path / "bad.pem"
    if content == "another":
        ca.issue_cert("elsewhere").private_key_pem.write_to_path(bad)
    elif content is not None:
        bad.write_text(content)
    with pytest.raises(InvalidConfig) as caught:
        Certificates(TlsFiles(**{**wanted._asdict(), change: bad}))
    assert caught.value.argument == argument
    assert words in str(caught.value)
    assert str(bad) in str(caught.value)


def test_reloading(files: TlsFiles, ca: trustme.CA) -> None:
    certificates = Certificates(files)
    first = certificates.context
    assert not certificates.changed()
    files.cert.write_text("half of a certi")
    assert certificates.changed()
    with pytest.raises(InvalidConfig):
        certificates.reload()
    assert certificates.context is first
    assert not certificates.changed()  # told once, and not every few seconds
    again = ca.issue_cert("localhost")
    assert files.key is not None
    again.private_key_pem.write_to_path(files.key)
    again.cert_chain_pems[0].write_to_path(files.cert)
    assert certificates.changed()
    certificates.reload()
    assert certificates.context is not first


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ((("organizationName", "shop"),), (("commonName", "ada"),))}, "ada"),
        ({"subject": (), "subjectAltName": (("IP Address", "192.0.2.7"), ("email", "ada@shop"))}, "ada@shop"),
        ({"subject": (), "subjectAltName": (("IP Address", "192.0.2.7"),)}, ""),
    ],
)
def test_the_name_in_a_certificate(certificate: object, name: str) -> None:
    assert name_in(certificate) == name
