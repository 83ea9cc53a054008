"""The server's side of TLS: a context made of files, and made again when they change.

`Certificates.context` is what new connections are begun with. Files that cannot be used stop the start with a clear
error; at a reload they leave the context in force as it is.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rookery.errors import InvalidConfig

ClientCertificates = Literal["off", "optional", "required"]
MinVersion = Literal["1.2", "1.3"]

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFiles(NamedTuple):
    """What a context is made of. Without `key`, the file `cert` holds the key too; `ca` verifies clients."""

    cert: Path
    key: Path | None = None
    key_password: str | None = None
    ca: Path | None = None
    clients: ClientCertificates = "off"
    min_version: MinVersion = "1.2"


class Certificates:
    """The context in force."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._look()
        self.context = _make(files)

    def changed(self) -> bool:
        """Whether the files are others than when they were read last."""
        return self._look() != self._seen

    def reload(self) -> None:
        """Read the files again; when they cannot be used, that is an InvalidConfig, and nothing changes."""
        self._seen = self._look()
        self.context = _make(self._files)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(path) for path in (self._files.cert, self._files.key, self._files.ca) if path is not None]


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _make(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[files.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    key = files.key or files.cert
    _check_readable(files.cert, "ROOKERY_TLS_CERT")
    _check_readable(key, "ROOKERY_TLS_KEY" if files.key else "ROOKERY_TLS_CERT")
    try:
        # a password that is not there is an empty one: without it OpenSSL would ask the terminal
        context.load_cert_chain(files.cert, key, lambda: files.key_password or "")
    except ssl.SSLError as error:
        name, text = _blame(files, error)
        raise InvalidConfig(f"{name}: {text}", argument=name) from None
    if files.clients != "off":
        assert files.ca is not None, "who verifies clients needs to know by whom they are certified"
        _check_readable(files.ca, "ROOKERY_TLS_CA")
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError:
            text = f"ROOKERY_TLS_CA: {files.ca} holds no certificate in PEM form"
            raise InvalidConfig(text, argument="ROOKERY_TLS_CA") from None
    context.verify_mode = _VERIFY[files.clients]
    return context


def _check_readable(path: Path, name: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidConfig(f"{name}: {path} cannot be read: {error.strerror}", argument=name) from None


def _blame(files: TlsFiles, error: ssl.SSLError) -> tuple[str, str]:
    """Which file is at fault, and why: OpenSSL says neither in words that a reader of settings would use."""
    file = files.key or files.cert
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "ROOKERY_TLS_KEY", f"{file} is not the key of the certificate {files.cert}"
    if b"-----BEGIN CERTIFICATE-----" not in files.cert.read_bytes():
        return "ROOKERY_TLS_CERT", f"{files.cert} holds no certificate in PEM form"
    key = file.read_bytes()
    if b"PRIVATE KEY-----" not in key:
        return "ROOKERY_TLS_KEY", f"{file} holds no key in PEM form"
    if b"ENCRYPTED" in key:
        return "ROOKERY_TLS_KEY_PASSWORD", f"it does not open the key {file}"
    return "ROOKERY_TLS_CERT", f"{files.cert} cannot be used with {file}: {error.reason or error}"


def name_in(certificate: Any) -> str:
    """The name that a verified certificate, as `getpeercert` gives it, is for: its common name, or else the first of
    its alternative ones; empty without either.
    """
    if not certificate:
        return ""
    for part in certificate.get("subject", ()):
        for field, value in part:
            if field == "commonName" and value:
                return str(value)
    for field, value in certificate.get("subjectAltName", ()):
        if field in ("email", "DNS", "URI"):
            return str(value)
    return ""
