"""The two brokers that are compared: RabbitMQ with everything of its own in one folder, and Rookery."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

# Debian's rabbitmq-server changes the user and drops the environment; this is what it starts.
_STARTED_BY_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SEC = 180

LIMITED = "limited"
"""A user, and its password, that may use names matching `OWN` alone."""
OWN = "^mine"
STRANGER = "stranger"
"""A user, and its password, without any rights."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SEC
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        said = log.read_text(errors="replace") if log.exists() else ""
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def _definitions() -> dict[str, object]:
    """The usual guest, and a user whose rights end at its own names."""
    users = [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": LIMITED, "password": LIMITED, "tags": ""},
        {"name": STRANGER, "password": STRANGER, "tags": ""},
    ]
    everything = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    return {
        "vhosts": [{"name": "/"}],
        "users": users,
        "permissions": [everything, {"user": LIMITED, "vhost": "/", "configure": OWN, "write": OWN, "read": OWN}],
    }


@contextlib.contextmanager
def rabbitmq(folder: Path, program: str) -> Iterator[int]:
    """A RabbitMQ node on spare ports, with an epmd of its own, so that it meets no other node; yields its AMQP port."""
    port, distribution, names = free_port(), free_port(), free_port()
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps(_definitions()))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{port}\nlog.file.level = warning\nload_definitions = {definitions}\n"
    )
    (folder / "enabled_plugins").write_text("[].")
    (folder / "env").write_text("")
    environ = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"oracle{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
        # One scheduler, and no busy waiting: the machine is shared.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(_running(["epmd", "-port", str(names)], environ, folder / "epmd.out"))
        command = [str(_STARTED_BY_DEBIAN) if _STARTED_BY_DEBIAN.exists() else program]
        node = stack.enter_context(_running(command, environ, folder / "rabbitmq.out"))
        _until_listening(port, node, folder / "rabbitmq.out")
        yield port


@contextlib.contextmanager
def _running(command: list[str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is ended as a whole: the node is started by a shell script."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
