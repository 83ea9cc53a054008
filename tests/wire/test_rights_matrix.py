"""Every route, AMQP method, line command and push path, asked by every kind of principal, answers as the table of
rights (`rookery.core.rights`) says.

What is expected is computed from the table alone. A route, method or command without an entry fails, and so does one
whose handler asks for more or less than its entry says.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.core.rights import AMQP, LINE, OPERATIONS
from rookery.wire.amqp import codec
from rookery.wire.http.routes import Route
from rookery.wire.line.commands import COMMANDS
from tests.wire.amqp_peer import (
    NO_ARGUMENTS,
    PROTOCOL,
    Frame,
    frames,
    longlong,
    method,
    octet,
    open_vhost,
    publish,
    short,
    short_string,
    start_ok,
    table,
    tune_ok,
)
from tests.wire.http_world import World, world
from tests.wire.socket_reader import SocketReader
from tests.wire.test_http_auth import _fitting

ROOT = Path(__file__).parents[2]
SHOP = "shop"
asked: Counter[str] = Counter()
rounds = itertools.count(1)

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}


@dataclass
class Who:
    """A principal: what it shows, and what the table grants it. `valid` is false of credentials that are not good."""

    name: str
    headers: dict[str, str]
    rights: dict[str, str] = field(default_factory=lambda: dict(NOTHING))
    tenant: str = SHOP
    valid: bool = True
    admin: bool = False
    anonymous: bool = False
    user: str = ""
    password: str = ""

    def has(self, right: str) -> bool:
        return self.rights[right] == ".*"

    def is_one_of(self, who: str) -> bool:
        """Whether it is among those who may ask at all."""
        some = {right: self.rights[right] not in ("", "^$") for right in self.rights}
        return {
            "credential": True,
            "some": some["write"] or some["read"],
            "some write": some["write"],
            "some read": some["read"] or self.admin,
            "configure all": self.has("configure") or self.admin,
            "full": self.admin or (all(map(self.has, self.rights)) and not self.anonymous),
            "admin": self.admin,
        }[who]

    def may(self, operation: str) -> bool:
        entry = OPERATIONS[operation]
        if entry.who in ("public", "open"):
            return True
        return self.is_one_of(entry.who) and all(self.has(right) for role in entry.needs.values() for right in role)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    many = str(10**6)
    with world(
        tmp_path_factory.mktemp("matrix"),
        line_port=0,
        claim_wait_sec="0.01",
        login_failures_max=many,
        log_level="error",
    ) as made:
        yield made


@pytest.fixture(scope="module")
def people(web: World) -> list[Who]:
    """Every kind of principal, those with the fewest rights first: what they may not touch must still be there."""

    def by_key(name: str, rights: dict[str, str], tenant: str = SHOP, admin: bool = False, **more: Any) -> Who:
        key = web.key(tenant, rights=rights, admin=admin, **more)
        user, _, password = key.partition(".")
        shown = {"Authorization": f"Bearer {key}"}
        return Who(name, shown, rights, tenant, admin=admin, user=user, password=password)

    revoked = by_key("revoked", ALL)
    assert web.admin.delete(f"/keys/{revoked.user}").status_code == 200
    expired = by_key("expired", ALL, expires_in_sec=1)
    kid = expired.user
    web.inside(lambda server: _expire(server.access, kid))
    revoked.valid = expired.valid = False
    guest = {"Authorization": basic("guest", "guest")}
    return [
        Who("nobody", {}, valid=False),
        Who("wrong", {"Authorization": "Bearer wrong"}, valid=False, user="wrong", password="wrong"),
        revoked,
        expired,
        Who("guest by a proxy", {**guest, "Via": "1.1 proxy"}, ALL, "default", valid=False, anonymous=True),
        Who("guest by another name", {**guest, "Host": "evil.example"}, ALL, "default", valid=False, anonymous=True),
        by_key("rightless", NOTHING),
        by_key("elsewhere", {"configure": "^other", "write": "^other", "read": "^other"}),
        by_key("configurer", {**NOTHING, "configure": ".*"}),
        by_key("writer", {**NOTHING, "write": ".*"}),
        by_key("reader", {**NOTHING, "read": ".*"}),
        by_key("admin without rights", NOTHING, admin=True),
        Who("guest", guest, ALL, "default", anonymous=True, user="guest", password="guest"),
        by_key("stranger", ALL, tenant="rival"),
        by_key("full", ALL),
        by_key("admin", ALL, admin=True),
    ]


def _expire(access: Any, kid: str) -> None:
    record = access._keys[kid]
    access.put_key(msgspec.structs.replace(record, created_ms=1, expires_ms=2))


class Shop:
    """What the tenant has; made anew before each case, as the one before may have deleted it."""

    def __init__(self, web: World) -> None:
        self.owner = web.large(SHOP)

    def stock(self) -> dict[str, str]:
        owner, n = self.owner, next(rounds)
        names = {"queue": f"queue-{n}", "topic": f"news-{n}", "stream": f"clicks-{n}", "chunk": f"chunk-{n}"}
        names |= {"exchange": names["topic"], "producer": f"producer-{n}", "policy": f"policy-{n}"}
        queue, stream = f"/api/v1/queues/{names['queue']}", f"/api/v1/streams/{names['stream']}"

        def do(verb: str, path: str, body: Any = None) -> Any:
            answer = owner.request(verb, path, json=body)
            assert answer.status_code < 300, (verb, path, answer.text)
            return answer.json()

        do("PUT", queue, {})
        do("PUT", stream, {})
        do("PUT", f"/api/v1/policies/{names['policy']}", {"pattern": "nothing", "settings": {}})
        made = do("POST", f"/api/v1/topics/{names['topic']}/subscriptions", {"mode": "pull"})
        names["subscription"], names["subscription_queue"] = made["subscription_id"], made["queue"]
        names["plan"] = do("POST", f"{stream}/plan", {})["plan"]
        do("POST", f"{stream}/stage?chunk={names['chunk']}&producer={names['producer']}&epoch=1", [{"message": 1}])
        do("POST", f"{stream}/groups/g/join", {"member": "m"})
        names["webhook"] = do("POST", f"{queue}/webhooks", {"endpoint": "https://hooks.example.invalid/hook"})["id"]
        (consumer,) = do("GET", f"/api/v1/consumers?queue={names['queue']}")["consumers"]
        names["consumer"] = consumer["id"]
        names["kid"] = do("POST", "/keys", {})["kid"]
        return names


PLACES = {"queues": "queue", "topics": "topic", "exchanges": "exchange", "streams": "stream", "policies": "policy"}
PLACES |= {"webhooks": "webhook", "consumers": "consumer", "subscriptions": "subscription"}


def url_of(route: Route, names: dict[str, str], who: Who) -> str:
    """The path of a route, with names of the shop in it."""
    parts = route.template.split("/")
    for index, part in enumerate(parts):
        if part in ("{name}", "{id}"):
            parts[index] = names.get(PLACES.get(parts[index - 1], ""), "any")
        elif part.startswith("{"):
            own = who.tenant if route.operation == "tenant.show" else "nobody-has-it"
            fixed = {"cut": "1", "table": "queues", "file": "start.js", "tenant": own, "group": "g"}
            parts[index] = fixed.get(part[1:-1]) or names.get(part[1:-1], "any")
    if route.operation == "consumer.list":
        return route.template
    query = f"queue={names['queue']}&message_id=x&seconds=1&source={names['exchange']}&target={names['queue']}"
    if route.operation == "topic.pull":
        query += f"&subscription={names['subscription']}"
    elif route.operation in ("topic.kept", "receipt.publish") or route.template == "/api/v1/kept":
        query += "&topic=t"
    elif route.operation == "key.create":
        query += f"&tenant={SHOP}"
    return "/".join(parts) + "?" + query


def body_of(route: Route, names: dict[str, str]) -> Any:
    body = dict(_fitting(route.method.lower(), route.template))
    if "delivery_tag" in body:
        body["delivery_tag"] = f"{names['subscription_queue']}/1/1/1"
    for name, value in (("exchange", names["exchange"]), ("queue", names["queue"]), ("to", names["queue"])):
        if name in body:
            body[name] = value
    if "source" in body:
        body["source"], body["target"] = names["exchange"], names["queue"]
    if route.operation == "key.create":
        return {"tenant": SHOP, "rights": ALL}
    if route.template.endswith("/producers/{producer}/commit"):
        return {"epoch": 1, "chunks": [names["chunk"]]}
    if route.operation == "transaction.run":
        return {"publish": [{"queue": names["queue"], "message": 1}]}
    if route.template.endswith("/stage"):
        return [{"message": 1}]
    return body


REFUSED = {401, 403}
CREATE_KEY = ("full", "admin", "admin without rights")


def expected(route: Route, who: Who) -> int:
    """401, 403, or 0 for whoever is let in; what becomes of the request then is not the table's to say."""
    entry = OPERATIONS[route.operation]
    if entry.who == "public":
        return 0
    if route.operation == "key.create":
        if not who.valid and who.headers:
            return 401
        # under `local`, of a tenant that is there
        return 0 if who.name in CREATE_KEY else 403
    if not who.valid:
        return 0 if entry.who == "open" and not who.headers else 401
    if route.operation == "key.revoke":
        return 0 if who.is_one_of("full") else 403
    return 0 if who.may(route.operation) else 403


def ask(web: World, who: Who, verb: str, url: str, body: Any) -> int:
    """The status of an answer, which may have no end."""
    asked["HTTP"] += 1
    with web.client.stream(verb, url, json=body, headers=who.headers) as answer:
        assert answer.status_code < 500 or answer.status_code == 503, (verb, url, answer.read())
        return answer.status_code


def judged(status: int) -> int:
    return status if status in REFUSED else 0


def test_every_route_answers_as_the_table_says(web: World, people: list[Who]) -> None:
    shop = Shop(web)
    wrong: list[str] = []
    for route in web.web.router.routes:
        names = shop.stock()
        # whoever is to be refused comes first: those who are let in may delete what it is about
        for who in sorted(people, key=lambda who: expected(route, who) == 0):
            status = ask(web, who, route.method, url_of(route, names, who), body_of(route, names))
            if judged(status) != expected(route, who):
                line = f"{route.method} {route.template} ({route.operation}) by {who.name}: {status}"
                wrong.append(f"{line}, the table says {expected(route, who) or 'allowed'}")
    assert not wrong, "\n".join(wrong)
    assert asked["HTTP"] > 2_000


def extra(names: dict[str, str]) -> list[tuple[str, str, str, Any]]:
    """Requests whose rights depend on their body, each with all its operations."""
    queue, stream, exchange = names["queue"], names["stream"], names["exchange"]
    queues, exchanges, streams = "/api/v1/queues", "/api/v1/exchanges", "/api/v1/streams"
    dead = "queue.declare queue.dead_letter"
    alternate = "exchange.declare exchange.alternate"
    return [
        (dead, "PUT", f"{queues}/dead-1", {"dead_letter_exchange": exchange}),
        (dead, "PUT", f"{queues}/dead-2", {"dead_letter_queue": queue}),
        (dead, "PUT", f"{queues}/dead-3", {"dead_letter_queue": "{queue}.dead"}),
        (alternate, "PUT", f"{exchanges}/fall-1", {"kind": "topic", "alternate": exchange}),
        ("queue.move", "POST", f"{queues}/{queue}/move", {"to": names["subscription_queue"]}),
        ("stream.stage", "POST", f"{streams}/{stream}/stage?producer={names['producer']}&epoch=2", [{"message": 2}]),
        ("producer.commit", "POST", f"/api/v1/producers/{names['producer']}/commit", {"epoch": 9, "chunks": []}),
        ("producer.show", "GET", f"/api/v1/producers/{names['producer']}", None),
        ("queue.settle", "POST", "/api/v1/transactions", {"settle": [{"lease": f"{queue}/1/1/1"}]}),
        ("consumer.list queue.show", "GET", f"/api/v1/consumers?queue={queue}", None),
    ]


def test_rights_that_depend_on_a_body(web: World, people: list[Who]) -> None:
    shop = Shop(web)
    wrong = []
    for index in range(len(extra(shop.stock()))):
        operations, verb, url, body = extra(shop.stock())[index]
        for who in people:
            status = ask(web, who, verb, url, body)
            allowed = 0 if all(who.may(each) for each in operations.split()) else 403
            if who.valid and judged(status) != allowed:
                wrong.append(f"{verb} {url} {body} ({operations}) by {who.name}: {status}")
    assert not wrong, "\n".join(wrong)


# Push


def handshake(web: World, who: Who, path: str) -> int:
    asked["WebSocket"] += 1
    with web.connect() as raw:
        lines = [f"GET {path} HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines.append("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        lines += [f"{name}: {value}" for name, value in ({"Host": "localhost"} | who.headers).items()]
        raw.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        return raw.answer()[0]


def test_every_push_path_over_a_websocket(web: World, people: list[Who]) -> None:
    shop = Shop(web)
    paths = [route for route in web.web.router.routes if route.template.endswith("/stream")]
    assert len(paths) == 3
    for route in paths:
        names = shop.stock()
        for who in people:
            status = handshake(web, who, url_of(route, names, who))
            assert judged(status) == expected(route, who), (route.template, who.name, status)


@pytest.mark.parametrize("kind", ["queue", "topic", "stream"])
def test_a_reader_over_a_websocket_publishes_by_its_rights(web: World, people: list[Who], kind: str) -> None:
    names = Shop(web).stock()
    for name, allowed in (("reader", False), ("full", True)):
        who = next(each for each in people if each.name == name)
        key = who.headers["Authorization"].removeprefix("Bearer ")
        more = {"subscription": names["subscription"]} if kind == "topic" else {}
        with SocketReader(web.address, f"/api/v1/{kind}s/{names[kind]}", key, **more) as reader:
            asked["WebSocket"] += 1
            reader.link.send(json.dumps({"op": "publish", "ref": 1, "messages": {"message": 1}}))
            while (found := json.loads(reader.link.recv(60)))["type"] == "messages":
                pass
        assert found["type"] == ("done" if allowed else "error"), found
        assert allowed or found["error"]["code"] == "access_refused"


# AMQP


class AmqpClient:
    """A connection over a real socket; `open` says whether the peer was let in."""

    def __init__(self, address: str, who: Who) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), 30)
        self._data = b""
        self.channel = 0
        user, password = who.user or "nobody", who.password or "nothing"
        vhost = "/" if who.tenant == "default" else who.tenant
        self._sock.sendall(PROTOCOL)
        self._until((10, 10))
        self._sock.sendall(start_ok(user, password))
        self.open = self._until((10, 30), (10, 50)) is not None
        if self.open:
            self._sock.sendall(tune_ok() + open_vhost(vhost))
            self.open = self._until((10, 41), (10, 50)) is not None

    def _until(self, wanted: tuple[int, int], closes: tuple[int, int] = (0, 0)) -> Frame | None:
        while True:
            found = self._next()
            if found is None or (found.kind == 1 and found.name == closes):
                return None
            if found.kind == 1 and found.name == wanted:
                return found

    def _next(self) -> Frame | None:
        while True:
            size = int.from_bytes(self._data[3:7]) + 8 if len(self._data) >= 7 else 8
            if len(self._data) >= size:
                whole, self._data = self._data[:size], self._data[size:]
                return next(frames(whole))
            try:
                more = self._sock.recv(65536)
            except OSError:
                return None
            if not more:
                return None
            self._data += more

    def refused(self, name: str, data: bytes) -> bool:
        """Whether a method, sent on a channel of its own, is answered with 403. `data` is for channel 1."""
        asked["AMQP"] += 1
        self.channel += 1
        number = short(self.channel)
        sent = b"".join(
            bytes([f.kind]) + number + len(f.payload).to_bytes(4) + f.payload + b"\xce" for f in frames(data)
        )
        self._sock.sendall(method(self.channel, 20, 10, short_string("")))
        self._until((20, 11))
        closing = method(self.channel, 20, 40, short(200) + short_string("") + short(0) + short(0))
        self._sock.sendall(sent + closing)
        while True:
            found = self._next()
            assert found is not None, name
            if found.kind != 1 or found.channel != self.channel:
                continue
            if found.name == (20, 40):
                self._sock.sendall(method(self.channel, 20, 41))
                return int.from_bytes(found.arguments[:2]) == 403
            if found.name == (20, 41):
                return False

    def close(self) -> None:
        self._sock.close()


def amqp_methods() -> list[str]:
    """What a client may send, by the codec's own names."""
    from_server = {"CONNECTION_START", "CONNECTION_TUNE", "CONNECTION_BLOCKED", "CONNECTION_UNBLOCKED"}
    from_server |= {"BASIC_RETURN", "BASIC_DELIVER", "BASIC_GET_EMPTY"}
    found = []
    for name, value in vars(codec).items():
        is_method = isinstance(value, int) and value >> 16 in (10, 20, 30, 40, 50, 60, 85, 90) and "_" in name
        if is_method and not name.endswith("_OK") and name not in from_server:
            kind, _, rest = name.partition("_")
            found.append(f"{kind}.{rest}".lower().replace("_", "-"))
    return found


def amqp_cases(names: dict[str, str]) -> dict[str, bytes]:
    """Methods with arguments, as on channel 1; all of the table but those of the connection."""
    queue, exchange, other = (short_string(names[each]) for each in ("queue", "exchange", "topic"))
    nothing = short(0)
    return {
        "channel.*": method(1, 20, 20, octet(1)),
        "access.*": method(1, 30, 10, short_string("/") + octet(0)),
        "exchange.declare": method(1, 40, 10, nothing + exchange + short_string("topic") + octet(2) + NO_ARGUMENTS),
        "exchange.declare (passive)": method(
            1, 40, 10, nothing + exchange + short_string("topic") + octet(3) + NO_ARGUMENTS
        ),
        "exchange.delete": method(1, 40, 20, nothing + short_string(names["topic"] + "-gone") + octet(0)),
        "exchange.bind": method(1, 40, 30, nothing + other + exchange + short_string("k") + octet(0) + NO_ARGUMENTS),
        "exchange.unbind": method(1, 40, 40, nothing + other + exchange + short_string("k") + octet(0) + NO_ARGUMENTS),
        "queue.declare": method(1, 50, 10, nothing + queue + octet(2) + NO_ARGUMENTS),
        "queue.declare (passive)": method(1, 50, 10, nothing + queue + octet(1) + NO_ARGUMENTS),
        "queue.bind": method(1, 50, 20, nothing + queue + exchange + short_string("k") + octet(0) + NO_ARGUMENTS),
        "queue.unbind": method(1, 50, 50, nothing + queue + exchange + short_string("k") + NO_ARGUMENTS),
        "queue.purge": method(1, 50, 30, nothing + queue + octet(0)),
        "queue.delete": method(1, 50, 40, nothing + short_string(names["queue"] + "-gone") + octet(0)),
        "basic.publish": publish(1, names["exchange"], "k", b"x"),
        "basic.consume": method(1, 60, 20, nothing + queue + short_string("") + octet(0) + NO_ARGUMENTS),
        "basic.get": method(1, 60, 70, nothing + queue + octet(0)),
        "basic.qos": method(1, 60, 10, bytes(7)),
        "basic.cancel": method(1, 60, 30, short_string("nobody") + octet(0)),
        "basic.ack": method(1, 60, 80, longlong(0) + octet(1)),
        "basic.nack": method(1, 60, 120, longlong(0) + octet(1)),
        "basic.reject": method(1, 60, 90, longlong(1) + octet(0)),
        "basic.recover": method(1, 60, 110, octet(1)),
        "basic.recover-async": method(1, 60, 100, octet(1)),
        "confirm.select": method(1, 85, 10, octet(0)),
        "tx.*": method(1, 90, 10),
    }


def amqp_extra(names: dict[str, str]) -> list[tuple[str, bytes]]:
    exchange = names["exchange"]
    fresh = short_string(names["queue"] + "-fresh")
    dead = table(x_dead_letter_exchange=exchange)
    alternate = table(alternate_exchange=exchange)
    return [
        ("queue.declare queue.dead_letter", method(1, 50, 10, short(0) + fresh + octet(2) + dead)),
        (
            "exchange.declare exchange.alternate",
            method(1, 40, 10, short(0) + fresh + short_string("topic") + octet(2) + alternate),
        ),
    ]


def test_every_amqp_method_has_an_entry(web: World) -> None:
    for name in amqp_methods():
        assert name in AMQP or f"{name.partition('.')[0]}.*" in AMQP, name
    assert set(amqp_cases(Shop(web).stock())) | {"connection.*"} == set(AMQP)


def test_every_amqp_method_answers_as_the_table_says(web: World, people: list[Who]) -> None:
    address = web.server.addresses["amqp"]
    names = Shop(web).stock()
    wrong = []
    for who in people:
        if who.anonymous and not who.valid:
            continue
        client = AmqpClient(address, who)
        asked["AMQP"] += 1
        assert client.open is who.valid, who.name
        if client.open:
            cases = [(AMQP[name][:1], name, data) for name, data in amqp_cases(names).items()]
            cases += [(tuple(each.split()), each, data) for each, data in amqp_extra(names)]
            for operations, name, data in cases:
                allowed = all(who.may(each) for each in operations)
                # of a tenant that has none of this, the answer is 404
                if client.refused(name, data) is allowed:
                    wrong.append(f"{name} by {who.name}: the table says {'allowed' if allowed else 'refused'}")
        client.close()
    assert not wrong, "\n".join(wrong)


# Lines


class LineClient:
    """A peer that speaks lines; without a user it is the guest of this machine."""

    def __init__(self, address: str, who: Who) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), 30)
        self._file = self._sock.makefile("rb")
        self.open = True
        if not (who.user == "guest" and who.valid):
            self._sock.sendall(f"AUTH {who.user or 'nobody'} {who.password or 'nothing'}\n".encode())
            answer = self._file.readline()
            self.open = b"Error" not in answer and answer != b""

    def refused(self, line: str) -> bool:
        asked["line"] += 1
        self._sock.sendall(f"{line}\nPING\n".encode())
        found = b""
        while (answer := self._file.readline()) not in (b"PONG\n", b"PONG\r\n"):
            assert answer, line
            found += answer
        return b"refused for user" in found

    def close(self) -> None:
        self._file.close()
        self._sock.close()


def line_cases(names: dict[str, str]) -> dict[str, str]:
    queue, exchange = names["queue"], names["exchange"]
    return {
        "DECLARE_EXCHANGE": f"DECLARE_EXCHANGE {exchange} topic",
        "DECLARE_QUEUE": f"DECLARE_QUEUE {queue}-line",
        "BIND_QUEUE": f"BIND_QUEUE {queue} {exchange} key",
        "PUBLISH": f"PUBLISH {exchange} key text",
        "CONSUME": f"CONSUME {queue}",
        "CANCEL": f"CANCEL {queue}",
        "ACK": f"ACK {queue} text",
        "RETRY": f"RETRY {queue} text",
        "RELEASE": f"RELEASE {queue} text",
        "REJECT": f"REJECT {queue} text",
        "TRACE": "TRACE off",
        "PING": "PING",
        "HELP": "HELP PING",
    }


def test_every_line_command_answers_as_the_table_says(web: World, people: list[Who]) -> None:
    assert set(LINE) == set(COMMANDS)
    names = Shop(web).stock()
    wrong = []
    # AUTH begins each connection, and QUIT ends one
    assert set(line_cases(names)) | {"AUTH", "QUIT"} == set(COMMANDS)
    for who in people:
        if who.anonymous and not who.valid:
            continue
        client = LineClient(web.server.addresses["line"], who)
        asked["line"] += 1
        assert client.open is who.valid, who.name
        if client.open:
            cases = [(LINE[verb][:1], line) for verb, line in line_cases(names).items() if verb != "PING"]
            dead = ("queue.declare", "queue.dead_letter")
            cases.append((dead, f"DECLARE_QUEUE {names['queue']}-2 dead_letter_exchange={names['exchange']}"))
            cases.append((dead, f"DECLARE_QUEUE {names['queue']}-3 dead_letter_queue={names['queue']}"))
            for operations, line in cases:
                allowed = all(who.may(each) for each in operations)
                if client.refused(line) is allowed:
                    wrong.append(f"{line} by {who.name}: the table says {'allowed' if allowed else 'refused'}")
        client.close()
    assert not wrong, "\n".join(wrong)


# The guest of another machine


def test_the_guest_of_another_machine_is_refused_everywhere(tmp_path: Path) -> None:
    """With the address that the PROXY protocol tells, on every route and both other faces; the one of this machine is
    let in over the same listeners.
    """
    many = str(10**6)
    with world(tmp_path, line_port=0, proxy_protocol="http,amqp,line", login_failures_max=many) as web:

        def ask_from(address: str, route: Route) -> int:
            asked["HTTP"] += 1
            path = route.template.replace("{", "").replace("}", "")
            head = f"PROXY TCP4 {address} {address} 4711 80\r\n{route.method} {path} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Authorization: {basic('guest', 'guest')}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            with web.connect() as raw:
                raw.send(head.encode())
                return raw.answer()[0]

        def let_in(face: str, address: str) -> bool:
            asked[face] += 1
            host, _, port = web.server.addresses[face.lower()].rpartition(":")
            with socket.create_connection((host, int(port)), 30) as sock:
                sock.sendall(f"PROXY TCP4 {address} {address} 4711 80\r\n".encode())
                if face == "line":
                    sock.sendall(b"CONSUME nothing\n")
                    return b"does not exist" in sock.recv(1_000)
                sock.sendall(PROTOCOL)
                received = sock.recv(65536)
                sock.sendall(start_ok())
                while received := sock.recv(65536):
                    names = [found.name for found in frames(received) if found.kind == 1]
                    if (10, 30) in names or (10, 50) in names:
                        return (10, 30) in names
                return False

        for route in web.web.router.routes:
            if not route.public:
                assert ask_from("192.0.2.7", route) == 401, (route.method, route.template)
        lists = next(route for route in web.web.router.routes if route.template == "/api/v1/queues")
        assert ask_from("127.0.0.1", lists) == 200
        for face in ("AMQP", "line"):
            assert let_in(face, "127.0.0.1"), face
            assert not let_in(face, "192.0.2.7"), face


# The table itself


def test_every_operation_is_used() -> None:
    """A line of the table that no face asks for would tell readers of a check that is not made."""
    named = {each for operations in (*AMQP.values(), *LINE.values()) for each in operations}
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/rookery/wire").rglob("*.py"))
    assert [name for name in OPERATIONS if name not in named and f'"{name}"' not in source] == []


def test_the_page_of_rights_is_up_to_date(web: World) -> None:
    spec = importlib.util.spec_from_file_location("make_rights", ROOT / "tools" / "make_rights.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    written = (ROOT / "docs" / "rights.md").read_text(encoding="utf-8")
    assert written == tool.page(written, web.web.router.routes), "run tools/make_rights.py"


def test_the_size_of_the_matrix(people: list[Who]) -> None:
    """Says how much was asked (`pytest -s`), where the whole module runs."""
    size = ", ".join(f"{count} over {face}" for face, count in asked.items())
    print(
        f"rights matrix: {len(OPERATIONS)} operations, {len(people)} principals, {sum(asked.values())} requests: {size}"
    )
