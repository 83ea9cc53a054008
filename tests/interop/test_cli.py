"""Every command of `rookery` against a real server."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
import trustme

from tests.interop.cli_world import KEY, Cli, until
from tests.interop.server import ServerProcess, serving


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    tls = ("--tls-cert", str(folder / "server.pem"), "--http-tls-port", "0", "--amqp-tls-port", "off")
    with serving(folder, "--api-key", KEY, "--dlq-suffix", ".dead", *tls) as running:
        yield running
        assert running.stop() == 0
        assert [line for line in running.log if line["event"] in ("connection_failed", "defect")] == []


@pytest.fixture
def cli(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(f"http://127.0.0.1:{server.http}", tmp_path)


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:10]}"


def rows(text: str) -> list[list[str]]:
    """The cells of a table in a pipe, without its head, for cells without spaces."""
    return [line.split() for line in text.splitlines()[1:]]


# Messages


def test_publish_and_claim(cli: Cli, name: str) -> None:
    first = cli.call("publish", name, '{"n": 1}').strip()
    cli.call("publish", name, "plain words", "--priority", "9", "-H", "eu=true", "--type", "note")
    peeked = [json.loads(line) for line in cli.call("peek", name, "--json").splitlines()]
    assert [row["message"] for row in peeked] == ["plain words", {"n": 1}]
    assert "plain words" in cli.call("peek", name)
    (words,) = cli.lines("claim", name)
    assert (words["content_type"], words["headers"], words["type"]) == ("text/plain", {"eu": True}, "note")
    cli.call("settle", name, words["lease"], "--outcome", "release")
    found = cli.lines("claim", name, "--max", "10", "--ack")
    assert [row["message"] for row in found] == ["plain words", {"n": 1}]
    assert found[1]["message_id"] == first
    assert cli.call("claim", name, code=3) == ""
    assert "leases had ended" in cli.refused(3, "settle", name, found[0]["lease"])


def test_publish_with_delay_ttl_and_a_key(cli: Cli, name: str) -> None:
    cli.call("publish", name, "1", "--delay", "1h", "--ttl", "2h", "--dedup-key", "once")
    assert "published before" in cli.call("publish", name, "1", "--dedup-key", "once")
    (row,) = [json.loads(line) for line in cli.call("peek", name, "--state", "delayed", "--json").splitlines()]
    assert row["due_ms"] - row["enqueued_ms"] >= 0
    assert row["expires_ms"] - row["due_ms"] == 7_200_000
    assert cli.json("queues", "show", name)["stats"]["delayed"] == 1


def test_a_body_from_a_file_comes_back_byte_by_byte(cli: Cli, name: str) -> None:
    data = bytes(range(256)) * 10
    Path("logo.png").write_bytes(data)
    cli.call("publish", name, "--file", "logo.png")
    cli.call("publish", name, "--file", "-", input=data)
    assert cli.pipe("claim", name, "--body", "--ack").stdout == data
    (row,) = cli.lines("claim", name)
    assert row["content_type"] == "application/octet-stream"
    assert "cannot be read: No such file" in cli.refused(2, "publish", name, "--file", "nowhere")
    assert "not both" in cli.refused(2, "publish", name, "body", "--file", "logo.png")


def test_lines_of_stdin_and_json_lines_of_stdout(cli: Cli, name: str) -> None:
    sent = cli.pipe("publish", name, input=b"".join(b"%d\n" % n for n in range(2_500)))
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"2500 messages published\n", b"")
    claimed = cli.pipe("claim", name, "--max", "2500", "--ack")
    assert claimed.stderr == b""
    assert [json.loads(line)["message"] for line in claimed.stdout.splitlines()] == list(range(2_500))
    assert cli.json("publish", name, input="a\n\nb\n") == {"published": 2}


def test_envelopes(cli: Cli, name: str) -> None:
    lines = '{"message": {"n": 1}, "priority": 3}\n{"message": "two", "headers": {"a": 1}}\n'
    cli.call("publish", name, "--envelopes", "--type", "t", input=lines)
    found = cli.lines("claim", name, "--max", "9")
    assert [(row["message"], row["type"]) for row in found] == [({"n": 1}, "t"), ("two", "t")]
    assert "is no JSON object" in cli.refused(2, "publish", name, "--envelopes", input="nope\n")
    assert "line 1.priority" in cli.refused(
        2, "publish", name, "--envelopes", input='{"message": 1, "priority": 1e99}\n'
    )


def test_settle_retries_and_rejects(cli: Cli, name: str) -> None:
    cli.call("publish", name, input="1\n2\n")
    one, two = cli.lines("claim", name, "--max", "2", "--lease", "1m", "--wait", "1s")
    assert cli.json("settle", name, one["lease"], "-o", "retry", "--delay", "1h") == {"settled": 1, "lost": []}
    cli.call("settle", name, two["lease"], "-o", "reject", "--reason", "no stock")
    stats = cli.json("queues", "show", name)["stats"]
    assert (stats["delayed"], stats["dead"]) == (1, 1)


def test_subscribe_to_a_queue(cli: Cli, name: str) -> None:
    cli.call("publish", name, input="1\n2\n3\n")
    found = cli.lines("subscribe", name, "--max", "2")
    assert [row["message"] for row in found] == [1, 2]
    assert [row["message"] for row in cli.lines("subscribe", name, "--idle", "500ms")] == [3]
    assert cli.json("queues", "show", name)["stats"]["acked"] == 3


def test_subscribe_runs_a_program(cli: Cli, name: str) -> None:
    cli.call("publish", name, input="good\nbad\n")
    program = 'read line; echo "$line $ROOKERY_ATTEMPT" >> done.txt; test "$line" = good'
    ran = cli.pipe("subscribe", name, "--exec", program, "--max", "2")
    assert ran.returncode == 0
    assert (cli.folder / "done.txt").read_text() == "good 1\nbad 1\n"
    assert b"the command ended with 1 for message" in ran.stderr
    stats = cli.json("queues", "show", name)["stats"]
    assert (stats["acked"], stats["retried"], stats["delayed"] + stats["ready"]) == (1, 1, 1)


@pytest.mark.long
def test_a_program_may_take_longer_than_the_lease(cli: Cli, name: str) -> None:
    cli.call("publish", name, "1")
    cli.pipe("subscribe", name, "--exec", "sleep 9", "--lease", "4s", "--max", "1")
    stats = cli.json("queues", "show", name)["stats"]
    assert (stats["acked"], stats["lapsed"], stats["delivered"]) == (1, 0, 1)


def test_subscribe_to_a_topic_and_a_stream(cli: Cli, name: str) -> None:
    cli.call("streams", "create", name)
    cli.call("publish", name, "--to", "stream", input="1\n2\n")
    found = cli.lines("subscribe", name, "--to", "stream", "--from", "first", "--max", "2")
    assert [(row["offset"], row["message"]) for row in found] == [(0, 1), (1, 2)]
    assert cli.lines("subscribe", name, "--to", "stream", "--from", "next", "--idle", "300ms") == []
    topic = f"{name}-topic"
    cli.call("exchanges", "create", topic, "topic")
    got: list[Any] = []
    words = ("subscribe", topic, "--to", "topic", "--pattern", "order.*", "--max", "1")
    reader = threading.Thread(target=lambda: got.append(cli.pipe(*words)))
    reader.start()
    until(lambda: cli.json("bindings", "list", "--source", topic))
    cli.call("publish", topic, "x", "--to", "exchange", "-k", "other")
    cli.call("publish", topic, '{"id": 7}', "--to", "exchange", "-k", "order.created")
    reader.join(60)
    assert json.loads(got[0].stdout)["message"] == {"id": 7}


def test_subscribe_is_refused_what_is_not_there(cli: Cli, name: str) -> None:
    assert "no stream" in cli.refused(3, "subscribe", name, "--to", "stream")


# Dead letters


@pytest.mark.row("S0-37")
def test_dead_letters_are_listed_shown_redriven_and_purged(cli: Cli, name: str) -> None:
    cli.call("publish", name, "-H", "eu=true", input="1\n")
    cli.call("publish", name, input="2\n3\n")
    for row in cli.lines("claim", name, "--max", "3"):
        cli.call("settle", name, row["lease"], "-o", "reject", "--reason", f"reason {row['message']}")
    assert [name, "3", f"{name}.dead", "3"] in rows(cli.call("dead-letters", "list"))
    letters = cli.json("dead-letters", "list", name)
    assert [row["message"] for row in letters] == [1, 2, 3]
    assert cli.json("dead-letters", "list", f"{name}.dead") == letters
    one = cli.json("dead-letters", "show", name, letters[1]["message_id"])
    assert (one["message"], one["deaths"][0]["detail"]) == (2, "reason 2")
    assert "reason 2" in cli.call("dead-letters", "show", name, letters[1]["message_id"])
    assert "no dead letter" in cli.refused(3, "dead-letters", "show", name, "nix")

    dry = cli.json("dead-letters", "redrive", name, "--dry-run", "--filter", "detail=reason 3")
    assert (dry["redriven"], dry["dry_run"]) == (1, True)
    assert "1 dead letters would be redriven" in cli.call(
        "dead-letters", "redrive", name, "--dry-run", "--filter", "header.eu=true"
    )
    assert cli.json("queues", "show", name)["stats"]["dead"] == 3
    for choice in ("detail=reason 3", "header.eu=true", f"id={letters[1]['message_id']}"):
        assert "1 dead letters were redriven" in cli.call(
            "dead-letters", "redrive", name, "--filter", choice, "--filter", "within=1h", "--filter", "reason=rejected"
        )
    assert sorted(row["message"] for row in cli.lines("claim", name, "--max", "9")) == [1, 2, 3]
    assert "0 dead letters" in cli.call("dead-letters", "redrive", name, "--filter", "before=1h")
    assert "there is no filter 'colour'" in cli.refused(2, "dead-letters", "redrive", name, "--filter", "colour=red")


def test_dead_letters_go_elsewhere_or_away(cli: Cli, name: str) -> None:
    cli.call("publish", name, input="1\n2\n")
    for row in cli.lines("claim", name, "--max", "2"):
        cli.call("settle", name, row["lease"], "-o", "reject")
    cli.call("queues", "create", f"{name}-slow")
    cli.call("dead-letters", "redrive", name, "--to", f"{name}-slow", "--limit", "1")
    assert cli.json("queues", "show", f"{name}-slow")["stats"]["ready"] == 1
    assert cli.json("dead-letters", "purge", name) == {"purged": 1}
    assert cli.json("dead-letters", "list", name) == []
    assert "nothing has died" in cli.refused(3, "dead-letters", "list", f"{name}-slow")


# What there is


@pytest.mark.row("S3-11", "S4-39")
def test_queues(cli: Cli, name: str) -> None:
    assert cli.json("queues", "create", name, "-s", "max_attempts=3", "-s", "ttl_ms=60000")["created"] is True
    assert "is there, and agrees" in cli.call("queues", "create", name, "-s", "max_attempts=3", "-s", "ttl_ms=60000")
    assert cli.refused(5, "queues", "create", name, "-s", "max_attempts=4").startswith("rookery: ")
    assert "max_attemps" in cli.refused(2, "queues", "create", f"{name}-2", "-s", "max_attemps=3")
    assert cli.json("queues", "show", name)["settings"]["max_attempts"] == 3
    assert ["settings.max_attempts", "3"] in [line.split() for line in cli.call("queues", "show", name).splitlines()]
    assert [row["name"] for row in cli.json("queues", "list", "--prefix", name)] == [name]
    cli.call("queues", "create", f"{name}-2")
    cli.call("publish", name, input="1\n2\n3\n")
    assert cli.json("queues", "move", name, f"{name}-2", "--limit", "2") == {"moved": 2}
    assert [row[:2] for row in rows(cli.call("queues", "list", "--prefix", name))] == [[name, "1"], [f"{name}-2", "2"]]
    assert "purged" in cli.call("queues", "purge", f"{name}-2")
    assert cli.refused(5, "queues", "delete", name, "--if-empty").startswith("rookery: ")
    assert cli.json("queues", "delete", name) == {"deleted": name, "messages": 1}
    assert "`rookery queues list` shows" in cli.refused(3, "queues", "show", name)


def test_more_queues_than_a_page(cli: Cli, name: str) -> None:
    document = {"rookery": 1, "tenants": [{"name": "default", "queues": []}]}
    queues = [{"name": f"{name}-{n:04}", "face": "http", "settings": {}} for n in range(1_001)]
    document["tenants"][0]["queues"] = queues  # type: ignore[index]
    cli.call("definitions", "import", "-", input=json.dumps(document))
    assert len(cli.json("queues", "list", "--prefix", name)) == 1_001


@pytest.mark.row("S4-39")
def test_exchanges_and_bindings(cli: Cli, name: str) -> None:
    made = cli.json("exchanges", "create", name, "headers", "--transient", "--alternate", "amq.fanout")
    assert (made["kind"], made["durable"], made["alternate"]) == ("headers", False, "amq.fanout")
    assert cli.refused(5, "exchanges", "create", name, "topic").startswith("rookery: ")
    assert cli.json("exchanges", "show", name)["kind"] == "headers"
    assert [row[:2] for row in rows(cli.call("exchanges", "list", "--prefix", name))] == [[name, "headers"]]
    cli.call("queues", "create", name)
    words = ("create", name, name, "-a", "x-match=all", "-a", "eu=true")
    assert "is now bound" in cli.call("bindings", *words)
    assert "was already bound" in cli.call("bindings", *words)
    (binding,) = cli.json("bindings", "list", "--source", name)
    assert binding["arguments"] == {"x-match": "all", "eu": True}
    assert cli.json("bindings", "list", "--target", name) == [binding]
    cli.call("publish", name, "1", "--to", "exchange", "-H", "eu=true", "--mandatory")
    assert cli.refused(5, "publish", f"{name}", "1", "--to", "exchange", "--mandatory").startswith("rookery: ")
    assert "is not bound" in cli.refused(3, "bindings", "delete", name, name)
    assert "no longer bound" in cli.call("bindings", "delete", name, name, "-a", "x-match=all", "-a", "eu=true")
    assert cli.refused(2, "exchanges", "create", f"{name}-2", "square").startswith("rookery: ")
    assert cli.json("exchanges", "delete", name, "--if-unused") == {"deleted": name}
    assert "`rookery exchanges list`" in cli.refused(3, "exchanges", "show", name)


def test_policies(cli: Cli, name: str) -> None:
    cli.call("queues", "create", name)
    cli.call("policies", "set", name, f"^{name}$", "length_max=7", "--priority", "3")
    assert cli.json("queues", "show", name)["policy"] == name
    assert cli.json("policies", "show", name)["settings"] == {"length_max": 7}
    assert [name, f"^{name}$", "3"] in [row[:3] for row in rows(cli.call("policies", "list"))]
    cli.call("policies", "delete", name)
    assert "no policy" in cli.refused(3, "policies", "show", name)


def test_streams(cli: Cli, name: str) -> None:
    assert cli.json("streams", "create", name, "-p", "2", "-s", "max_age_ms=60000")["created"] is True
    sent = cli.json("publish", name, "/home", "--to", "stream", "--record-key", "k")
    where = str(sent["partition"])
    cli.call("publish", name, "--to", "stream", "--partition", where, input="1\n2\n3\n")
    assert [row["value"] for row in cli.lines("streams", "read", name, "-p", where)] == ["/home", 1, 2, 3]
    assert [row["value"] for row in cli.lines("streams", "read", name, "-p", where, "--from", "2", "-n", "1")] == [2]
    assert [row["value"] for row in cli.lines("streams", "read", name, "-p", where, "--from", "last")] == [3]
    assert "has no partition 9" in cli.refused(3, "streams", "read", name, "-p", "9", "--from", "0")
    assert "--from must be" in cli.refused(2, "streams", "read", name, "--from", "nix")
    assert [name, "2", "4"] in [row[:3] for row in rows(cli.call("streams", "list", "--prefix", name))]
    assert "sealed_before" in cli.call("streams", "show", name)
    assert cli.json("streams", "show", name)["records"] == 4
    offsets = {row["partition"]: row["offset"] for row in cli.json("streams", "offsets", name)}
    assert offsets[int(where)] == 4
    cli.call("streams", "set", name, "max_bytes=1000000")
    assert cli.json("streams", "show", name)["settings"]["max_bytes"] == 1_000_000
    assert cli.json("streams", "trim", name, "--before", "2", "-p", where)["partition"] == int(where)
    assert cli.json("streams", "seal", name)["name"] == name
    assert cli.json("streams", "delete", name)["deleted"] == name
    assert "`rookery streams list`" in cli.refused(3, "streams", "show", name)


def test_groups(cli: Cli, name: str) -> None:
    cli.call("streams", "create", name)
    cli.call("publish", name, "--to", "stream", input="1\n2\n3\n")
    assert cli.json("groups", "commit", name, "billing", "0=2")["lag"] == 1
    assert [name, "billing", "1", "0", "0"] in rows(cli.call("groups", "list"))
    assert [row["group"] for row in cli.json("groups", "list", name)] == ["billing"]
    assert "lag 1" in cli.call("groups", "show", name, "billing")
    assert cli.json("groups", "show", name, "billing")["partitions"][0]["committed"] == 2
    assert cli.json("groups", "reset", name, "billing", "--to", "first")["lag"] == 3
    assert "lag of 2" in cli.call("groups", "reset", name, "billing", "0=1")
    cli.call("groups", "delete", name, "billing")
    assert "`rookery groups list STREAM`" in cli.refused(3, "groups", "show", name, "billing")


class Hook(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"<html>")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Dying(Hook):
    """Tells of a queue, and goes away in the middle of its messages."""

    def do_GET(self) -> None:
        tenant = {"name": "default", "queues": [{"name": "q"}], "streams": []}
        data = json.dumps({"rookery": 1, "tenants": [tenant]}).encode()
        whole = "definitions" in self.path
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if whole else data[:9])


@contextmanager
def receiving(handler: type[Hook] = Hook) -> Iterator[str]:
    receiver = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{receiver.server_port}"
    finally:
        receiver.shutdown()
        receiver.server_close()


def test_what_is_no_broker_is_told(cli: Cli) -> None:
    with receiving() as url:
        assert f"what answers at {url} is no broker" in cli.refused(6, "queues", "list", "--url", url)
        assert "the broker answered 501" in cli.refused(1, "queues", "delete", "x", "--url", url)


def test_a_broker_that_goes_away_during_an_export_is_told(cli: Cli) -> None:
    with receiving(Dying) as url:
        line = cli.refused(6, "export", "some.jsonl", "--url", url)
    assert line.startswith(f"rookery: no broker answers at {url}: the connection was closed")


def test_over_tls(cli: Cli, server: ServerProcess, authority: trustme.CA) -> None:
    url = f"https://127.0.0.1:{server.port('https')}"
    authority.cert_pem.write_to_path("ca.pem")
    assert isinstance(cli.json("queues", "list", "--url", url, "--ca-file", "ca.pem"), list)
    assert "certificate verify failed" in cli.refused(6, "queues", "list", "--url", url)


def test_webhooks(cli: Cli, name: str) -> None:
    with receiving() as base:
        endpoint = f"{base}/hook"
        made = cli.json("webhooks", "create", name, endpoint, "--call-timeout", "20s", "--concurrency", "1")
        assert made["secret"].startswith("whsec_")
        hook = made["id"]
        assert [hook, "queue", name, endpoint] in [row[:4] for row in rows(cli.call("webhooks", "list"))]
        assert cli.json("webhooks", "show", hook)["timeout_ms"] == 20_000
        assert cli.json("webhooks", "test", hook)["status"] == 204
        cli.call("publish", name, "1")
        until(lambda: cli.json("webhooks", "deliveries", hook))
        assert "ack" in cli.call("webhooks", "deliveries", hook)
        topic = cli.json("webhooks", "create", name, endpoint, "--to", "topic", "-k", "order.*")
        cli.call("webhooks", "delete", topic["subscription_id"])
        cli.call("webhooks", "delete", hook)
        assert cli.refused(3, "webhooks", "show", hook).startswith("rookery: ")
        nowhere = cli.json("webhooks", "create", name, "http://127.0.0.1:9/")
        assert cli.json("webhooks", "test", nowhere["id"], code=1)["outcome"] == "failed"
        cli.call("webhooks", "delete", nowhere["id"])


@pytest.mark.row("S4-39")
def test_connections_and_consumers_live(cli: Cli, server: ServerProcess, name: str) -> None:
    parameters = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{server.amqp}/%2F")
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=7)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(name, lambda *_: None, consumer_tag="me")
    (row,) = cli.json("consumers", "list", "--queue", name)
    assert (row["name"], row["protocol"], row["credit"]) == ("me", "amqp", 7)
    assert [row["id"], name, "me", "amqp", row["connection"], "7", "0", "0"] in rows(cli.call("consumers", "list"))
    assert row["connection"] in [each["id"] for each in cli.json("connections", "list")]
    cli.call("consumers", "cancel", row["id"])
    assert cli.json("consumers", "list", "--queue", name) == []
    assert "no consumer" in cli.refused(3, "consumers", "cancel", row["id"])
    until(lambda: connection.process_data_events(0.1) or cancelled)
    cli.call("connections", "close", row["connection"], "--reason", "moving house")
    with pytest.raises(pika.exceptions.AMQPConnectionError, match="moving house"):
        until(lambda: connection.process_data_events(0.1))
    assert "no connection" in cli.refused(3, "connections", "close", row["connection"])


# Who may


def test_keys_and_rights(cli: Cli, name: str, tmp_path: Path) -> None:
    made = cli.json("keys", "create", "--tenant", name, "--write", "^jobs$", "--note", "the shop", "--expires", "90d")
    other = Cli(cli.url, tmp_path, made["api_key"])
    other.refused(4, "queues", "create", "jobs")
    assert other.json("queues", "list") == []
    assert other.refused(4, "claim", "jobs").startswith("rookery: ")
    (row,) = cli.json("keys", "list", "--tenant", name)
    assert (row["kid"], row["note"], row["rights"]["write"]) == (made["kid"], "the shop", "^jobs$")
    assert made["kid"] in cli.call("keys", "list", "--tenant", name)
    cli.call("keys", "revoke", made["kid"])
    assert "give a key: --key or ROOKERY_API_KEY" in other.refused(4, "queues", "list")


def test_users(cli: Cli, name: str) -> None:
    cli.call("tenants", "create", name)
    cli.call("users", "set", name, "--tenant", name, "--write", ".*", "--read", ".*", input="s3cret-words\n")
    shown = cli.json("users", "show", name)
    assert (shown["admin"], shown["tenants"][name]["write"]) == (False, ".*")
    as_user = cli.url.replace("http://", f"http://{name}:s3cret-words@")
    environ = cli.environ
    cli.environ = {**environ, "ROOKERY_API_KEY": ""}
    assert cli.json("queues", "list", "--url", as_user) == []
    cli.environ = environ
    cli.call("users", "set", name, "--admin", "--keep-password")
    assert cli.json("users", "show", name)["admin"] is True
    assert name in cli.call("users", "list")
    assert "no password on stdin" in cli.refused(2, "users", "set", name)
    assert "say which with --tenant" in cli.refused(2, "users", "set", name, "--keep-password", "--read", "x")
    cli.call("users", "delete", name)
    assert cli.refused(3, "users", "show", name).startswith("rookery: ")


def test_tenants(cli: Cli, name: str) -> None:
    assert cli.json("tenants", "create", name, "queues_max=5")["limits"]["queues_max"] == 5
    assert cli.json("tenants", "limits", name)["limits"]["queues_max"] == 5
    assert ["limits.queues_max", "6"] in [
        line.split() for line in cli.call("tenants", "limits", name, "queues_max=6").splitlines()
    ]
    assert name in [row["name"] for row in cli.json("tenants", "list")]
    assert [row[0] for row in rows(cli.call("tenants", "list", "--prefix", name))] == [name]
    assert cli.json("tenants", "show", name)["limits"]["queues_max"] == 6
    cli.call("tenants", "delete", name)
    assert "`rookery tenants list`" in cli.refused(3, "tenants", "show", name)


# The whole broker


def test_definitions(cli: Cli, name: str) -> None:
    cli.call("queues", "create", name, "-s", "max_attempts=3")
    text = cli.call("definitions", "export")
    cli.call("queues", "delete", name)
    Path("definitions.json").write_text(text)
    assert cli.json("definitions", "import", "definitions.json") == {"status": "ok", "tenants": ["default"]}
    assert cli.json("queues", "show", name)["settings"]["max_attempts"] == 3
    assert json.loads(cli.call("definitions", "export")) == json.loads(text)
    assert "access" in json.loads(cli.call("definitions", "export", "--all", "--access"))
    assert "is not JSON" in cli.refused(2, "definitions", "import", "-", input="{")
    assert "cannot be read" in cli.refused(2, "definitions", "import", "nowhere.json")


def test_stats_once(cli: Cli, name: str) -> None:
    cli.call("publish", name, input="1\n2\n")
    found = cli.json("stats", "--prefix", name)
    assert (found["totals"]["ready"], [row["name"] for row in found["queues"]]) == (2, [name])
    assert [row[:2] for row in rows(cli.call("stats", "--prefix", name))] == [[name, "2"], ["all", "2"]]


@pytest.mark.row("S4-33")
def test_bench(cli: Cli) -> None:
    found = cli.json("bench", "--messages", "400", "--size", "50", "--batch", "50")
    assert found["messages"] == 400
    assert found["published_per_sec"] > 0
    assert found["consumed_per_sec"] > 0
    assert 0 < found["trip_ms"]["p50"] <= found["trip_ms"]["p99"]
    assert cli.json("queues", "list", "--prefix", "rookery.bench") == []


@pytest.mark.row("S4-33")
def test_bench_on_a_broker_of_its_own(cli: Cli) -> None:
    ran = cli.pipe("bench", "--throw-away", "--messages", "100")
    assert (ran.returncode, ran.stderr) == (0, b"")
    text = ran.stdout.decode()
    assert "published and confirmed" in text
    assert cli.url not in text


# Export and import


def tenant(cli: Cli, name: str, folder: Path) -> Cli:
    made = cli.json("keys", "create", "--tenant", name, "--note", "for export and import")
    return Cli(cli.url, folder, made["api_key"])


def fill(cli: Cli) -> None:
    cli.call("queues", "create", "jobs", "-s", "max_attempts=3")
    cli.call("exchanges", "create", "orders", "topic")
    cli.call("bindings", "create", "orders", "jobs", "-k", "order.*")
    cli.call("policies", "set", "bounded", "^jobs", "length_max=100000")
    cli.call("streams", "create", "clicks", "-p", "2")
    cli.call("publish", "jobs", input="".join(f"{n}\n" for n in range(2_100)))
    cli.call("publish", "jobs", '{"spaced":   [1.10, 1e2],\n "lines": true}', "--priority", "7", "-H", "eu=true")
    cli.call("publish", "jobs", "words", "--ttl", "2h", "--delay", "1h", "--correlation-id", "c", "--reply-to", "r")
    cli.call("publish", "jobs", "--file", "-", "--type", "picture", input=bytes(range(256)))
    cli.call("publish", "jobs", '"a text in JSON"', "--message-id", "an id of its own")
    cli.call("publish", "empty-later", "1", "--ttl", "1ms")
    cli.call("publish", "clicks", "--to", "stream", "--record-key", "k", "-H", "a=1", input="1\ntwo\n")
    cli.call("publish", "clicks", "--to", "stream", "--partition", "0", "--file", "-", input=b"\xff\xfe")


def test_what_is_exported_and_imported_is_the_same(cli: Cli, name: str, tmp_path: Path) -> None:
    one, other = tenant(cli, name, tmp_path), tenant(cli, f"{name}-copy", tmp_path)
    fill(one)
    assert one.lines("claim", "jobs", "--max", "3")[0]["priority"] == 7
    assert one.json("export", "all.jsonl") == {"messages": 2_104, "records": 3}
    assert other.json("import", "all.jsonl") == {"messages": 2_104, "records": 3, "expired": 0}
    other.call("export", "copy.jsonl")

    def sorted_lines(path: str) -> list[str]:
        definitions, *lines, end = Path(path).read_text().splitlines()
        document = json.loads(definitions)
        document["definitions"]["tenants"][0] |= {"name": "", "limits": {}}
        return [json.dumps(document, sort_keys=True), *sorted(lines), end]

    assert sorted_lines("copy.jsonl") == sorted_lines("all.jsonl")
    numbers = [
        row["message"] for row in other.lines("claim", "jobs", "--max", "2103") if isinstance(row["message"], int)
    ]
    # what was leased when it was exported comes last, all else in its order
    assert numbers[:-2] == list(range(2, 2_100))
    (row,) = other.lines("peek", "jobs", "--state", "delayed", "--json")
    assert (row["message"], row["correlation_id"], row["reply_to"]) == ("words", "c", "r")


def test_bodies_keep_their_bytes(cli: Cli, name: str, tmp_path: Path) -> None:
    one, other = tenant(cli, name, tmp_path), tenant(cli, f"{name}-copy", tmp_path)
    body = '{"spaced":   [1.10, 1e2, 123456789012345678901234567890],\n "lines": true}'
    one.call("publish", "q", "--file", "-", "-t", "application/json", input=body)
    exported = one.pipe("export", "--queue", "q")
    assert exported.stderr == b"1 messages and 0 records written\n"
    other.call("import", input=exported.stdout)
    url = f"{cli.url}/api/v1/queues/q/messages"
    raw = httpx.get(url, headers={"Authorization": f"Bearer {other.environ['ROOKERY_API_KEY']}"}).text
    assert body in raw


def test_a_file_that_is_cut_off_or_wrong_is_told(cli: Cli, name: str, tmp_path: Path) -> None:
    one = tenant(cli, name, tmp_path)
    one.call("publish", "q", input="1\n2\n")
    text = one.call("export")
    cut = "".join(text.splitlines(keepends=True)[:-1])
    other = tenant(cli, f"{name}-copy", tmp_path)
    assert "it was cut off" in other.refused(2, "import", input=cut)
    assert other.json("queues", "show", "q")["stats"]["ready"] == 2
    for bad, words in (("nope\n", "line 1 is not"), ('{"kind":"what"}\n', "'what', which is not known")):
        result = other.pipe("import", input=bad.encode())
        assert result.returncode == 2
        assert words in result.stderr.decode()
    assert "cannot be read" in other.pipe("import", "nowhere.jsonl").stderr.decode()
    only = other.pipe("export", "--definitions-only").stdout.splitlines()
    assert len(only) == 2
    assert json.loads(only[1]) == {"kind": "end", "messages": 0, "records": 0}
    other.call("import", "--skip-definitions", input=text)
    assert other.json("queues", "show", "q")["stats"]["ready"] == 4
