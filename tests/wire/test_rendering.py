"""What was accepted can be read by every face: arbitrary property lists go in by each way, and out by every other.

What is shown is compared with `docs/properties.md`, as `property_lists` has it. All counts are compared too: nothing is
lost on the way, whatever its properties say.
"""

from __future__ import annotations

import io
import json
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from rookery import _compiled, client, embed
from rookery.core.shard import Shard
from rookery.embed.messages import unpack
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.fieldtables import DEPTH_MAX, FIELDS_MAX
from rookery.format.properties import Properties, Timestamp
from rookery.format.rendering import content_of
from rookery.wire.api import handling
from rookery.wire.api.compat import pulling
from rookery.wire.packed import PACKED, PackedPublish, PackedWork, decode_messages, decode_page, encode
from tests.wire import amqp_peer
from tests.wire.http_world import ADMIN, World, world
from tests.wire.property_lists import (
    ANY_BYTES,
    FIELDS,
    LISTS,
    WIDTHS,
    Field,
    PropertyList,
    deep,
    is_legal,
    is_printed_as,
    legible,
    sized,
    without_nan,
)
from tests.wire.receiver import Receiver, receiving
from tests.wire.socket_reader import SocketReader
from tests.wire.test_push import Events

API = "/api/v1"
ALL = "all"
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
TAKE = {"Accept": PACKED}
SEND = {"Content-Type": PACKED}
DEATH: dict[str, object] = {
    "queue": "q",
    "reason": "rejected",
    "exchange": "",
    "count": 1,
    "time": Timestamp(1_700_000_000),
}
"""A row of the header x-death, as RabbitMQ and Rookery write it."""

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Examples are small enough as they are, and each starts a server where the one before it failed."""

PULLED = ("claim", "leased", "packed", "pull", "pull-one", "small", "look", "peek", "cut", "amqp", "dead", "client")
PUSHED = ("events", "socket", "line", "oldest", "webhook")


# Speaking AMQP and the line protocol


class Amqp:
    """A connection with one channel, over a real socket."""

    def __init__(self, address: str, frame_max: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._data = b""
        self._socket.sendall(amqp_peer.PROTOCOL)
        self.expect(10, 10)
        self._socket.sendall(amqp_peer.start_ok())
        self.expect(10, 30)
        self._socket.sendall(amqp_peer.tune_ok(frame_max=frame_max) + amqp_peer.open_vhost())
        self.expect(10, 41)
        self.call(20, 10, amqp_peer.octet(0), 11)
        self.call(85, 10, amqp_peer.octet(0), 11)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def frame(self) -> amqp_peer.Frame:
        while len(self._data) < 7 or len(self._data) < 8 + struct.unpack_from(">I", self._data, 3)[0]:
            more = self._socket.recv(65536)
            assert more, "closed"
            self._data += more
        size = 8 + struct.unpack_from(">I", self._data, 3)[0]
        (found,) = amqp_peer.frames(self._data[:size])
        self._data = self._data[size:]
        return found

    def expect(self, class_id: int, method_id: int) -> amqp_peer.Frame:
        found = self.frame()
        assert found.name == (class_id, method_id), found
        return found

    def call(self, class_id: int, method_id: int, arguments: bytes, answer: int) -> amqp_peer.Frame:
        self._socket.sendall(amqp_peer.method(1, class_id, method_id, arguments))
        return self.expect(class_id, answer)

    def publish(self, props: bytes, body: bytes = b"x", exchange: str = ALL, key: str = "") -> int:
        """Publish and wait: 0 when it was confirmed, else the code with which the channel or connection was closed."""
        self._socket.sendall(amqp_peer.publish(1, exchange, key, body, props))
        answer = self.frame()
        if answer.name == (60, 80):
            return 0
        assert answer.name in ((10, 50), (20, 40)), answer
        (code,) = struct.unpack_from(">H", answer.arguments, 0)
        return int(code)

    def get(self, queue: str) -> bytes:
        """Take the next message, and give its properties."""
        arguments = amqp_peer.short(0) + amqp_peer.short_string(queue) + amqp_peer.octet(1)
        self.call(60, 70, arguments, 71)
        header = self.frame()
        assert header.kind == 2
        if header.payload[4:12] != bytes(8):
            assert self.frame().kind == 3
        return header.payload[12:]


class Line:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._file = self._socket.makefile("rb")

    def send(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def next(self) -> str:
        return self._file.readline().decode().rstrip("\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


# A server whose messages go to a queue for each way to read


class Readers:
    """One queue, bound to one exchange, for each way to read, and the readers that stay connected."""

    def __init__(self, web: World, receiver: Receiver, opened: ExitStack, connected: bool) -> None:
        self.web = web
        self.http = web.admin
        self.position = 0
        self.epoch = 0
        self._cut = 0
        self._receiver = receiver
        ok(self.http.put(f"{API}/exchanges/{ALL}", json={"kind": "fanout"}))
        plain = {"lease_ms": 600_000, "max_attempts": 0, "ordered": False}
        ok(self.http.put(f"{API}/queues/dead.DLQ", json=plain))
        for name in (*PULLED, *PUSHED):
            ok(self.http.put(f"{API}/queues/{name}", json=plain))
            self._bind(name, "queue")
        ok(self.http.put(f"{API}/streams/stream"))
        self._bind("stream", "stream")
        if connected:
            self._connect(opened)

    def _connect(self, opened: ExitStack) -> None:
        web = self.web
        self.link = opened.enter_context(Amqp(web.server.addresses["amqp"]))
        self._socket = opened.enter_context(SocketReader(web.address, f"{API}/queues/socket"))
        headers = {"Authorization": f"Bearer {ADMIN}"}
        streaming = opened.enter_context(httpx.Client(base_url=web.base, headers=headers, timeout=30, trust_env=False))
        accept = {"Accept": "text/event-stream"}
        events = streaming.stream("GET", f"{API}/queues/events/stream", headers=accept)
        self._events = Events(opened.enter_context(events))
        self._oldest = Events(opened.enter_context(streaming.stream("GET", "/consume?queue=oldest")))
        self._line = Line(web.server.addresses["line"])
        opened.callback(self._line.close)
        self._line.send("CONSUME line ack=auto")
        hook = {"endpoint": self._receiver.url, "format": "cloudevents"}
        ok(self.http.post(f"{API}/queues/webhook/webhooks", json=hook))
        self.broker = opened.enter_context(client.connect(f"http://{ADMIN}@{web.address}"))

    def _bind(self, name: str, kind: str) -> None:
        ok(self.http.post(f"{API}/bindings", json={"source": ALL, "target": name, "target_kind": kind}))

    def read_all(self, wanted: list[PropertyList], body: str = "x") -> None:
        """Read everything everywhere; `wanted` are the lists in the order in which they were published."""
        for name in (*PULLED, *PUSHED):
            shown = getattr(self, name.replace("-", "_"))(len(wanted))
            assert len(shown) == len(wanted), name
            for one, props in zip(shown, wanted, strict=True):
                if one is not None:
                    check_shown(name, one, props)
        self.read_stream(wanted)
        assert self.left() == {}

    def left(self) -> dict[str, int]:
        """What is still in a queue; what was pushed is acked when it is known to have arrived."""

        def count(server: Any) -> dict[str, int]:
            queues = server.engine.shard.tenants["default"].queues
            return {name: int(queue.ready) for name, queue in queues.items() if queue.ready}

        return dict(self.web.inside(count))

    # Each takes so many messages out of the queue of its name

    def claim(self, count: int) -> list[Any]:
        return list(ok(self.http.post(f"{API}/queues/claim/claim", json={"max": count, "ack": True}))["deliveries"])

    def leased(self, count: int) -> list[Any]:
        found = ok(self.http.post(f"{API}/queues/leased/claim", json={"max": count}))["deliveries"]
        leases = {"leases": [each["lease"] for each in found], "outcome": "ack"}
        assert ok(self.http.post(f"{API}/queues/leased/settle", json=leases))["settled"] == count
        return list(found)

    def packed(self, count: int) -> list[Any]:
        answer = self.http.post(f"{API}/queues/packed/claim", json={"max": count, "ack": True}, headers=TAKE)
        assert answer.status_code == 200, answer.text
        return [{"wire": each.props} for each in decode_messages(answer.content)]

    def pull(self, count: int) -> list[Any]:
        return list(ok(self.http.post(f"{API}/queues/pull/pull?max={count}&auto_ack=true"))["messages"])

    def pull_one(self, count: int) -> list[Any]:
        return [ok(self.http.post(f"{API}/queues/pull-one/pull?auto_ack=true")) for _ in range(count)]

    def small(self, count: int) -> list[Any]:
        for _ in range(count):
            found = ok(self.http.post("/claim?queue=small"))
            ok(self.http.post("/ack", params={"queue": "small", "message_id": found["message_id"]}))
        return [None] * count

    def look(self, count: int) -> list[Any]:
        found = ok(self.http.get(f"{API}/queues/look/messages?limit={count}"))["messages"]
        answer = self.http.get(f"{API}/queues/look/messages?limit={count}", headers=TAKE)
        assert len(decode_messages(answer.content)) == count
        assert ok(self.http.post(f"{API}/queues/look/purge"))["purged"] == count
        return list(found)

    def peek(self, count: int) -> list[Any]:
        found = ok(self.http.get(f"{API}/queues/peek/peek?max={count}"))["messages"]

        def embedded(server: Any) -> list[Any]:
            shard = server.engine.shard
            entries = shard.tenants["default"].queues["peek"].ready_entries()
            return [without_nan(unpack(entry, shard.ids).meta) for entry in entries]

        for one, meta in zip(found, self.web.inside(embedded), strict=True):
            one["meta"] = meta
        ok(self.http.post(f"{API}/queues/peek/purge"))
        return list(found)

    def cut(self, count: int) -> list[Any]:
        root = f"{API}/queues/cut/cuts"
        made = ok(self.http.post(root, json={"consumer": "c", "after": self._cut, "max": count}))
        place = f"{root}/c/{made['cut']}"
        found = ok(self.http.get(place))["messages"]
        packed = self.http.get(place, headers=TAKE)
        assert len(decode_messages(packed.content)) == count
        table = read_arrow(self.http.get(place, headers=ARROW))
        for one, row in zip(found, table, strict=True):
            one["column"] = row["headers"]
        assert ok(self.http.post(f"{root}/c/ack", json={"upto": made["cut"]}))["messages"] == count
        self._cut = made["cut"]
        return list(found)

    def amqp(self, count: int) -> list[Any]:
        return [{"wire": self.link.get("amqp")} for _ in range(count)]

    def dead(self, count: int) -> list[Any]:
        found = ok(self.http.post(f"{API}/queues/dead/claim", json={"max": count}))["deliveries"]
        leases = {"leases": [each["lease"] for each in found], "outcome": "reject"}
        ok(self.http.post(f"{API}/queues/dead/settle", json=leases))
        small = ok(self.http.get("/dead_letters?queue=dead"))["dead_letters"]
        letters = ok(self.http.get(f"{API}/queues/dead.DLQ/messages?limit={count}"))["messages"]
        assert [each.get("headers") for each in small] == [each.get("headers") for each in letters]
        ok(self.http.post(f"{API}/queues/dead.DLQ/redrive", json={"dry_run": True}))
        for index in range(count):
            # over AMQP with the headers that a death adds
            assert is_legal(self.link.get("dead.DLQ")), index
        return list(letters)

    def client(self, count: int) -> list[Any]:
        found = []
        queue = self.broker.queue("client")
        for delivery in queue.claim(count):
            found.append({"meta": without_nan(delivery.message.meta)})
            delivery.ack()
        return found

    def events(self, count: int) -> list[Any]:
        return [self._events.next()[1] for _ in range(count)]

    def socket(self, count: int) -> list[Any]:
        return self._socket.take(count)

    def line(self, count: int) -> list[Any]:
        got = 0
        while got < count:
            got += self._line.next().startswith("Consumed message: ")
        return [None] * count

    def oldest(self, count: int) -> list[Any]:
        for _ in range(count):
            assert "data" in self._oldest.block()
        return [None] * count

    def webhook(self, count: int) -> list[Any]:
        for _ in range(count):
            json.loads(self._receiver.next().body)
        return [None] * count

    def read_stream(self, wanted: list[PropertyList]) -> None:
        place = f"{API}/streams/stream/records?from={self.position}"
        page = ok(self.http.get(place))["records"]
        packed = decode_page(self.http.get(place, headers=TAKE).content).records
        table = read_arrow(self.http.get(place, headers=ARROW))
        for index, props in enumerate(wanted):
            check_shown("records", page[index], props)
            assert packed[index].message.props == props.wire()
            check_column(table[index]["headers"], props)
            assert table[index]["correlation_id"] == legible_or_none(props, "correlation_id")
        assert len(page) == len(packed) == len(table) == len(wanted)
        self.position += len(wanted)


def legible_or_none(props: PropertyList, name: str) -> str | None:
    return legible(props.values[name]) if name in props.values else None


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code in (200, 201), (answer.status_code, answer.text[:1_000])
    return answer.json()


def read_arrow(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    table.validate(full=True)
    return list(table.to_pylist())


def check_column(shown: list[dict[str, Any]], props: PropertyList) -> None:
    wanted = props.headers_column()
    assert [each["key"] for each in shown] == [name for name, _ in wanted]
    for each, (_, value) in zip(shown, wanted, strict=True):
        assert is_printed_as(value, each["value"]), (each, value)


def check_shown(where: str, one: dict[str, Any], props: PropertyList) -> None:
    """Compare what a face shows with what was published, as far as that face shows it."""
    if "wire" in one:
        assert one["wire"] == props.wire(), where
        return
    if "meta" in one:
        assert one.pop("meta") == props.headers_python(), where
        if not one:
            return
    if "column" in one:
        check_column(one.pop("column"), props)
    assert one.get("headers") == props.headers_json(), where
    for name in ("correlation_id", "reply_to"):
        assert (one.get(name) or None) == props.text(name), (where, name)
    if props.text("message_id"):
        assert one["message_id"] == props.text("message_id"), where
    if "attempt" in one:
        stamp = props.values.get("timestamp")
        assert one.get("timestamp_ms") == (None if stamp is None else stamp * 1_000), where
        assert (one.get("content_type") or None) == props.text("content_type"), where
        assert (one.get("type") or None) == props.text("type"), where


@contextmanager
def reading(folder: Path, connected: bool = True) -> Iterator[Readers]:
    with (
        world(folder, line_port=0, store_backend="journal", events_rate="1000", claim_wait_sec="5") as web,
        receiving() as receiver,
        ExitStack() as opened,
    ):
        yield Readers(web, receiver, opened, connected)


class Rig:
    """The readers for all examples; after one that failed, others, so that the next begins with empty queues."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._opened = ExitStack()
        self._readers: Readers | None = None

    @contextmanager
    def readers(self) -> Iterator[Readers]:
        if self._readers is None:
            self._readers = self._opened.enter_context(reading(self._factory.mktemp("rendering")))
        try:
            yield self._readers
        except BaseException:
            self._readers = None
            raise

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory)
    yield made
    made.close()


# Ways in


def over_amqp(readers: Readers, lists: list[bytes]) -> None:
    for wire in lists:
        assert readers.link.publish(wire) == 0


def over_amqp_in_a_transaction(readers: Readers, lists: list[bytes]) -> None:
    with Amqp(readers.web.server.addresses["amqp"]) as link:
        link.call(20, 40, amqp_peer.short(200) + b"\x00" + amqp_peer.short(0) + amqp_peer.short(0), 41)
        link.call(20, 10, amqp_peer.octet(0), 11)
        link.call(90, 10, b"", 11)
        for wire in lists:
            link._socket.sendall(amqp_peer.publish(1, ALL, "", b"x", wire))
        link.call(90, 20, b"", 21)


def packed(readers: Readers, lists: list[bytes]) -> None:
    content = encode([PackedPublish(wire, b"x") for wire in lists])
    ok(readers.http.post(f"{API}/exchanges/{ALL}/messages", content=content, headers=SEND))


def packed_in_a_transaction(readers: Readers, lists: list[bytes]) -> None:
    work = PackedWork([PackedPublish(wire, b"x", exchange=ALL) for wire in lists], [])
    ok(readers.http.post(f"{API}/transactions", content=encode(work), headers=SEND))


def stage(readers: Readers, exchange: str, lists: list[bytes]) -> None:
    """Stage and commit rows for an exchange."""
    content = encode([PackedPublish(wire, b"x") for wire in lists])
    chunk = ok(readers.http.post(f"{API}/exchanges/{exchange}/stage", content=content, headers=SEND))
    readers.epoch += 1
    body = {"epoch": readers.epoch, "chunks": [chunk["chunk"]]}
    assert ok(readers.http.post(f"{API}/producers/p/commit", json=body))["rows"] == len(lists)


def staged(readers: Readers, lists: list[bytes]) -> None:
    stage(readers, ALL, lists)
    # what is staged for an exchange is published a little later, slice by slice
    for _ in range(3_000):
        if int(ok(readers.http.get(f"{API}/queues/claim"))["stats"]["ready"]) == len(lists):
            return
        threading.Event().wait(0.01)
    raise AssertionError("the rows were not published")


WAYS = (over_amqp, over_amqp_in_a_transaction, packed, packed_in_a_transaction, staged)


@settings(max_examples=25, phases=UNSHRUNK)
@given(st.lists(LISTS, min_size=1, max_size=5), st.sampled_from(WAYS))
@example([PropertyList({}, [(b"at", ("T", 1_700_000_000)), (b"far", ("T", (1 << 64) - 1))])] * 3, over_amqp)
@example([PropertyList({}, [(b"x-deaths", ("A", [("F", [(b"time", ("T", 1))])]))])], packed)
@example([PropertyList({"timestamp": (1 << 64) - 1, "message_id": b"\xff"}, [(b"", ("d", math.nan))])], over_amqp)
def test_every_legal_list_is_shown_by_every_face(
    rig: Rig, lists: list[PropertyList], way: Callable[[Readers, list[bytes]], None]
) -> None:
    with rig.readers() as readers:
        way(readers, [each.wire() for each in lists])
        readers.read_all(lists)


def field_of(value: Any) -> Field:
    """A JSON value as it travels in headers."""
    if isinstance(value, bool):
        return ("t", int(value))
    if isinstance(value, int):
        return ("I" if -(1 << 31) <= value < 1 << 31 else "l", value)
    if isinstance(value, float):
        return ("d", value)
    if isinstance(value, str):
        return ("S", value.encode())
    if isinstance(value, list):
        return ("A", [field_of(each) for each in value])
    return ("V", None) if value is None else ("F", fields_of(value))


def fields_of(table: dict[str, Any]) -> list[tuple[bytes, Field]]:
    return [(name.encode(), field_of(value)) for name, value in table.items()]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
JSON_HEADERS = st.dictionaries(
    TEXTS.filter(lambda name: name not in ("CC", "BCC")), JSON_VALUES, min_size=1, max_size=4
)


@settings(max_examples=15, phases=UNSHRUNK)
@given(st.lists(JSON_HEADERS, min_size=1, max_size=4), st.sampled_from(["json", "lines", "client"]))
def test_headers_that_came_as_json_or_python_are_shown_by_every_face(
    rig: Rig, tables: list[dict[str, Any]], way: str
) -> None:
    items = [{"message": "x", "headers": table, "content_type": "text/plain"} for table in tables]
    values = {"content_type": b"text/plain", "delivery_mode": 2}
    with rig.readers() as readers:
        if way == "client":
            exchange = readers.broker.exchange(ALL, kind="fanout")
            for table in tables:
                exchange.publish("", embed.Message("x", meta=table))
        else:
            content = json.dumps(items) if way == "json" else "\n".join(map(json.dumps, items))
            kind = "application/json" if way == "json" else "application/x-ndjson"
            place = f"{API}/exchanges/{ALL}/messages"
            ok(readers.http.post(place, content=content, headers={"Content-Type": kind}))
        readers.read_all([PropertyList(values, fields_of(table)) for table in tables])


# What is refused


def refusals(readers: Readers, wire: bytes) -> list[int]:
    """How each way in answers to a list; 0 where it was accepted."""
    content = encode([PackedPublish(wire, b"x")])
    work = encode(PackedWork([PackedPublish(wire, b"x", exchange="", routing_key="any")], []))
    found = [
        readers.http.post(f"{API}/{path}", content=body, headers=SEND).status_code
        for path, body in (
            ("queues/any/messages", content),
            ("queues/any/messages", encode([PackedPublish(wire, b"x"), PackedPublish(b"\x00\x00", b"y")])),
            ("transactions", work),
            ("streams/any-stream/publish", content),
            ("streams/any-stream/stage", content),
        )
    ]
    return [0 if status in (200, 201) else status for status in found]


@settings(max_examples=60, phases=UNSHRUNK)
@given(ANY_BYTES)
@example(b"\x21\x00" + sized(b"") + b"\x02-1\x00")
@example(deep(33, b"F"))
@example(deep(33, b"A"))
def test_a_list_is_accepted_exactly_if_it_is_legal_and_then_shown_by_all(rig: Rig, wire: bytes) -> None:
    with rig.readers() as readers:
        for path in ("queues/any", "streams/any-stream"):
            readers.http.put(f"{API}/{path}")
        legal = is_legal(wire)
        assert refusals(readers, wire) == [0 if legal else 400] * 5
        with Amqp(readers.web.server.addresses["amqp"]) as link:
            code = link.publish(wire, exchange="", key="any")
            # a frame too short for the flags is no content header at all
            assert code in ((0, 406) if legal else (501 if len(wire) < 2 else 502,))
        accepted = 4 * legal + (code == 0)
        looked = ok(readers.http.get(f"{API}/queues/any/messages"))
        assert looked["count"] == accepted
        assert len(ok(readers.http.get(f"{API}/queues/any/peek?max=100"))["messages"]) == accepted
        shown = ok(readers.http.post(f"{API}/queues/any/claim", json={"max": 100, "ack": True}))["deliveries"]
        assert len(shown) == accepted
        assert not any("x-undecodable" in (each.get("headers") or {}) for each in shown)
        assert len(read_arrow(readers.http.get(f"{API}/streams/any-stream/records", headers=ARROW))) == legal
        assert ok(readers.http.get(f"{API}/queues/any/messages"))["count"] == 0
        ok(readers.http.delete(f"{API}/streams/any-stream"))


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"long": "x" * properties.BYTES_MAX}, "bytes"),
        ({"many": [None] * FIELDS_MAX}, "fields"),
        ({"many": {str(n): None for n in range(9_000)}, "more": [1] * 1_000}, "fields"),
    ],
)
def test_headers_beyond_the_limits_are_refused_by_every_way_in(rig: Rig, headers: dict[str, Any], wanted: str) -> None:
    wire = PropertyList({}, fields_of(headers)).wire()
    assert is_legal(wire)
    with rig.readers() as readers, embed.Broker() as broker:
        for path in ("queues/any", "streams/any-stream"):
            readers.http.put(f"{API}/{path}")
        assert refusals(readers, wire) == [400] * 5
        if len(wire) < properties.BYTES_MAX:
            with Amqp(readers.web.server.addresses["amqp"]) as link:
                assert link.publish(wire, exchange="", key="any") == 502
        for path in ("queues/any/messages", "queues/any/publish", "streams/any-stream/publish"):
            answer = readers.http.post(f"{API}/{path}", json={"message": 1, "headers": headers})
            assert answer.status_code == 400
            assert wanted in answer.json()["message"]
            assert answer.json()["argument"] == "headers"
        for one in (broker, readers.broker):
            with pytest.raises(InvalidArgument, match=wanted):
                one.queue("any").publish(embed.Message("x", meta=headers))
        assert ok(readers.http.get(f"{API}/queues/any/messages"))["count"] == 0
        ok(readers.http.delete(f"{API}/streams/any-stream"))


def test_headers_at_the_limits_are_shown_by_every_face(rig: Rig) -> None:
    long = properties.BYTES_MAX - len(PropertyList({}, [(b"a", ("S", b""))]).wire())
    many = PropertyList({}, [(b"a", ("A", [("V", None)] * (FIELDS_MAX - 1)))])
    with rig.readers() as readers:
        lists = [PropertyList({}, [(b"a", ("S", b"x" * long))]), many]
        over_amqp(readers, [each.wire() for each in lists])
        readers.read_all(lists)


# Consumers whose frames are small


def test_headers_that_do_not_fit_the_frames_of_a_consumer_are_left_out(rig: Rig) -> None:
    props = PropertyList({"content_type": b"a/b", "message_id": b"m"}, [(b"a", ("S", b"x" * 5_000))])
    with rig.readers() as readers:
        ok(readers.http.put(f"{API}/queues/wide"))
        assert readers.link.publish(props.wire(), exchange="", key="wide") == 0
        with Amqp(readers.web.server.addresses["amqp"], frame_max=4_096) as link:
            got = properties.decode(link.get("wide"))
    size = len(props.wire()) - len(b"\xa0\x80\x03a/b\x01m") - 4
    assert got == Properties(content_type="a/b", message_id="m", headers={"x-headers-omitted": size})


# Nothing is settled before its answer is rendered


def dated() -> bytes:
    return properties.encode(
        Properties(headers={"x-death": [DEATH], "at": Timestamp(5), "far": Timestamp((1 << 64) - 1)})
    )


@pytest.mark.parametrize(
    "path",
    ["queues/{}/claim", "queues/{}/pull?max=10&auto_ack=true"],
)
def test_a_claim_that_acks_loses_nothing_to_a_timestamp(rig: Rig, path: str) -> None:
    with rig.readers() as readers:
        readers.http.put(f"{API}/queues/ten")
        for number in range(9):
            ok(readers.http.post(f"{API}/queues/ten/publish", json={"message": number}))
        assert readers.link.publish(dated(), exchange="", key="ten") == 0
        body = {"max": 10, "ack": True} if "claim" in path else None
        found = ok(readers.http.post(f"{API}/{path.format('ten')}", json=body))
        shown = found.get("deliveries") or found["messages"]
        assert [each["message"] for each in shown] == [*range(9), "x"]
        assert shown[9]["headers"]["x-death"][0]["time"] == 1_700_000_000
        assert shown[9]["headers"]["far"] == (1 << 64) - 1


@pytest.mark.skipif(_compiled.compiled, reason="a function of a compiled module cannot be replaced")
@pytest.mark.parametrize("path", ["claim", "pull"])
@pytest.mark.parametrize("acks", [True, False])
def test_a_message_that_cannot_be_rendered_is_kept_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, acks: bool
) -> None:
    """Rendering is total; should it fail after all, that costs nobody a message."""

    def broken(message: Any) -> Any:
        if message.body == b"4":
            raise TypeError("seeded")
        return content_of(message)

    monkeypatch.setattr(handling, "content_of", broken)
    monkeypatch.setattr(pulling, "content_of", broken)
    query = f"pull?max=10&auto_ack={str(acks).lower()}" if path == "pull" else "claim"
    with world(tmp_path, backoff_base_ms="0") as web:
        web.admin.put(f"{API}/queues/q", json={"max_attempts": 0, "backoff_base_ms": 0})
        for number in range(6):
            ok(web.admin.post(f"{API}/queues/q/publish", json={"message": number}))
        body = {"max": 10, "ack": acks} if path == "claim" else None
        found = ok(web.admin.post(f"{API}/queues/q/{query}", json=body))
        shown = found.get("deliveries") or found["messages"]
        assert [each["message"] for each in shown] == [0, 1, 2, 3, 5]
        counts = ok(web.admin.get(f"{API}/queues/q/stats"))
        assert (counts["ready"] + counts["delayed"], counts["in_flight"]) == (1, 0 if acks else 5)
        assert counts["acked"] == (5 if acks else 0)
        assert web.admin.post(f"{API}/queues/q/{query}", json=body).status_code == 500
        assert "seeded" in web.log.getvalue()
        monkeypatch.undo()
        found = ok(web.admin.post(f"{API}/queues/q/{query}", json=body))
        assert [each["message"] for each in found.get("deliveries") or found["messages"]] == [4]


# Lists that an earlier version stored unchecked

STORED = (
    b"\x20\x00" + sized(b"\x01aZ\x00"),
    b"\x20\x00" + sized(b"\x05ab"),
    b"\x20\x00\xff\xff\xff\xff",
    b"\x80\x00\x09abc",
    b"\x00\x02",
    b"\x00",
    b"\xff\xfc",
    b"\x00\x00more",
    deep(40, b"F"),
    deep(2_000, b"A"),
    b"\x20\x00" + sized(b"\x01aF" + sized(b"\x01bS\x00\x00\xff\xff")),
)
"""Property lists that cannot be decoded."""


def test_stored_lists_that_are_malformed_are_shown_as_undecodable_by_every_face(tmp_path: Path) -> None:
    def store(server: Any) -> None:
        shard: Shard = server.engine.shard
        for wire in STORED:
            # straight into the core, past every check
            shard.publish(shard.tenants["default"], ALL, "", wire, b"x")

    with reading(tmp_path, connected=False) as readers:
        ok(readers.http.put(f"{API}/queues/graves"))
        died = {"max_attempts": 0, "dead_letter_exchange": "amq.headers", "ordered": False}
        ok(readers.http.put(f"{API}/queues/buried", json=died))
        ok(readers.http.post(f"{API}/bindings", json={"source": ALL, "target": "buried"}))
        bound = {"source": "amq.headers", "target": "graves", "arguments": {"x-match": "any", "no": 1}}
        ok(readers.http.post(f"{API}/bindings", json=bound))
        readers.web.inside(store)
    wanted = [PropertyList({"delivery_mode": 2}, [(b"x-undecodable", ("x", wire))]) for wire in STORED]
    with reading(tmp_path) as readers:
        found = ok(readers.http.post(f"{API}/queues/buried/claim", json={"max": 100}))["deliveries"]
        leases = {"leases": [each["lease"] for each in found], "outcome": "reject"}
        assert ok(readers.http.post(f"{API}/queues/buried/settle", json=leases))["settled"] == len(STORED)
        readers.read_all(wanted)
        ok(readers.http.post(f"{API}/streams/stream/seal"))
        readers.position = 0
        readers.read_stream(wanted)
        assert readers.web.lines("defect") == []


# Headers that go into the head of an answer


@pytest.mark.parametrize("parent", ["x" * 60_000, "00-\r\nInjected: 1", "\u2603", "00-" + "a" * 32])
def test_a_trace_that_is_none_is_not_answered(rig: Rig, parent: str) -> None:
    wire = PropertyList({}, [(b"traceparent", ("S", parent.encode())), (b"tracestate", ("S", parent.encode()))]).wire()
    with rig.readers() as readers:
        readers.http.put(f"{API}/queues/traced")
        for path in (f"{API}/queues/traced/pull", f"{API}/queues/traced/claim", "/claim?queue=traced"):
            assert readers.link.publish(wire, exchange="", key="traced") == 0
            answer = readers.http.post(path, json={} if path.endswith("/claim") else None)
            assert answer.status_code == 200
            assert not {"traceparent", "tracestate", "injected"} & set(answer.headers)
        ok(readers.http.delete(f"{API}/queues/traced"))


# Headers that mean something to the broker

TOLD = (
    *("x-delay", "x-death", "x-deduplication-header", "x-group-id", "x-key", "x-ack-id", "x-ack-timeout-ms"),
    *("x-deliver-at", "x-stream-offset", "timestamp_in_ms", "traceparent", "x-undecodable", "x-lost"),
)
TARGETS = {
    "queues/told-grouped": {"grouped": True},
    "queues/told-dedup": {"dedup": True},
    "queues/told-first": {"max_attempts": 1},
    "streams/told-stream": {"partitions": 3},
}


def told_to(readers: Readers) -> list[str]:
    """An exchange that delays, and behind it what looks into headers; the names of the queues."""
    words = amqp_peer.short_string("told") + amqp_peer.short_string("x-delayed-message") + amqp_peer.octet(2)
    readers.link.call(40, 10, amqp_peer.short(0) + words + amqp_peer.table(x_delayed_type="fanout"), 11)
    for path, said in TARGETS.items():
        ok(readers.http.put(f"{API}/{path}", json=said))
        kind, _, name = path.partition("s/")
        ok(readers.http.post(f"{API}/bindings", json={"source": "told", "target": name, "target_kind": kind}))
    return [path.partition("/")[2] for path in TARGETS if path.startswith("queues")]


@settings(max_examples=40, phases=UNSHRUNK)
@given(st.lists(st.tuples(st.sampled_from(TOLD).map(str.encode), FIELDS), min_size=1, max_size=4))
@example([(b"x-deliver-at", ("T", (1 << 64) - 1))])
@example([(b"x-deliver-at", ("l", (1 << 63) - 1))])
@example([(b"x-delay", ("T", (1 << 64) - 1)), (b"x-death", ("A", [("F", [(b"time", ("T", (1 << 64) - 1))])]))])
def test_headers_that_the_broker_heeds_may_hold_anything(rig: Rig, headers: list[tuple[bytes, Field]]) -> None:
    wire = PropertyList({}, headers).wire()
    content = encode([PackedPublish(wire, b"x")])
    with rig.readers() as readers:
        queues = told_to(readers)
        assert readers.link.publish(wire, exchange="told") == 0
        ok(readers.http.post(f"{API}/exchanges/told/messages", content=content, headers=SEND))
        ok(readers.http.post(f"{API}/streams/told-stream/publish", content=content, headers=SEND))
        stage(readers, "told", [wire])
        for name in queues:
            for state in ("ready", "delayed"):
                ok(readers.http.get(f"{API}/queues/{name}/messages?state={state}"))
            for outcome in ("reject", "ack"):
                found = ok(readers.http.post(f"{API}/queues/{name}/claim", json={"max": 1}))["deliveries"]
                leases = {"leases": [each["lease"] for each in found], "outcome": outcome}
                assert ok(readers.http.post(f"{API}/queues/{name}/settle", json=leases))["settled"] == len(found)
        for name in readers.left():
            ok(readers.http.get(f"{API}/queues/{name}/messages"))
            read = readers.http.post(f"{API}/queues/{name}/claim", json={"max": 100, "ack": True}, headers=TAKE)
            decode_messages(read.content)
        for partition in range(3):
            place = f"{API}/streams/told-stream/records?partition={partition}"
            ok(readers.http.get(place))
            read_arrow(readers.http.get(place, headers=ARROW))
        for path in (*TARGETS, "exchanges/told"):
            ok(readers.http.delete(f"{API}/{path}"))
        assert "Traceback" not in readers.web.log.getvalue()
        assert readers.left() == {}


# In one process


@settings(max_examples=40)
@given(st.lists(LISTS, min_size=1, max_size=4))
def test_the_embedded_broker_gives_back_every_value_it_was_given(lists: list[PropertyList]) -> None:
    """All values that Python tells apart; what it gives can be published again."""
    with embed.Broker() as broker:
        queue = broker.queue("q")
        tables = [properties.headers(each.wire()) for each in lists]
        for table in tables:
            queue.publish(embed.Message("x", meta=table))
        for each in lists:
            (delivery,) = queue.claim(1)
            assert without_nan(delivery.message.meta) == each.headers_python()
            queue.publish(delivery.message)
            delivery.ack()
        assert len(queue.claim(10)) == len(lists)


def test_every_type_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "properties.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    documented = {letter for row in rows for letter in re.findall("`([a-zA-Z])`", row.split("|")[1])}
    assert documented == {*WIDTHS, *"SxAF"}
    for limit in (properties.BYTES_MAX, DEPTH_MAX, FIELDS_MAX):
        assert f"{limit:,}" in page
