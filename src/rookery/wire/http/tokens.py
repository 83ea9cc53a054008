"""JSON Web Tokens: who their signer says the bearer is.

The algorithm belongs to the key, never to the token: HS256 to a secret, RS256 to an RSA key, ES256 to a P-256 key. Keys
come from the settings: a secret, or a file with public keys in PEM or a JWK set. `exp` and `nbf` are checked, `aud`
when an audience is set. The claims `tenant`, `rights` (`configure`, `write`, `read`) and `admin` say what the bearer
may; without them it has full rights in tenant `default`, and `sub` is its name.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import jwt
import msgspec

from rookery.core.access import DEFAULT_TENANT, FULL, Principal, Rights
from rookery.errors import InvalidConfig, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BAD_TOKEN: Final = "invalid token"  # noqa: S105
TOKEN_MAX_CHARS: Final = 16 * 1024
LEEWAY_SEC: Final = 0

_ALGORITHMS: Final = {"RSA": "RS256", "EC": "ES256"}


class _Claims(msgspec.Struct):
    sub: str = "token"
    tenant: str = DEFAULT_TENANT
    rights: Rights = FULL
    admin: bool = False
    exp: float | None = None


class _Key:
    """A key with its algorithm, and its id where it has one."""

    def __init__(self, key: Any, algorithm: str, kid: str | None = None) -> None:
        self.key = key
        self.algorithm = algorithm
        self.kid = kid


class Tokens:
    """Verifies tokens with the keys it was made with."""

    def __init__(self, keys: Sequence[_Key], audience: str | None = None) -> None:
        self._keys = keys
        self._audience = audience

    @classmethod
    def by_secret(cls, secret: str, audience: str | None = None) -> Tokens:
        return cls([_Key(secret, "HS256")], audience)

    @classmethod
    def by_file(cls, text: str, name: str, audience: str | None = None) -> Tokens:
        """Public keys of a file: a JWK set, or one PEM."""
        keys = _from_jwks(text, name) if text.lstrip().startswith("{") else [_from_pem(text, name)]
        return cls(keys, audience)

    def principal(self, token: str, now_ms: int) -> Principal:
        """Whom a token speaks of. Whatever is wrong with it gets one and the same answer."""
        if len(token) > TOKEN_MAX_CHARS:
            raise Unauthenticated(BAD_TOKEN)
        for key in self._candidates(token):
            claims = self._verified(token, key)
            if claims is not None:
                return _principal(claims, now_ms)
        raise Unauthenticated(BAD_TOKEN)

    def _candidates(self, token: str) -> Iterable[_Key]:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, ValueError, RecursionError):
            return []
        named = [key for key in self._keys if kid is not None and key.kid == kid]
        return named or self._keys

    def _verified(self, token: str, key: _Key) -> dict[str, Any] | None:
        options: Any = {"verify_aud": self._audience is not None, "verify_iat": False, "verify_sub": False}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a short secret is the settings' own warning
                return jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    audience=self._audience,
                    options=options,
                    leeway=LEEWAY_SEC,
                )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError):
            return None


def _principal(claims: dict[str, Any], now_ms: int) -> Principal:
    try:
        read = msgspec.convert(claims, _Claims)
        f"{read.sub}{read.tenant}".encode()  # a lone surrogate, which JSON may hold, is no name
        expires_ms = None if read.exp is None else int(read.exp * 1000)
        if expires_ms is not None and expires_ms <= now_ms:
            raise Unauthenticated(BAD_TOKEN)
        return Principal(read.sub, read.tenant, read.rights, read.admin, expires_ms=expires_ms)
    except (ValueError, OverflowError, RecursionError):
        raise Unauthenticated(BAD_TOKEN) from None


def _from_jwks(text: str, name: str) -> list[_Key]:
    try:
        document = msgspec.json.decode(text)
        found = jwt.PyJWKSet.from_dict(document if "keys" in document else {"keys": [document]})
    except (msgspec.DecodeError, jwt.PyJWTError, TypeError, ValueError) as error:
        raise InvalidConfig(f"{name} is no JWK set: {error}", argument="ROOKERY_JWT_KEY_FILE") from None
    keys = []
    for each in found.keys:
        algorithm = _ALGORITHMS.get(str(each.key_type))
        if algorithm is not None:
            keys.append(_Key(each.key, algorithm, each.key_id))
    if not keys:
        raise InvalidConfig(f"{name} holds no RSA or EC key", argument="ROOKERY_JWT_KEY_FILE")
    return keys


def _from_pem(text: str, name: str) -> _Key:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        text = "public keys for tokens need the package cryptography: pip install 'rookery[jwt]'"
        raise InvalidConfig(text, argument="ROOKERY_JWT_KEY_FILE") from None
    try:
        key = load_pem_public_key(text.encode())
    except ValueError as error:
        raise InvalidConfig(f"{name} is no public key in PEM: {error}", argument="ROOKERY_JWT_KEY_FILE") from None
    if isinstance(key, rsa.RSAPublicKey):
        return _Key(key, "RS256")
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return _Key(key, "ES256")
    raise InvalidConfig(f"{name} must be an RSA or a P-256 key", argument="ROOKERY_JWT_KEY_FILE")
