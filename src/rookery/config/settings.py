"""The server's settings: flags > environment > `.env` > TOML file > default.

`Settings` below is the one table of them: each line gives a field with its type and default, its variable, its TOML
key and what it is for. Only the ports are not in it: each protocol names its own (`rookery.wire.protocols`). A setting
is taken whole from the highest source that names it; a variable that is there but empty asks for the default. A value
that cannot be used stops the start with the name of the source it came from.
Invariant: no message, `repr` or description made here shows a secret.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from rookery.config.files import CLIENT_SETTINGS, CONFIG_FILE, DB_FILE, ENV_FILE, parse_env_file
from rookery.config.kinds import (
    AppEnv,
    Attempts,
    AuthMode,
    BackoffStrategy,
    Bool,
    Bytes,
    ClientCertificates,
    Compression,
    EventLoop,
    FilePath,
    Host,
    KeyCreation,
    Kind,
    LeaseSeconds,
    Level,
    Listeners,
    MoreBytes,
    Networks,
    NotAvailable,
    Origins,
    Port,
    Seconds,
    Secret,
    Store,
    Suffix,
    SyncMode,
    TlsVersion,
    is_guessable,
    is_loopback,
    read_port,
    size,
    whole,
    word,
)
from rookery.core.access import GuestMode
from rookery.errors import InvalidConfig
from rookery.format.compression import NEEDS_ZSTD, is_available
from rookery.wire.face import PortSetting
from rookery.wire.protocols import PROTOCOLS, ports

LOG_FILE: Final = "raven-mq.log"
JWT_SECRET_BYTES_MIN: Final = 32
HIDDEN_CHARS_MIN: Final = 6

_DAY_MS: Final = 24 * 3_600_000


# The table


@dataclass(frozen=True, slots=True)
class At:
    """The names of a setting outside this program, and what it is for."""

    variable: str
    key: str | None
    help: str


def _default_ports() -> dict[str, int | None]:
    return {port.listener: port.default for port in ports()}


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """What a server runs with. A port of None is switched off, of 0 any free one."""

    config: Annotated[FilePath | None, At("ROOKERY_CONFIG", None, f"settings file, {CONFIG_FILE} if there")] = None

    ports: Mapping[str, int | None] = field(default_factory=_default_ports)
    """By listener (`http`, `https`, `amqp` …); one that is missing is switched off."""
    host: Annotated[Host, At("APP_HOST", "server.host", "address to listen on")] = "0.0.0.0"  # noqa: S104
    env: Annotated[
        AppEnv,
        At(
            "APP_ENV",
            "server.env",
            "production: JSON logs, short internal errors; development: readable logs, tracebacks",
        ),
    ] = "production"
    log_level: Annotated[Level, At("LOG_LEVEL", "log.level", "least level that is logged")] = "info"
    log_dir: Annotated[
        FilePath | None,
        At("RAVENMQ_LOG_DIR", "log.dir", f"directory of a file {LOG_FILE} that gets a copy of the log"),
    ] = None
    loop: Annotated[
        EventLoop, At("ROOKERY_LOOP", "server.loop", "event loop: uvloop where it is installed, or one by name")
    ] = "auto"
    shutdown_sec: Annotated[
        Seconds, At("ROOKERY_SHUTDOWN_SEC", "server.shutdown_sec", "time for requests to finish at shutdown")
    ] = 10.0

    proxy_protocol: Annotated[
        Listeners,
        At("ROOKERY_PROXY_PROTOCOL", "server.proxy_protocol", "listeners whose peers are proxies that say for whom"),
    ] = ()

    tls_cert: Annotated[
        FilePath | None, At("ROOKERY_TLS_CERT", "tls.cert", "PEM file of the certificate and its chain")
    ] = None
    tls_key: Annotated[FilePath | None, At("ROOKERY_TLS_KEY", "tls.key", "PEM file of its key, if it is another")] = (
        None
    )
    tls_key_password: Annotated[Secret, At("ROOKERY_TLS_KEY_PASSWORD", "tls.key_password", "password of the key")] = (
        None
    )
    tls_ca: Annotated[
        FilePath | None, At("ROOKERY_TLS_CA", "tls.ca", "PEM file of the authorities that certify clients")
    ] = None
    tls_clients: Annotated[
        ClientCertificates, At("ROOKERY_TLS_CLIENTS", "tls.clients", "whether clients show certificates")
    ] = "off"
    tls_min_version: Annotated[TlsVersion, At("ROOKERY_TLS_MIN_VERSION", "tls.min_version", "oldest TLS to speak")] = (
        "1.2"
    )

    auth_mode: Annotated[AuthMode, At("AUTH_MODE", "auth.mode", "what clients show: nothing, a key or a JWT")] = (
        "apikey"
    )
    api_key: Annotated[Secret, At("API_KEY", "auth.api_key", "admin key of tenant default")] = None
    jwt_secret: Annotated[Secret, At("JWT_SECRET", "auth.jwt_secret", "secret that JWTs are signed with")] = None
    jwt_key_file: Annotated[
        FilePath | None,
        At("ROOKERY_JWT_KEY_FILE", "auth.jwt_key_file", "public key (PEM) or JWK set that JWTs are verified with"),
    ] = None
    jwt_audience: Annotated[
        str,
        Kind("text", str),
        At("ROOKERY_JWT_AUDIENCE", "auth.jwt_audience", "audience that JWTs must be for, if any"),
    ] = ""
    key_creation: Annotated[KeyCreation, At("ROOKERY_KEY_CREATION", "auth.key_creation", "who may call create_key")] = (
        "local"
    )
    guest: Annotated[GuestMode, At("ROOKERY_GUEST", "auth.guest", "from where guest/guest may come")] = "loopback"
    insecure: Annotated[
        Bool, At("ROOKERY_INSECURE", "auth.insecure", "allow AUTH_MODE=none on an address others can reach")
    ] = False
    cors_origins: Annotated[Origins, At("CORS_ORIGINS", "http.cors_origins", "origins browsers may call from")] = ()
    rate_limit: Annotated[
        int,
        whole(0, 10**9),
        At("ROOKERY_RATE_LIMIT", "http.rate_limit", "requests per second per key, 0 for no limit"),
    ] = 0

    webhook_allow: Annotated[
        Networks,
        At("ROOKERY_WEBHOOK_ALLOW", "webhooks.allow", "networks that every tenant's webhooks may call, public or not"),
    ] = ()

    webhook_calls_max: Annotated[
        int,
        whole(1, 100_000),
        At(
            "ROOKERY_WEBHOOK_CALLS_MAX",
            "webhooks.calls_max",
            "calls of webhooks at a time, of which one tenant has a fifth at most and a tenth to one host",
        ),
    ] = 1_000

    store_backend: Annotated[Store, At("STORE_BACKEND", "store.backend", "where messages are kept")] = "journal"
    data_dir: Annotated[
        FilePath,
        At("ROOKERY_DATA_DIR", "store.data_dir", f"directory of the journal; {DB_FILE}, as Raven-MQ says, is the same"),
    ] = Path("rookery-data")
    pipelines_dir: Annotated[
        FilePath,
        At("ROOKERY_PIPELINES_DIR", "pipelines.dir", "root of pipelines on Spark: checkpoints, state, lake tables"),
    ] = Path("rookery-pipelines")
    sync: Annotated[
        SyncMode,
        At(
            "ROOKERY_SYNC",
            "store.sync",
            "when writes are synced: before a confirm, every second, or when the system likes",
        ),
    ] = "always"
    compression: Annotated[
        Compression, At("ROOKERY_COMPRESSION", "store.compression", "how large messages are compressed on disk")
    ] = "none"
    compress_min_bytes: Annotated[
        Bytes, At("ROOKERY_COMPRESS_MIN_BYTES", "store.compress_min_bytes", "least size of what is compressed")
    ] = 4096

    events_rate: Annotated[
        int,
        whole(0, 1_000_000),
        At(
            "ROOKERY_EVENTS_RATE",
            "events.rate",
            "messages a second whose lives the stream rookery.events tells, more are sampled; 0 for none",
        ),
    ] = 100

    visibility_timeout_sec: Annotated[
        LeaseSeconds,
        At("VISIBILITY_TIMEOUT_SEC", "delivery.visibility_timeout_sec", "how long a pulled message is leased"),
    ] = 30.0
    max_retries: Annotated[
        int, whole(0, 1_000_000), At("MAX_RETRIES", "delivery.max_retries", "deliveries after the first")
    ] = 5
    backoff_strategy: Annotated[
        BackoffStrategy, At("BACKOFF_STRATEGY", "delivery.backoff_strategy", "how the delay of retries grows")
    ] = "exponential"
    backoff_base_ms: Annotated[
        int, whole(0, _DAY_MS), At("BACKOFF_BASE_MS", "delivery.backoff_base_ms", "delay of the first retry")
    ] = 500
    dlq_suffix: Annotated[Suffix, At("DLQ_SUFFIX", "delivery.dlq_suffix", "ending of a dead-letter queue's name")] = (
        ".DLQ"
    )
    claim_lease_sec: Annotated[
        LeaseSeconds, At("ROOKERY_CLAIM_LEASE_SEC", "claim.lease_sec", "how long a message of GET /claim is leased")
    ] = 5.0
    claim_wait_sec: Annotated[
        Seconds, At("ROOKERY_CLAIM_WAIT_SEC", "claim.wait_sec", "how long GET /claim waits for a message")
    ] = 5.0
    claim_max_attempts: Annotated[
        Attempts, At("ROOKERY_CLAIM_MAX_ATTEMPTS", "claim.max_attempts", "deliveries in a queue made by POST /publish")
    ] = 3

    connections_max: Annotated[
        int, whole(1, 1_000_000), At("ROOKERY_CONNECTIONS_MAX", "limits.connections_max", "open connections")
    ] = 10_000
    address_connections_max: Annotated[
        int,
        whole(0, 1_000_000),
        At(
            "ROOKERY_ADDRESS_CONNECTIONS_MAX",
            "limits.address_connections_max",
            "of them by one address other than loopback, 0 for no limit",
        ),
    ] = 1_000
    tenant_connections_max: Annotated[
        int,
        whole(0, 1_000_000),
        At(
            "ROOKERY_TENANT_CONNECTIONS_MAX",
            "limits.tenant_connections_max",
            "of them to a tenant without a limit of its own, 0: any number",
        ),
    ] = 0
    handshake_sec: Annotated[
        Seconds, At("ROOKERY_HANDSHAKE_SEC", "limits.handshake_sec", "time for PROXY, TLS and login, each")
    ] = 10.0
    login_failures_max: Annotated[
        int,
        whole(0, 1_000_000),
        At(
            "ROOKERY_LOGIN_FAILURES_MAX",
            "limits.login_failures_max",
            "failed logins a minute by a user from one address",
        ),
    ] = 10
    channels_max: Annotated[
        int, whole(1, 65_535), At("ROOKERY_CHANNELS_MAX", "limits.channels_max", "AMQP channels of a connection")
    ] = 2_047
    heartbeat_sec: Annotated[
        int, whole(0, 65_535), At("ROOKERY_HEARTBEAT_SEC", "amqp.heartbeat_sec", "AMQP heartbeat proposed, 0 for none")
    ] = 60
    message_max_bytes: Annotated[
        Bytes,
        At("ROOKERY_MESSAGE_MAX_BYTES", "limits.message_max_bytes", "largest message over AMQP and the line protocol"),
    ] = 128 << 20
    http_body_max_bytes: Annotated[
        Bytes, At("ROOKERY_HTTP_BODY_MAX_BYTES", "limits.http_body_max_bytes", "largest request body over HTTP")
    ] = 16 << 20
    memory_max_bytes: Annotated[
        MoreBytes,
        At(
            "ROOKERY_MEMORY_MAX_BYTES",
            "limits.memory_max_bytes",
            "memory for messages, above it publishers wait; unset, 40 % of the machine's",
        ),
    ] = None
    disk_free_min_bytes: Annotated[
        int,
        size(0),
        At("ROOKERY_DISK_FREE_MIN_BYTES", "limits.disk_free_min_bytes", "disk to keep free, below it publishers wait"),
    ] = 256 << 20

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def lease_ms(self) -> int:
        return round(self.visibility_timeout_sec * 1_000)

    @property
    def max_attempts(self) -> int:
        """Deliveries allowed: the first one and the retries."""
        return self.max_retries + 1

    @classmethod
    def load(cls, flags: Mapping[str, object], environ: Mapping[str, str], cwd: Path) -> Settings:
        """Gather the settings. `flags` is by field name; a None in it means that the flag was not given."""
        layers = [_from_flags(flags), _from_environ(environ), _from_env_file(cwd / ENV_FILE)]
        layers.append(_from_toml(_first(layers, "config"), environ, cwd))
        chosen: dict[str, int | None] = _default_ports()
        values: dict[str, Any] = {"ports": chosen}
        sources: dict[str, str] = {}
        for setting in _table().rows:
            given = _first(layers, setting.field)
            if given is not None and given.text:
                if setting.listener:
                    chosen[setting.listener] = _read(setting, given)
                else:
                    values[setting.field] = _read(setting, given)
                sources[setting.field] = given.source
            elif given is not None:
                sources[setting.field] = f"default ({given.source} is empty)"
        paths = ("config", "data_dir", "log_dir", "pipelines_dir", "jwt_key_file", "tls_cert", "tls_key", "tls_ca")
        for name in paths:
            path = values.get(name, getattr(cls, name))
            values[name] = path and _absolute(path, environ, cwd)
        if sources.get("data_dir", "").endswith(DB_FILE) and values["data_dir"].is_file():
            text = f"{DB_FILE} must be a directory, or a path where one can be made: {values['data_dir']} is a file"
            raise InvalidConfig(f"{text} ({sources['data_dir']})", argument=DB_FILE)
        warnings = [text for layer in layers for text in layer.warnings]
        _check_together(values, sources, warnings)
        return cls(**values, sources=sources, warnings=tuple(warnings))

    def secrets(self) -> tuple[str, ...]:
        """The secrets among the settings, for whoever must not show them. Very short ones would hide every word."""
        texts = [setting.value(self) for setting in _table().rows if setting.kind.secret]
        return tuple(text for text in texts if text and len(text) >= HIDDEN_CHARS_MIN)

    def describe(self) -> list[SettingRow]:
        """Every setting with its value and where that came from, secrets masked: for `--help` and `doctor`."""
        return [
            SettingRow(
                setting.variable,
                setting.show(setting.value(self)),
                self.sources.get(setting.field, "default"),
                setting.flag,
                setting.key or "",
                setting.help,
            )
            for setting in _table().rows
        ]

    def __repr__(self) -> str:
        shown = (f"{setting.field}={setting.show(setting.value(self))!r}" for setting in _table().rows)
        return f"Settings({', '.join(shown)})"


class SettingRow(NamedTuple):
    """One line of `Settings.describe`."""

    name: str
    value: str
    source: str
    flag: str
    key: str
    help: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `listener` is whose port it is, empty for what is no port."""

    field: str
    variable: str
    key: str | None
    help: str
    default: Any
    kind: Kind
    listener: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    def value(self, settings: Settings) -> Any:
        return settings.ports.get(self.listener) if self.listener else getattr(settings, self.field)

    def show(self, value: Any) -> str:
        """The value as a source would spell it, a secret masked; nothing for a setting without a value."""
        return "" if value is None and self.kind.read is not read_port else self.kind.show(value)


class _Table:
    """The lines by each of their names, those of `ports` where `Settings.ports` stands."""

    def __init__(self, ports: tuple[PortSetting, ...]) -> None:
        hints = get_type_hints(Settings, include_extras=True)
        rows: list[Setting] = []
        for each in fields(Settings):
            if each.name == "ports":
                rows += [
                    Setting(port.field, port.variable, port.key, port.help, port.default, _kind_of(Port), port.listener)
                    for port in ports
                ]
            for at in getattr(hints[each.name], "__metadata__", ()):
                if isinstance(at, At):
                    kind = _kind_of(hints[each.name])
                    rows.append(Setting(each.name, at.variable, at.key, at.help, each.default, kind))
        self.rows = tuple(rows)
        self.by_field = {setting.field: setting for setting in rows}
        self.by_variable = {setting.variable: setting for setting in rows}
        self.by_key = {setting.key: setting for setting in rows if setting.key is not None}


_table_of = lru_cache(maxsize=2)(_Table)


def _table() -> _Table:
    """The table with the ports of the protocols that there are now."""
    return _table_of(ports())


def _kind_of(hint: Any) -> Kind:
    """The Kind a type carries, itself or one of its alternatives; a Literal needs none."""
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, Kind):
            return part
        if get_origin(part) is Literal:
            return word(part)
        if get_origin(part) is not None:
            return _kind_of(part)
    raise AssertionError(f"no kind for {hint}")


SETTINGS: Final = _table().rows
_OTHERS: Final = frozenset(CLIENT_SETTINGS.values())

PLANNED: Final = {
    "ROOKERY_MQTT_PORT": ("mqtt_port", "mqtt.port", "MQTT"),
    "ROOKERY_SHARDS": ("shards", "store.shards", "more than one shard"),
    "REDIS_URL": ("redis_url", "store.redis_url", "a store in Redis"),
    "DATABASE_URL": ("database_url", "store.database_url", "a store in PostgreSQL"),
}
"""Settings that come with features still to be built: variable, then field, TOML key and feature.

None of them is accepted. A flag or a TOML key of these names stops the start, a `ROOKERY_` variable is reported;
`REDIS_URL` and `DATABASE_URL` in an environment are most often another program's, so they are passed over.
"""
_PLANNED_FIELDS: Final = {field: what for field, _, what in PLANNED.values()}
_PLANNED_KEYS: Final = {key: what for _, key, what in PLANNED.values()}


# Where values come from


class _Given(NamedTuple):
    """A value as its source spells it."""

    text: str
    source: str


class _Layer(NamedTuple):
    """What one source says, by field, and what was odd about it."""

    found: dict[str, _Given]
    warnings: list[str]


def _from_flags(flags: Mapping[str, object]) -> _Layer:
    found = {}
    known = _table().by_field
    for name, value in flags.items():
        if name in _PLANNED_FIELDS:
            flag = "--" + name.replace("_", "-")
            raise InvalidConfig(f"{flag}: {_not_available(_PLANNED_FIELDS[name])}", argument=name)
        if name not in known:
            raise InvalidConfig(f"there is no setting {name!r}{_suggest(name, known)}", argument=name)
        if value is not None:
            found[name] = _Given(_as_text(known[name], value, "flag"), f"flag {known[name].flag}")
    return _Layer(found, [])


def _from_environ(environ: Mapping[str, str]) -> _Layer:
    found = {}
    warnings = []
    known = _table().by_variable
    for name, text in environ.items():
        setting = known.get(name)
        if setting is not None:
            found[setting.field] = _Given(text.strip(), f"variable {name}")
        elif name in PLANNED:
            warnings += _about_planned(name, f"variable {name}")
        elif name.startswith("ROOKERY_") and name not in _OTHERS and not _is_service_link(name, text):
            warnings.append(f"variable {name} is not a setting{_suggest_variable(name)}")
    if environ.get(DB_FILE, "").strip():
        found.setdefault("data_dir", _Given(environ[DB_FILE].strip(), f"variable {DB_FILE}"))
    return _Layer(found, sorted(warnings))


def _from_env_file(path: Path) -> _Layer:
    found = {}
    warnings = []
    said = parse_env_file(_read_file(path)) if path.is_file() else {}
    known = _table().by_variable
    for name, (text, line) in said.items():
        setting = known.get(name)
        if setting is not None:
            found[setting.field] = _Given(text.strip(), f"{path.name} line {line}")
        if name in PLANNED:
            warnings += _about_planned(name, f"{path.name} line {line}, {name}")
        if setting is not None or name in _OTHERS or name in PLANNED:
            continue
        # The file may serve other programs too: only what is ours, or nearly ours, is worth a word.
        advice = _suggest_variable(name)
        if name.startswith("ROOKERY_") or advice:
            warnings.append(f"{path.name} line {line}: {name} is not a setting{advice}")
    if DB_FILE in said and said[DB_FILE][0].strip():
        text, line = said[DB_FILE]
        found.setdefault("data_dir", _Given(text.strip(), f"{path.name} line {line}, {DB_FILE}"))
    return _Layer(found, warnings)


def _from_toml(chosen: _Given | None, environ: Mapping[str, str], cwd: Path) -> _Layer:
    if chosen is not None and not chosen.text:
        chosen = None
    path = cwd / CONFIG_FILE if chosen is None else _absolute(Path(chosen.text), environ, cwd)
    if not path.is_file():
        if chosen is not None:
            raise InvalidConfig(f"there is no settings file {path} ({chosen.source})", argument="ROOKERY_CONFIG")
        return _Layer({}, [])
    try:
        document = tomllib.loads(_read_file(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path.name} is not valid TOML: {error}", argument=path.name) from None
    found = {"config": _Given(str(path), "working directory")}
    known = _table().by_key
    for key, value in _flatten(document):
        setting = known.get(key)
        if key in CLIENT_SETTINGS:
            continue
        if key in _PLANNED_KEYS:
            raise InvalidConfig(f"{path.name} {key}: {_not_available(_PLANNED_KEYS[key])}", argument=key)
        if setting is None:
            raise InvalidConfig(f"{path.name}: there is no setting {key}{_suggest(key, known)}", argument=key)
        found[setting.field] = _Given(_as_text(setting, value, path.name), f"{path.name} {key}")
    return _Layer(found, [])


def _not_available(feature: str) -> str:
    return f"{feature} is not available in this version"


def _about_planned(name: str, source: str) -> list[str]:
    """What to say of a variable that does nothing yet; nothing of one that other programs have too."""
    return [f"{source} has no effect: {_not_available(PLANNED[name][2])}"] if name.startswith("ROOKERY_") else []


def _first(layers: list[_Layer], name: str) -> _Given | None:
    return next((layer.found[name] for layer in layers if name in layer.found), None)


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(f"{path.name} cannot be read: {reason}", argument=path.name) from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key not in _table().by_key:
            rows.extend(_flatten(value, key + "."))
        else:
            rows.append((key, value))
    return rows


def _as_text(setting: Setting, value: object, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Path):
        return str(value).strip()
    if (
        isinstance(value, list | tuple)
        and isinstance(setting.default, tuple)
        and all(isinstance(part, str) for part in value)
    ):
        return ",".join(value)
    name = setting.flag if where == "flag" else f"{where} {setting.key}"
    raise InvalidConfig(f"{name} must be {setting.kind.expects}", argument=setting.variable)


def _read(setting: Setting, given: _Given) -> Any:
    try:
        return setting.kind.read(given.text)
    except NotAvailable:
        words = setting.kind.expects.removeprefix("one of ")
        text = f"{_not_available(f'{setting.variable}={given.text}')}; available: {words} ({given.source})"
        raise InvalidConfig(text, argument=setting.variable) from None
    except ValueError:
        instead = "" if setting.kind.secret else f", not {given.text!r}"
        text = f"{setting.variable} must be {setting.kind.expects}{instead} ({given.source})"
        raise InvalidConfig(text, argument=setting.variable) from None


def _absolute(path: Path, environ: Mapping[str, str], cwd: Path) -> Path:
    if path.parts[:1] == ("~",) and environ.get("HOME"):
        path = Path(environ["HOME"], *path.parts[1:])
    return cwd / path


def _is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes made this variable for a service called rookery."""
    return text.startswith(("tcp://", "udp://")) or re.search(r"_SERVICE_(HOST|PORT)|_PORT_[0-9]+_", name) is not None


def _suggest_variable(name: str) -> str:
    bare = name.removeprefix("ROOKERY_")
    table = _table()
    if bare in table.by_variable:
        return f"; did you mean {bare}?"
    setting = table.by_field.get(bare.lower())
    return f"; did you mean {setting.variable}?" if setting else _suggest(name, table.by_variable)


def _suggest(name: str, known: Mapping[str, Setting]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    close = close or [key for key in known if key.endswith(f".{name}")]
    return f"; did you mean {close[0]}?" if close else ""


# What must hold between settings


def _check_together(values: Mapping[str, Any], sources: Mapping[str, str], warnings: list[str]) -> None:
    settings = Settings(**values)
    table = _table().by_field
    needed = (("auth_mode", "bearer", "jwt_secret"),)
    for name, value, other in needed:
        if getattr(settings, name) == value and getattr(settings, other) is None:
            if other == "jwt_secret" and settings.jwt_key_file is not None:
                continue
            variable = table[other].variable
            text = f"{table[name].variable}={value} ({sources[name]}) needs {variable}"
            raise InvalidConfig(text, argument=variable)
    if not is_available(settings.compression):
        text = f"ROOKERY_COMPRESSION={settings.compression} ({sources['compression']}): {NEEDS_ZSTD}"
        raise InvalidConfig(text, argument="ROOKERY_COMPRESSION")
    _check_tls(settings, sources)
    if settings.auth_mode == "none" and not settings.insecure and not is_loopback(settings.host):
        text = (
            f"AUTH_MODE=none ({sources['auth_mode']}) would let in everyone who reaches {settings.host}: "
            "set APP_HOST=127.0.0.1, or ROOKERY_INSECURE=true if that is meant"
        )
        raise InvalidConfig(text, argument="AUTH_MODE")
    by_secret = settings.auth_mode == "bearer" and settings.jwt_key_file is None
    if by_secret and len((settings.jwt_secret or "").encode()) < JWT_SECRET_BYTES_MIN:
        warnings.append(f"JWT_SECRET is shorter than {JWT_SECRET_BYTES_MIN} bytes: whoever guesses it forges tokens")
    if settings.auth_mode != "none" and settings.api_key is not None and is_guessable(settings.api_key):
        warnings.append(
            f"API_KEY ({sources['api_key']}) is easy to guess, and whoever has it is admin: use 16 or more random "
            "characters, for example from `openssl rand -hex 32`"
        )


def _check_tls(settings: Settings, sources: Mapping[str, str]) -> None:
    table = _table().by_field
    over_tls = {protocol.ports()[1].field: protocol for protocol in PROTOCOLS.values()}
    needed = (
        (settings.tls_key is not None, "tls_key", "tls_cert"),
        (settings.tls_clients != "off", "tls_clients", "tls_cert"),
        (settings.tls_clients != "off", "tls_clients", "tls_ca"),
        *(
            (settings.ports.get(protocol.tls_name) not in (None, protocol.tls_port), name, "tls_cert")
            for name, protocol in over_tls.items()
        ),
    )
    for wanted, name, other in needed:
        if wanted and getattr(settings, other) is None:
            variable = table[other].variable
            text = f"{table[name].variable} ({sources[name]}) needs {variable}"
            raise InvalidConfig(text, argument=variable)
