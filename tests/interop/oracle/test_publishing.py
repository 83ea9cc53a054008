"""What a publisher sees: returns, confirms, refusals; and what of a message reaches the consumer."""

from __future__ import annotations

from tests.interop.oracle.frames import BODY, HEADER, METHOD, Typed, header_payload, method_payload
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import Script


@scenario
def test_mandatory_without_a_route_returns_before_the_confirm(s: Script) -> None:
    channel = s.channel()
    channel.call("confirm.select")
    channel.publish("back", "nowhere", mandatory=True, content_type="text/plain", headers={"a": 1})
    channel.events(2)


@scenario
def test_mandatory_without_confirms(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.publish("taken", "q", mandatory=True)
    channel.publish("", "nowhere", mandatory=True)
    channel.publish("back", "nowhere", "amq.topic", mandatory=True)
    channel.expect("basic.return", 2)
    channel.get("q")


@scenario
def test_unroutable_without_mandatory_is_confirmed(s: Script) -> None:
    channel = s.channel()
    channel.call("confirm.select")
    channel.publish("gone", "nowhere")
    channel.publish("gone", "nowhere", "amq.fanout")
    channel.confirmed()


@scenario
def test_immediate_is_not_implemented(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.publish("now", "q", immediate=True)
    channel.events(1)
    channel.connection.end()


@scenario
def test_confirms_of_many(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", durable=True)
    channel.publish("before", "q")
    channel.call("confirm.select")
    for at in range(20):
        channel.publish(str(at), "q", delivery_mode=2)
    channel.confirmed()
    channel.call("confirm.select")
    channel.publish("after", "q")
    channel.confirmed()
    channel.get_all("q")


@scenario
def test_publish_to_a_missing_exchange(s: Script) -> None:
    channel = s.channel()
    channel.publish("hello", "k", "missing")
    channel.events(1)


@scenario
def test_publish_to_a_missing_exchange_and_go_on(s: Script) -> None:
    """Whatever follows on the channel until close-ok is passed over."""
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.publish("hello", "k", "missing")
    channel.publish("passed over", "q")
    channel.send("queue.declare", queue="passed-over")
    channel.expect("channel.close")
    again = connection.channel()
    again.call("queue.declare", queue="q", passive=True)
    again.call("queue.declare", queue="passed-over", passive=True)


@scenario
def test_every_property_comes_through(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.publish(
        "hello",
        "q",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1},
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1234567890,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.get("q")
    channel.publish("", "q")
    channel.get("q")
    channel.publish("", "q", content_type="", headers={}, delivery_mode=1, priority=255, timestamp=0)
    channel.get("q")


@scenario
def test_delivery_mode_that_is_unknown(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    for mode in (0, 3, 255):
        channel = connection.channel()
        channel.publish("hello", "q", delivery_mode=mode)
        channel.get("q")


@scenario
def test_header_values_of_every_type_come_through(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    headers: dict[str, object] = {
        "bool": True,
        "int8": Typed("b", -5),
        "uint8": Typed("B", 250),
        "int16": Typed("s", -500),
        "uint16": Typed("u", 60000),
        "int32": Typed("I", -70000),
        "uint32": Typed("i", 4000000000),
        "int64": -(2**60),
        "float": Typed("f", 0.5),
        "double": 0.1,
        "text": "häuser",
        "empty": "",
        "bytes": b"\x00\xff",
        "array": [1, "two", [3.0, None], {"four": True}],
        "table": {"inside": {"deeper": []}},
        "time": Typed("T", 1000),
        "nothing": None,
    }
    channel.publish("hello", "q", headers=headers)
    channel.get("q")


@scenario
def test_user_id_must_be_true(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.publish("mine", "q", user_id="guest")
    channel.get("q")
    channel.publish("not mine", "q", user_id="somebody")
    channel.events(1)


@scenario
def test_expiration_that_is_no_number(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    for text in ("soon", "-1", "1.5", "", " 1", "99999999999999999999"):
        channel = connection.channel()
        channel.publish("hello", "q", expiration=text)
        channel.get("q")


@scenario
def test_large_bodies_in_many_frames(s: Script) -> None:
    connection = s.connect(frame_max=4096)
    channel = connection.channel()
    channel.queue("q")
    channel.publish(b"a" * 4088, "q")
    channel.publish(b"b" * 4089, "q")
    channel.publish(b"c" * 50000, "q")
    channel.get_all("q")
    wide = s.channel()
    wide.publish(b"d" * 300000, "q")
    wide.get("q")


@scenario
def test_body_in_uneven_frames(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.write_frame(METHOD, method_payload("basic.publish", {"key": "q"}))
    channel.write_frame(HEADER, header_payload(5, {}))
    for part in (b"h", b"", b"ell", b"o"):
        channel.write_frame(BODY, part)
    channel.get("q")


@scenario
def test_methods_of_other_channels_between_the_frames_of_a_content(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    other = connection.channel()
    channel.queue("q")
    channel.write_frame(METHOD, method_payload("basic.publish", {"key": "q"}))
    other.queue("r")
    channel.write_frame(HEADER, header_payload(5, {}))
    other.publish("in between", "r")
    channel.write_frame(BODY, b"hello")
    channel.get("q")
    other.get("r")


@scenario
def test_direct_reply_to(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    worker = s.channel()
    worker.queue("requests")
    channel.publish("question", "requests", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    channel.call("exchange.declare", exchange="amq.direct", passive=True)
    request = worker.get("requests")
    address = str((request.properties or {}).get("reply_to"))
    worker.call("confirm.select")
    worker.publish("answer", address, correlation_id="1")
    worker.confirmed()
    channel.expect("basic.deliver")
    worker.publish("second answer", address)
    worker.confirmed()
    channel.expect("basic.deliver")
    worker.call("queue.declare", queue=address, passive=True)
    channel.call("basic.cancel", tag="replies")
    worker.publish("too late", address, mandatory=True)
    worker.expect("basic.return")
    worker.confirmed()
    worker.call("queue.declare", queue=address, passive=True)


@scenario
def test_direct_reply_to_used_wrongly(s: Script) -> None:
    connection = s.connect()
    connection.channel().consume("amq.rabbitmq.reply-to", "c")
    channel = connection.channel()
    channel.publish("no consumer", "q", reply_to="amq.rabbitmq.reply-to")
    channel.call("exchange.declare", exchange="amq.direct", passive=True)
    channel = connection.channel()
    channel.consume("amq.rabbitmq.reply-to", "c", no_ack=True)
    channel.consume("amq.rabbitmq.reply-to", "d", no_ack=True)
    channel = connection.channel()
    channel.call("queue.declare", queue="amq.rabbitmq.reply-to", passive=True)
    connection.channel().call("queue.declare", queue="amq.rabbitmq.reply-to.nonsense", passive=True)
    connection.channel().get("amq.rabbitmq.reply-to")
    connection.channel().queue("amq.rabbitmq.reply-to")
    channel = connection.channel()
    channel.publish("nobody", "amq.rabbitmq.reply-to.nonsense", mandatory=True)
    channel.expect("basic.return")


@scenario
def test_confirm_after_tx_and_tx_after_confirm(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.call("confirm.select")
    channel.call("tx.select")
    channel = connection.channel()
    channel.call("tx.select")
    channel.call("confirm.select")


@differs(
    "mandatory-reply",
    rabbitmq="A1 < basic.return code=312 text='NO_ROUTE' exchange='' key='amq.rabbitmq.reply-to.<1>' {} b'answer'",
    rookery="",
)
def test_mandatory_answer_by_direct_reply_to(s: Script) -> None:
    channel = s.channel()
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.queue("requests")
    channel.publish("question", "requests", reply_to="amq.rabbitmq.reply-to")
    request = channel.get("requests")
    channel.publish("answer", str((request.properties or {}).get("reply_to")), mandatory=True)
    channel.expect("basic.deliver")


@scenario
def test_publish_to_a_full_queue_that_rejects(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.call("confirm.select")
    for body in "abcd":
        channel.publish(body, "q")
        channel.confirmed()
    channel.get("q")
    channel.publish("e", "q", mandatory=True)
    channel.confirmed()
    channel.get_all("q")


@scenario
def test_publish_to_a_full_queue_and_a_free_one(s: Script) -> None:
    channel = s.channel()
    channel.queue("full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue("free")
    channel.bind("full", "amq.fanout")
    channel.bind("free", "amq.fanout")
    channel.call("confirm.select")
    for body in "ab":
        channel.publish(body, "", "amq.fanout")
        channel.confirmed()
    channel.get_all("full")
    channel.get_all("free")
