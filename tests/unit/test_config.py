"""Settings from flags, variables, `.env` and TOML. The environment is a dictionary, the files are real."""

from __future__ import annotations

import ast
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery
from rookery.config.files import parse_env_file
from rookery.config.kinds import MASK, is_loopback
from rookery.config.settings import PLANNED, SETTINGS, Settings
from rookery.errors import InvalidConfig


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    return tmp_path


def load(cwd: Path, flags: dict[str, Any] | None = None, /, **environ: Any) -> Settings:
    return Settings.load(flags or {}, environ, cwd)


def refused(cwd: Path, flags: dict[str, Any] | None = None, /, **environ: Any) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        load(cwd, flags, **environ)
    return caught.value


def test_the_defaults_are_the_documented_ones(cwd: Path):
    settings = load(cwd)
    assert (settings.ports["http"], settings.host, settings.env) == (8080, "0.0.0.0", "production")
    assert (settings.ports["amqp"], settings.ports["amqps"], settings.ports["line"]) == (5672, 5671, 2122)
    assert (settings.auth_mode, settings.api_key, settings.jwt_secret) == ("apikey", None, None)
    assert (settings.store_backend, settings.data_dir) == ("journal", cwd / "rookery-data")
    assert (settings.visibility_timeout_sec, settings.lease_ms) == (30, 30_000)
    assert (settings.max_retries, settings.max_attempts) == (5, 6)
    assert (settings.backoff_strategy, settings.backoff_base_ms, settings.dlq_suffix) == ("exponential", 500, ".DLQ")
    assert (settings.claim_lease_sec, settings.claim_wait_sec, settings.claim_max_attempts) == (5, 5, 3)
    assert (settings.key_creation, settings.guest, settings.rate_limit) == ("local", "loopback", 0)
    assert (settings.connections_max, settings.channels_max) == (10_000, 2_047)
    assert (settings.message_max_bytes, settings.http_body_max_bytes) == (128 << 20, 16 << 20)
    assert settings.warnings == ()
    assert {row.source for row in settings.describe()} == {"default"}


def test_the_variables_of_the_documented_example(cwd: Path):
    """The example with its comments, as a `.env`."""
    (cwd / ".env").write_text(
        """
# Server
APP_PORT=8081
APP_HOST=0.0.0.0
APP_ENV=development  # development | production

AUTH_MODE=apikey    # none | apikey | bearer
API_KEY=supersecretkey
JWT_SECRET=change_me

STORE_BACKEND=memory     # memory | redis | postgres
REDIS_URL=redis://redis:6379/0

VISIBILITY_TIMEOUT_SEC=31
MAX_RETRIES=6
BACKOFF_STRATEGY=linear  # fixed | linear | exponential
BACKOFF_BASE_MS=501

DLQ_SUFFIX=.dead
CORS_ORIGINS=https://a.example, http://localhost:3000/
LOG_LEVEL=WARN
"""
    )
    settings = load(cwd)
    assert settings == Settings(
        ports={**Settings().ports, "http": 8081},
        host="0.0.0.0",
        env="development",
        auth_mode="apikey",
        api_key="supersecretkey",
        jwt_secret="change_me",
        store_backend="memory",
        data_dir=cwd / "rookery-data",
        pipelines_dir=cwd / "rookery-pipelines",
        visibility_timeout_sec=31.0,
        max_retries=6,
        backoff_strategy="linear",
        backoff_base_ms=501,
        dlq_suffix=".dead",
        cors_origins=("https://a.example", "http://localhost:3000"),
        log_level="warning",
    )
    (warning,) = settings.warnings
    assert warning.startswith("API_KEY (.env line 8) is easy to guess")


# Where a value comes from


@pytest.mark.row("S2-37")
def test_the_env_file_is_read_and_the_real_environment_wins(cwd: Path):
    (cwd / ".env").write_text("APP_PORT=9001\nMAX_RETRIES=7\n")
    settings = load(cwd, APP_PORT="9002")
    assert (settings.ports["http"], settings.max_retries) == (9002, 7)
    assert settings.sources["http_port"] == "variable APP_PORT"
    assert settings.sources["max_retries"] == ".env line 2"


def test_each_source_gives_way_to_the_one_above(cwd: Path):
    (cwd / "rookery.toml").write_text("[http]\nport = 1\n")
    assert load(cwd).ports["http"] == 1
    (cwd / ".env").write_text("APP_PORT=2")
    assert load(cwd).ports["http"] == 2
    assert load(cwd, APP_PORT="3").ports["http"] == 3
    assert load(cwd, {"http_port": 4}, APP_PORT="3").ports["http"] == 4
    assert load(cwd, {"http_port": None}, APP_PORT="3").ports["http"] == 3


def test_only_the_source_in_force_must_make_sense(cwd: Path):
    (cwd / "rookery.toml").write_text("[http]\nport = 99999\n")
    assert load(cwd, APP_PORT="80").ports["http"] == 80


def test_an_empty_variable_asks_for_the_default(cwd: Path):
    (cwd / ".env").write_text("APP_PORT=9001\nAPI_KEY=from-file\n")
    settings = load(cwd, APP_PORT="", API_KEY=" ")
    assert (settings.ports["http"], settings.api_key) == (8080, None)
    assert settings.sources["http_port"] == "default (variable APP_PORT is empty)"


def test_every_setting_can_come_from_every_source(cwd: Path):
    """Each setting in turn gets a value other than its default, by flag, variable, `.env` and TOML."""
    others = {
        "host": "127.0.0.1",
        "api_key": "k",
        "jwt_secret": "j",
        "data_dir": "/d",
        "pipelines_dir": "/p",
        "jwt_key_file": "/k",
    }
    others |= {"cors_origins": "https://o.example", "dlq_suffix": "-dead"}
    others |= {
        "auth_mode": "none",
        "env": "development",
        "log_level": "error",
        "key_creation": "closed",
        "guest": "off",
    }
    others |= {"insecure": "true", "store_backend": "memory", "sync": "interval", "backoff_strategy": "fixed"}
    others |= {"webhook_allow": "10.0.0.0/8,fd00::/8"}
    others |= {"loop": "asyncio", "proxy_protocol": "amqp,https", "tls_min_version": "1.3", "tls_clients": "optional"}
    others |= {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}
    others |= {"compression": "zlib", "log_dir": "/logs"}
    for setting in SETTINGS:
        if setting.field == "config":
            continue
        text = others.get(setting.field, "7")
        for source in ("flag", "variable", "env file", "toml"):
            (cwd / ".env").write_text(f"{setting.variable}={text}" if source == "env file" else "")
            table, _, key = str(setting.key).partition(".")
            (cwd / "rookery.toml").write_text(f"[{table}]\n{key} = '{text}'" if source == "toml" else "")
            flags = {setting.field: text} if source == "flag" else {}
            environ = {setting.variable: text} if source == "variable" else {}
            if setting.field == "auth_mode":
                environ["ROOKERY_INSECURE"] = "1"
            if "tls" in setting.field:
                environ |= {"ROOKERY_TLS_CERT": "/c", "ROOKERY_TLS_CA": "/a"} | environ
            settings = load(cwd, flags, **environ)
            assert setting.field in settings.sources, source
            value = setting.value(settings)
            assert value == setting.kind.read(text)
            assert value != setting.default


@pytest.mark.parametrize(
    ("given_", "missing"),
    [
        ({"ROOKERY_TLS_KEY": "/k"}, "ROOKERY_TLS_CERT"),
        ({"ROOKERY_TLS_CLIENTS": "required"}, "ROOKERY_TLS_CERT"),
        ({"ROOKERY_TLS_CLIENTS": "required", "ROOKERY_TLS_CERT": "/c"}, "ROOKERY_TLS_CA"),
        ({"ROOKERY_HTTP_TLS_PORT": "8443"}, "ROOKERY_TLS_CERT"),
        ({"ROOKERY_AMQP_TLS_PORT": "5672"}, "ROOKERY_TLS_CERT"),
    ],
)
def test_tls_settings_that_need_another(cwd: Path, given_: dict[str, str], missing: str):
    error = refused(cwd, **given_)
    assert error.argument == missing
    assert next(iter(given_)) in str(error)
    assert missing in str(error)


def test_the_tls_port_of_amqp_waits_for_a_certificate(cwd: Path):
    assert load(cwd, ROOKERY_AMQP_TLS_PORT="").ports["amqps"] == 5671
    settings = load(cwd, ROOKERY_TLS_CERT="tls/cert.pem")
    assert (settings.tls_cert, settings.tls_key) == (cwd / "tls/cert.pem", None)


def test_toml_has_its_own_types(cwd: Path):
    (cwd / "rookery.toml").write_text(
        """
[http]
port = "off"
cors_origins = ["https://a.example", "https://b.example"]
[auth]
mode = "none"
insecure = true
[delivery]
visibility_timeout_sec = 0.25
[limits]
memory_max_bytes = "2GiB"
"""
    )
    settings = load(cwd)
    assert settings.ports["http"] is None
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert (settings.auth_mode, settings.insecure) == ("none", True)
    assert settings.lease_ms == 250
    assert settings.memory_max_bytes == 2 << 30
    assert settings.sources["visibility_timeout_sec"] == "rookery.toml delivery.visibility_timeout_sec"
    assert settings.config == cwd / "rookery.toml"


def test_the_settings_file_can_be_named(cwd: Path):
    (cwd / "etc").mkdir()
    (cwd / "etc" / "mine.toml").write_text("[amqp]\nport = 0\n")
    (cwd / "rookery.toml").write_text("[amqp]\nport = 1\n")
    assert load(cwd).ports["amqp"] == 1
    assert load(cwd, ROOKERY_CONFIG="etc/mine.toml").ports["amqp"] == 0
    assert load(cwd, ROOKERY_CONFIG=str(cwd / "etc" / "mine.toml")).ports["amqp"] == 0
    assert load(cwd, ROOKERY_CONFIG="~/mine.toml", HOME=str(cwd / "etc")).ports["amqp"] == 0
    assert load(cwd, {"config": "etc/mine.toml"}, ROOKERY_CONFIG="nowhere.toml").ports["amqp"] == 0
    (cwd / ".env").write_text("ROOKERY_CONFIG=etc/mine.toml")
    assert load(cwd).ports["amqp"] == 0
    error = refused(cwd, ROOKERY_CONFIG="nowhere.toml")
    assert error.argument == "ROOKERY_CONFIG"
    assert "variable ROOKERY_CONFIG" in str(error)


def test_the_data_directory_is_absolute(cwd: Path):
    assert load(cwd, ROOKERY_DATA_DIR="d").data_dir == cwd / "d"
    assert load(cwd, ROOKERY_DATA_DIR="/var/d").data_dir == Path("/var/d")
    assert load(cwd, ROOKERY_DATA_DIR="~/d", HOME="/home/a").data_dir == Path("/home/a/d")


@pytest.mark.row("S4-31")
def test_the_data_directory_has_the_name_that_raven_mq_gives_it(cwd: Path):
    assert load(cwd, DB_FILE="raven.db").data_dir == cwd / "raven.db"
    assert load(cwd, DB_FILE="raven.db").sources["data_dir"] == "variable DB_FILE"
    assert load(cwd, DB_FILE=" ").data_dir == cwd / "rookery-data"
    assert load(cwd, DB_FILE="raven.db", ROOKERY_DATA_DIR="d").data_dir == cwd / "d"
    (cwd / ".env").write_text("DB_FILE=other.db\n")
    assert load(cwd).data_dir == cwd / "other.db"
    assert load(cwd, DB_FILE="raven.db").data_dir == cwd / "raven.db"
    assert not load(cwd).warnings
    (cwd / "other.db").write_bytes(b"SQLite format 3")
    error = refused(cwd)
    assert error.argument == "DB_FILE"
    assert "other.db is a file" in str(error)


# What a value may be


@pytest.mark.parametrize("variable", ["APP_PORT", "ROOKERY_AMQP_PORT", "ROOKERY_LINE_PORT"])
def test_ports(cwd: Path, variable: str):
    listener = next(setting.listener for setting in SETTINGS if setting.variable == variable)
    for text, port in (("0", 0), ("65535", 65_535), ("off", None), ("OFF", None), (" 80 ", 80)):
        assert load(cwd, **{variable: text}).ports[listener] == port
    for text in ("65536", "-1", "80a", "8_0", "８０", "80.0", "on", "true", "tcp://10.0.0.1:80", "9" * 5000):
        error = refused(cwd, **{variable: text})
        assert error.argument == variable
        assert f"variable {variable}" in str(error)
        assert repr(text) in str(error)


BAD = {
    "APP_HOST": ["a b", "http://x", "::1::", "a/b", "127.0.0.1:80"],
    "APP_ENV": ["staging"],
    "AUTH_MODE": ["basic", "off"],
    "STORE_BACKEND": ["sqlite"],
    "VISIBILITY_TIMEOUT_SEC": ["0", "-1", "1e3", "nan", "inf", "604801", "30s"],
    "MAX_RETRIES": ["-1", "1.5", "1000001", """ 5 5 """],
    "BACKOFF_STRATEGY": ["quadratic"],
    "BACKOFF_BASE_MS": ["0.5", "86400001"],
    "DLQ_SUFFIX": ["a b", "x" * 65, "\x00"],
    "CORS_ORIGINS": ["example.org", "https://a.example/path", "https://user@a.example"],
    "LOG_LEVEL": ["loud"],
    "ROOKERY_KEY_CREATION": ["everyone"],
    "ROOKERY_GUEST": ["on"],
    "ROOKERY_RATE_LIMIT": ["-1", "off"],
    "ROOKERY_SYNC": ["sometimes"],
    "ROOKERY_EVENTS_RATE": ["-1", "off"],
    "ROOKERY_COMPRESSION": ["lz4"],
    "ROOKERY_COMPRESS_MIN_BYTES": ["0", "-1", "many"],
    "ROOKERY_INSECURE": ["maybe", "2"],
    "ROOKERY_CHANNELS_MAX": ["0", "65536"],
    "ROOKERY_MEMORY_MAX_BYTES": ["0", "1.5GiB", "1 TiB", "-1", "99999999999GiB"],
}


@pytest.mark.parametrize(("variable", "text"), [(variable, text) for variable in BAD for text in BAD[variable]])
def test_a_bad_value_names_its_variable_and_its_source(cwd: Path, variable: str, text: str):
    error = refused(cwd, **{variable: text})
    assert error.argument == variable
    assert str(error).startswith(f"{variable} must be ")
    assert str(error).endswith(f"(variable {variable})")


def test_a_bad_value_names_whichever_source_it_came_from(cwd: Path):
    assert "(flag --http-port)" in str(refused(cwd, {"http_port": "x"}))
    (cwd / "rookery.toml").write_text("[http]\nport = 99999")
    assert "not '99999' (rookery.toml http.port)" in str(refused(cwd))
    (cwd / ".env").write_text("\nAPP_PORT=x")
    assert "(.env line 2)" in str(refused(cwd))
    (cwd / ".env").unlink()
    for text in ("port = [1]", "port = ['80']", "port = {a = 1}", "port = 1979-05-27", "port = true"):
        (cwd / "rookery.toml").write_text(f"[http]\n{text}")
        error = refused(cwd)
        assert error.argument == "APP_PORT"
        assert "rookery.toml http.port" in str(error)
    with pytest.raises(InvalidConfig, match="--http-port"):
        load(cwd, {"http_port": object()})


def test_hosts_sizes_and_words(cwd: Path):
    assert load(cwd, APP_HOST="[::1]").host == "::1"
    assert load(cwd, APP_HOST="broker-1.example").host == "broker-1.example"
    for text, size in (("1", 1), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("5kB", 5_000), ("3GB", 3 * 10**9)):
        assert load(cwd, ROOKERY_MEMORY_MAX_BYTES=text).memory_max_bytes == size
    assert load(cwd, ROOKERY_DISK_FREE_MIN_BYTES="0").disk_free_min_bytes == 0
    for text in ("1", "True", "yes", "ON"):
        assert load(cwd, ROOKERY_INSECURE=text).insecure is True
    for text in ("0", "false", "No", "off"):
        assert load(cwd, ROOKERY_INSECURE=text).insecure is False
    assert load(cwd, CORS_ORIGINS="*").cors_origins == ("*",)
    assert load(cwd, LOG_LEVEL="CRITICAL").log_level == "critical"


# What must hold between settings


def test_a_mode_must_have_what_it_needs(cwd: Path):
    error = refused(cwd, AUTH_MODE="bearer")
    assert error.argument == "JWT_SECRET"
    assert "variable AUTH_MODE" in str(error)
    assert load(cwd, AUTH_MODE="bearer", JWT_SECRET="s" * 32).warnings == ()
    (warning,) = load(cwd, AUTH_MODE="bearer", JWT_SECRET="change_me").warnings
    assert "JWT_SECRET" in warning
    assert "change_me" not in warning


def test_no_authentication_on_an_open_address_must_be_said_twice(cwd: Path):
    for host in ("0.0.0.0", "::", "192.168.1.5", "broker.example"):
        assert refused(cwd, AUTH_MODE="none", APP_HOST=host).argument == "AUTH_MODE"
        assert load(cwd, AUTH_MODE="none", APP_HOST=host, ROOKERY_INSECURE="1").auth_mode == "none"
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert load(cwd, AUTH_MODE="none", APP_HOST=host).auth_mode == "none"
        assert is_loopback(host)


# Misspelt names


def test_an_unknown_toml_key_stops_the_start_with_advice(cwd: Path):
    for text, key, advice in (
        ("[http]\nprot = 1", "http.prot", "http.port"),
        ("[htpp]\nport = 1", "htpp.port", "http.port"),
        ("port = 1", "port", "http.port"),
        ("[auth]\nmodus = 'none'", "auth.modus", "auth.mode"),
    ):
        (cwd / "rookery.toml").write_text(text)
        error = refused(cwd)
        assert error.argument == key
        assert f"there is no setting {key}; did you mean {advice}?" in str(error)
    (cwd / "rookery.toml").write_text("[zzz]\nqqq = 'a-secret'")
    assert str(refused(cwd)) == "rookery.toml: there is no setting zzz.qqq"


def test_an_unknown_flag_is_refused(cwd: Path):
    error = refused(cwd, {"http_prot": 1})
    assert "did you mean http_port?" in str(error)


def test_a_misspelt_variable_is_pointed_out(cwd: Path):
    for name, advice in (
        ("ROOKERY_AMPQ_PORT", "ROOKERY_AMQP_PORT"),
        ("ROOKERY_HTTP_PORT", "APP_PORT"),
        ("ROOKERY_JWT_SECRET", "JWT_SECRET"),
        ("ROOKERY_DATADIR", "ROOKERY_DATA_DIR"),
    ):
        (warning,) = load(cwd, **{name: "a-secret"}).warnings
        assert warning == f"variable {name} is not a setting; did you mean {advice}?"
    assert load(cwd, ROOKERY_ZZZZZZ="1").warnings == ("variable ROOKERY_ZZZZZZ is not a setting",)
    (cwd / ".env").write_text("JWT_SECRETS=pw\nPOSTGRES_PASSWORD=x\nEDITOR=vi\n")
    assert load(cwd, PATH="/bin").warnings == (".env line 1: JWT_SECRETS is not a setting; did you mean JWT_SECRET?",)


@pytest.mark.parametrize("store", ["redis", "postgres", "Redis"])
def test_a_store_that_is_planned_is_refused_by_name(cwd: Path, store: str):
    error = refused(cwd, STORE_BACKEND=store, REDIS_URL="redis://:sesame@r", DATABASE_URL="postgresql://:sesame@d/x")
    assert error.argument == "STORE_BACKEND"
    assert str(error) == (
        f"STORE_BACKEND={store} is not available in this version; available: memory, journal (variable STORE_BACKEND)"
    )


def test_a_planned_setting_is_not_accepted(cwd: Path):
    given_ = {"ROOKERY_MQTT_PORT": "1883", "ROOKERY_SHARDS": "4", "REDIS_URL": "redis://r", "DATABASE_URL": "x"}
    told = (
        "variable ROOKERY_MQTT_PORT has no effect: MQTT is not available in this version",
        "variable ROOKERY_SHARDS has no effect: more than one shard is not available in this version",
    )
    assert load(cwd, **given_).warnings == told
    (cwd / ".env").write_text("\n".join(f"{name}={text}" for name, text in given_.items()))
    assert load(cwd).warnings == tuple(
        text.replace("variable ", f".env line {line}, ") for line, text in enumerate(told, 1)
    )
    (cwd / ".env").unlink()
    for field, key, feature in PLANNED.values():
        assert not hasattr(load(cwd), field)
        flag = "--" + field.replace("_", "-")
        assert str(refused(cwd, {field: "1"})) == f"{flag}: {feature} is not available in this version"
        table, _, name = key.partition(".")
        (cwd / "rookery.toml").write_text(f"[{table}]\n{name} = 1")
        assert str(refused(cwd)) == f"rookery.toml {key}: {feature} is not available in this version"
        (cwd / "rookery.toml").unlink()


DECIDES_IN_LOAD = {"config", "insecure"}
"""Settings whose whole effect is on how the others are read; the tests above show it."""

READ_AS = {
    "max_retries": "max_attempts",
    "visibility_timeout_sec": "lease_ms",
    **{setting.field: "ports" for setting in SETTINGS if setting.listener},
}
"""Settings that the program reads in other units, or all at once."""


@pytest.mark.parametrize("field", [setting.field for setting in SETTINGS if setting.field not in DECIDES_IN_LOAD])
def test_every_setting_is_read_outside_of_the_settings(field: str):
    """A setting that nothing reads would be a promise that nothing keeps."""
    assert READ_AS.get(field, field) in fields_read()


@cache
def fields_read() -> set[str]:
    """The names `n` of every `settings.n` and `….settings.n` of the program, but for the package `config`."""
    root = Path(rookery.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if root / "config" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name in ("settings", "_settings"):
                    found.add(node.attr)
    return found


def test_what_commands_read_is_no_mistake_of_the_server(cwd: Path):
    (cwd / ".env").write_text("ROOKERY_URL=http://there\n")
    (cwd / "rookery.toml").write_text("[client]\nurl = 'http://there'\nkey = 'a-secret'\n")
    assert load(cwd, ROOKERY_API_KEY="a-secret", ROOKERY_CA_FILE="ca.pem").warnings == ()


def test_what_kubernetes_adds_is_passed_over(cwd: Path):
    links = {"ROOKERY_SERVICE_HOST": "10.0.0.1", "ROOKERY_SERVICE_PORT_HTTP": "80", "ROOKERY_PORT": "tcp://10.0.0.1:80"}
    links |= {"ROOKERY_PORT_80_TCP_ADDR": "10.0.0.1", "ROOKERY_PORT_80_TCP_PROTO": "tcp"}
    assert load(cwd, **links).warnings == ()
    assert load(cwd, ROOKERY_PORT="80").warnings != ()


# The .env format


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("  A = b  ", "b"),
        ("export A=b", "b"),
        ("A=", ""),
        ("A=   # nothing", ""),
        ("A=b # comment", "b"),
        ("A=b\t# comment", "b"),
        ("A=b#c", "b#c"),
        ("A=#c", "#c"),
        ("A=b=c", "b=c"),
        ("A=b c", "b c"),
        ("A='b # c'", "b # c"),
        ("A='b\\n'  # comment", "b\\n"),
        ('A="b # c" # comment', "b # c"),
        ('A="b\\n\\t\\"\\\\\\$\\q"', 'b\n\t"\\$\\q'),
        ('A=""', ""),
        ("A=it's", "it's"),
        ("A=$HOME", "$HOME"),
        ("A=ü", "ü"),
        ("A=b\r", "b"),
        ("A=1\nA=2", "2"),
        ("\ufeffA=b", "b"),
        ("# A=c\n\nA=b\n#A=d", "b"),
    ],
)
def test_env_file_lines(line: str, value: str):
    assert parse_env_file(line)["A"][0] == value


@pytest.mark.parametrize(
    "line",
    [
        "sesame",
        "=sesame",
        "1A=sesame",
        "A B=sesame",
        "export",
        "A='sesame",
        'A="sesame',
        'A="sesame\\"',
        "A='a' sesame",
        'A="a" sesame',
    ],
)
def test_a_line_that_cannot_be_read_is_named_but_not_shown(cwd: Path, line: str):
    (cwd / ".env").write_text(f"# first\n{line}\n")
    error = refused(cwd)
    assert str(error).startswith(".env line 2 ")
    assert "sesame" not in str(error)


@given(st.text(st.characters(exclude_characters="\n\r'", exclude_categories=["Cs"])))
def test_single_quotes_keep_any_text(text: str):
    assert parse_env_file(f"A='{text}'  # rest")["A"] == (text, 1)


@given(st.text(max_size=60))
def test_any_file_is_read_or_refused(text: str):
    try:
        found = parse_env_file(text)
    except InvalidConfig:
        return
    assert all(1 <= line <= text.count("\n") + 1 for _, line in found.values())


def test_files_that_cannot_be_read(cwd: Path):
    (cwd / ".env").write_bytes(b"A=\xff")
    assert str(refused(cwd)) == ".env cannot be read: it is not UTF-8"
    (cwd / ".env").unlink()
    (cwd / "rookery.toml").write_text("[http\nport = 1")
    error = refused(cwd)
    assert "rookery.toml is not valid TOML" in str(error)
    assert "line 1" in str(error)


# What is shown


def test_no_secret_is_shown(cwd: Path):
    secrets = {
        "API_KEY": "https://user:sesame@example",
        "JWT_SECRET": "sesame" * 6,
        "ROOKERY_TLS_KEY_PASSWORD": "sesame",
    }
    settings = load(cwd, **secrets)
    shown = {row.name: row.value for row in settings.describe()}
    assert "sesame" not in repr(settings) + str(settings) + str(shown) + str(settings.sources)
    assert [shown[name] for name in secrets] == [MASK] * len(secrets)
    assert settings.api_key == secrets["API_KEY"]


def test_describe_tells_the_value_and_the_source_of_each(cwd: Path):
    (cwd / "rookery.toml").write_text("[line]\nport = 'off'")
    settings = load(cwd, {"insecure": True}, CORS_ORIGINS="https://a.example,https://b.example")
    rows = {row.name: row for row in settings.describe()}
    assert len(rows) == len(SETTINGS)
    assert rows["ROOKERY_LINE_PORT"][1:5] == ("off", "rookery.toml line.port", "--line-port", "line.port")
    assert rows["ROOKERY_INSECURE"][1:3] == ("true", "flag --insecure")
    assert rows["CORS_ORIGINS"].value == "https://a.example,https://b.example"
    assert rows["VISIBILITY_TIMEOUT_SEC"][1:3] == ("30", "default")
    assert rows["API_KEY"][1:3] == ("", "default")
    assert rows["ROOKERY_CONFIG"].source == "working directory"
    assert all(row.help for row in rows.values())


def test_what_describe_shows_can_be_given_again(cwd: Path):
    settings = load(cwd, ROOKERY_CLAIM_WAIT_SEC="604799.000001", ROOKERY_AMQP_PORT="off", ROOKERY_INSECURE="yes")
    again = {row.name: row.value for row in settings.describe() if row.value}
    assert load(cwd, **again) == settings


def test_the_table_names_each_thing_once():
    for names in zip(*((s.field, s.variable, s.key, s.flag) for s in SETTINGS), strict=True):
        assert len(set(names)) == len(names)
    for setting in SETTINGS:
        if setting.default is not None:
            assert setting.kind.read(setting.show(setting.default)) == setting.default


def test_settings_cannot_be_changed(cwd: Path):
    with pytest.raises(FrozenInstanceError):
        load(cwd).host = "x"  # type: ignore[misc]


def test_zstd_without_its_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.config.settings.is_available", lambda name: name != "zstd")
    with pytest.raises(
        InvalidConfig, match=r"ROOKERY_COMPRESSION=zstd \(flag --compression\).*rookery\[zstd\]"
    ) as caught:
        Settings.load({"compression": "zstd"}, {}, tmp_path)
    assert caught.value.argument == "ROOKERY_COMPRESSION"
    assert Settings.load({"compression": "zlib"}, {}, tmp_path).compression == "zlib"


@pytest.mark.parametrize(
    ("key", "weak"),
    [
        ("changeme", True),
        ("supersecretkey", True),
        ("supersecretkey-supersecretkey", True),
        ("MY-API-KEY-MY-API-KEY", True),
        ("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", True),
        ("Xq7-w.2Lk_9vB", True),
        ("password123456789", True),
        ("4f1c1d9e5b7a4a0b8c3d2e1f00112233", False),
        ("correct-horse-battery-staple", False),
    ],
)
def test_an_api_key_that_is_easy_to_guess_gets_a_warning(tmp_path: Path, key: str, weak: bool) -> None:
    settings = Settings.load({}, {"API_KEY": key}, tmp_path)
    assert any("easy to guess" in warning for warning in settings.warnings) is weak
    assert key not in " ".join(settings.warnings)
    assert Settings.load({"auth_mode": "none", "host": "127.0.0.1"}, {"API_KEY": key}, tmp_path).warnings == ()


def test_all_secrets_are_known_as_such(tmp_path: Path) -> None:
    given = {
        "API_KEY": "the-api-key",
        "JWT_SECRET": "the-jwt-secret",
        "ROOKERY_TLS_KEY_PASSWORD": "the-password",
    }
    assert set(Settings.load({}, given, tmp_path).secrets()) == set(given.values())
