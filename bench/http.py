"""CPU per HTTP request of a server, beside RabbitMQ's HTTP API and a queue of FastAPI and Redis.

wrk sends the requests, over connections that are kept, the next one when the last is answered; the CPU of the server
and its children is read before and after. Servers and cases take turns within each round.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench import servers
from bench.harness import start, table, title
from bench.servers import Server

KEY = "benchmark"
BATCH = 100
BODY = "x" * 200
GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="
SHARING = 64
"""Connections of the case that shows how syncs are shared."""

_SEND = """
wrk.method, wrk.path, wrk.body = "{method}", "{path}", [=[{body}]=]
wrk.headers["Authorization"], wrk.headers["Content-Type"] = "{auth}", "{kind}"
"""
# a pull for each message, and an ack for each that came
_PAIRS = """
local headers = {{["Authorization"] = "{auth}", ["Content-Type"] = "application/json"}}
local tags = {{}}
request = function()
  local tag = table.remove(tags)
  if tag == nil then return wrk.format("POST", "{path}/pull", headers, "") end
  return wrk.format("POST", "{path}/ack", headers, '{{"delivery_tag":"' .. tag .. '"}}')
end
response = function(status, headers, body)
  tags[#tags + 1] = string.match(body, '"delivery_tag":"([^"]*)"')
end
"""


@dataclass
class Case:
    """What wrk does; `each` is how many messages a request is, and `before` what fills the queue first."""

    name: str
    server: str
    script: str
    each: float = 1
    aim_us: float | None = None
    before: str = ""
    connections: int = 0
    cpu_us: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)


def send(method: str, path: str, body: str, auth: str = f"Bearer {KEY}", kind: str = "application/json") -> str:
    return _SEND.format(method=method, path=path, body=body, auth=auth, kind=kind)


def cases() -> Iterator[Case]:
    message = f'{{"message":"{BODY}"}}'
    publish = send("POST", "/api/v1/queues/q/publish", message)
    pairs = _PAIRS.format(auth=f"Bearer {KEY}", path="/api/v1/queues/q")
    many = "[" + ",".join([message] * BATCH) + "]"
    yield Case("GET /health", "rookery", send("GET", "/health", ""))
    yield Case("publish", "rookery", publish, aim_us=18)
    yield Case(
        "publish, small queue API", "rookery", send("POST", "/publish?queue=s", BODY, f"ApiKey {KEY}", "text/plain")
    )
    yield Case("pull and ack, the pair", "rookery", pairs, 0.5, 40, publish)
    yield Case(
        f"publish {BATCH} at once, a message", "rookery", send("POST", "/api/v1/queues/b/messages", many), BATCH, 1.5
    )
    yield Case("publish, durable", "rookery, journal", publish)
    yield Case(f"publish, durable, {SHARING} connections", "rookery, journal", publish, connections=SHARING)
    given = f'{{"properties":{{"delivery_mode":1}},"routing_key":"q","payload":"{BODY}","payload_encoding":"string"}}'
    yield Case("publish", "rabbitmq", send("POST", "/api/exchanges/%2f/amq.default/publish", given, GUEST))
    yield Case("GET /health", "fastapi", send("GET", "/health", ""))
    yield Case("publish", "fastapi", send("POST", "/queues/q/publish", message))
    yield Case(
        "pull and ack, the pair",
        "fastapi",
        _PAIRS.format(auth=f"Bearer {KEY}", path="/queues/q"),
        0.5,
        before=send("POST", "/queues/q/publish", message),
    )


def wrk(server: Server, script: str, folder: Path, connections: int, seconds: int) -> tuple[int, float]:
    """How many requests there were, and the server's CPU seconds; one that is not answered with 2xx ends it all."""
    file = folder / "script.lua"
    file.write_text(script)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(file), f"http://127.0.0.1:{server.port}"]
    before = server.cpu_sec()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spent = server.cpu_sec() - before
    count = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    if "Non-2xx" in said or not count:
        raise SystemExit(f"{server.name}: {said}")
    return count, spent


def ask(server: Server, method: str, path: str, auth: str = f"Bearer {KEY}") -> str:
    url = f"http://127.0.0.1:{server.port}{path}"
    data = b"{}" if method == "PUT" else None
    headers = {"Authorization": auth, "Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def batches(server: Server) -> int:
    """How many batches the journal of a server has written and synced."""
    found = re.search(r"^rookery_journal_batches_total (\d+)", ask(server, "GET", "/metrics"), re.MULTILINE)
    return int(found[1]) if found else 0


def measure(case: Case, server: Server, folder: Path, connections: int, seconds: int) -> None:
    if server.name.startswith("rookery"):
        for queue in ("q", "s", "b"):
            ask(server, "PUT", f"/api/v1/queues/{queue}")
            ask(server, "POST", f"/api/v1/queues/{queue}/purge")
    if case.before:
        # more than there is time to pull
        wrk(server, case.before, folder, connections, seconds)
    written = batches(server) if "journal" in case.server else 0
    count, spent = wrk(server, case.script, folder, case.connections or connections, seconds)
    case.cpu_us.append(spent / (count * case.each) * 1e6)
    if "journal" in case.server:
        case.batches.append((batches(server) - written) / count)


def show(found: list[Case], running: dict[str, Server], arguments: list[str]) -> None:
    versions = ", ".join(dict.fromkeys(server.version for server in running.values()))
    title(
        "HTTP",
        f"""CPU µs of a server and its children per request, unless said per message; bodies of {len(BODY)} B.
        {versions}. wrk, one thread, {arguments[0]} connections, {arguments[1]} s for each case and round. Rookery in
        memory unless durable, with an API key; RabbitMQ's messages transient, with a user's password; FastAPI on
        uvicorn with a key, Redis without a disk. Syncs are those a message.""",
    )
    rows = []
    for case in found:
        shared = f"{statistics.median(case.batches):.3f}" if case.batches else ""
        aim = "" if case.aim_us is None else f"≤ {case.aim_us:g}"
        spread = f"{min(case.cpu_us):.2f} to {max(case.cpu_us):.2f}"
        rows.append([f"{case.server}: {case.name}", f"{statistics.median(case.cpu_us):.2f}", spread, aim, shared])
    table(["case", "CPU µs", "rounds from, to", "aim", "syncs"], rows)


def main() -> None:
    parser = ArgumentParser(prog="bench/run http")
    parser.add_argument("--seconds", type=int, default=2, help="of each case and round (2)")
    parser.add_argument("--connections", type=int, default=32, help="that are kept (32)")
    parser.add_argument("--alone", action="store_true", help="without the other servers")
    parser.add_argument("--only", default="", help="cases that have this in their name")
    arguments = start("http", parser)
    missing = [package for package in ("fastapi", "redis", "uvicorn") if find_spec(package) is None]
    if missing and not arguments.alone:
        sys.exit(
            f"there is no {' and no '.join(missing)} to compare with: {sys.executable} -m pip install "
            f"{' '.join(missing)} (`make bench` does that), or say --alone"
        )
    for program in ("wrk",) if arguments.alone else ("wrk", "redis-server"):
        if shutil.which(program) is None:
            sys.exit(f"there is no {program} (Debian: apt-get install {program})")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rookery-bench-")))
        enter = stack.enter_context
        key = ("--api-key", KEY)
        running = {
            "rookery": enter(servers.rookery(folder / "memory", *key, "--store-backend", "memory", face="http")),
            "rookery, journal": enter(servers.rookery(folder / "journal", *key, face="http")),
        }
        if not arguments.alone:
            running["rabbitmq"] = enter(servers.rabbitmq(folder / "rabbitmq", face="http"))
            running["fastapi"] = enter(servers.fastapi(folder / "fastapi"))
            ask(running["rabbitmq"], "PUT", "/api/queues/%2f/q", GUEST)
        found = [case for case in cases() if case.server in running and arguments.only in f"{case.server}: {case.name}"]
        for number in range(arguments.rounds + 1):
            for case in found:
                measure(case, running[case.server], folder, arguments.connections, arguments.seconds)
                if number == 0:  # the first only warms up
                    case.cpu_us.clear()
                    case.batches.clear()
        show(found, running, [str(arguments.connections), str(arguments.seconds)])


if __name__ == "__main__":
    main()
