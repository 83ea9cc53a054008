"""Opening and closing connections and channels, limits, and what is answered to frames that break the rules."""

from __future__ import annotations

import struct
import time

from tests.interop.oracle.frames import BODY, HEADER, HEARTBEAT, METHOD, frame, header_payload, method_payload
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import Connection, Script


def opened(s: Script) -> Connection:
    """A connection with channel 1 open."""
    connection = s.connect()
    connection.channel()
    return connection


def greeted(s: Script) -> Connection:
    """A connection on which the server has said what it offers."""
    connection = s.socket()
    length = len(s.lines)
    connection.greet()
    del s.lines[length:]
    return connection


def end_all(*connections: Connection) -> None:
    """RabbitMQ hangs up three seconds after a failed handshake or a broken frame; here they pass for all at once."""
    for connection in connections:
        connection.end()


@scenario
def test_start(s: Script) -> None:
    connection = s.socket()
    start = connection.greet().arguments
    for name in ("major", "minor", "locales"):
        s.write(f"{name} {start[name]}")
    s.write(f"{sorted({'PLAIN', 'AMQPLAIN'} & set(start['mechanisms'].split()))}")
    properties = {name: value for name, _, value in start["server_properties"]}
    s.write(f"{sorted(properties['capabilities'])}")
    connection.drop()


@scenario
def test_tune_and_open(s: Script) -> None:
    connection = greeted(s)
    connection.start_ok()
    connection.tune_ok(2047, 131072, 0)
    connection.zero.call("connection.open", vhost="/")


@scenario
def test_protocol_headers_that_are_refused(s: Script) -> None:
    for header in (b"AMQP\x00\x00\x08\x00", b"AMQP\x00\x01\x00\x00", b"HTTP/1.1", b"AMQP\x02\x00\x09\x01"):
        connection = s.socket()
        connection.greet(header)
        connection.end()


@differs(
    "older-versions",
    rabbitmq="""
        A < connection.start
        B < connection.start
    """,
    rookery="""
        A < protocol header=b'AMQP\\x00\\x00\\t\\x01'
        B < protocol header=b'AMQP\\x00\\x00\\t\\x01'
    """,
)
def test_protocol_headers_of_older_versions(s: Script) -> None:
    for header in (b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x00\x09"):
        connection = s.socket()
        connection.greet(header)
        connection.drop()


@scenario
def test_wrong_password(s: Script) -> None:
    for user, password in (("guest", "wrong"), ("nobody", "guest"), ("", "")):
        connection = greeted(s)
        connection.start_ok(user, password)
        connection.end()


@scenario
def test_wrong_password_of_a_client_that_wants_no_reason(s: Script) -> None:
    connection = greeted(s)
    connection.start_ok("guest", "wrong", capabilities={})
    connection.end()


@scenario
def test_amqplain(s: Script) -> None:
    login = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    connection = greeted(s)
    connection.start_ok(mechanism="AMQPLAIN", response=login)
    connection.tune_ok(2047, 131072, 0)
    connection.zero.call("connection.open", vhost="/")
    connection = greeted(s)
    connection.start_ok(mechanism="AMQPLAIN", response=login.replace(b"guest", b"wrong"))
    connection.end()


@scenario
def test_unknown_vhost(s: Script) -> None:
    connection = greeted(s)
    connection.start_ok()
    connection.tune_ok(2047, 131072, 0)
    connection.zero.call("connection.open", vhost="nowhere")
    connection.end()


@differs(
    "handshake-reasons",
    rabbitmq="",
    rookery="""
        A < connection.close code=504 text="CHANNEL_ERROR - unknown authentication mechanism 'KERBEROS'" class_id=10
            method_id=11
        B < connection.close code=502 text='SYNTAX_ERROR - PLAIN wants a name and a password' class_id=10 method_id=11
        C < connection.close code=503 text='COMMAND_INVALID - method 10.40 is not expected now' class_id=10 method_id=40
        D < connection.close code=503 text='COMMAND_INVALID - method 10.40 is not expected now' class_id=10 method_id=40
        E < connection.close code=530 text='NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum
            allowed (2047)' class_id=10 method_id=31
        F < connection.close code=530 text='NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum
            allowed (131072)' class_id=10 method_id=31
        G < connection.close code=530 text='NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum
            allowed (4096)' class_id=10 method_id=31
    """,
)
def test_handshakes_that_fail(s: Script) -> None:
    unknown, malformed, early, late = greeted(s), greeted(s), greeted(s), greeted(s)
    unknown.zero.send("connection.start-ok", locale="en_US", mechanism="KERBEROS", response="x")
    malformed.zero.send("connection.start-ok", locale="en_US", mechanism="PLAIN", response="guest")
    early.zero.send("connection.open", vhost="/")
    late.start_ok()
    late.zero.send("connection.open", vhost="/")
    connections = [unknown, malformed, early, late]
    for channel_max, frame_max in ((2048, 131072), (2047, 131073), (2047, 4095)):
        connection = greeted(s)
        connection.start_ok()
        connection.tune_ok(channel_max, frame_max, 0)
        connections.append(connection)
    end_all(*connections)


@differs(
    "no-limit",
    rabbitmq="""
        A hung up
        B hung up
    """,
    rookery="""
        A < connection.open-ok
        B < connection.open-ok
    """,
)
def test_tune_to_no_limit(s: Script) -> None:
    connections = []
    for channel_max, frame_max in ((0, 131072), (2047, 0)):
        connection = greeted(s)
        connection.start_ok()
        connection.tune_ok(channel_max, frame_max, 0)
        connection.zero.send("connection.open", vhost="/")
        connections.append(connection)
    for connection in connections:
        connection.zero.events(1)
        connection.drop()


@scenario
def test_more_channels_than_agreed(s: Script) -> None:
    connection = s.connect(channel_max=2)
    connection.channel(1)
    connection.channel(2)
    connection.closed_channel(3).send("channel.open")
    connection.end()


@scenario
def test_a_frame_of_the_agreed_size(s: Script) -> None:
    connection = s.connect(frame_max=4096)
    channel = connection.channel()
    channel.queue("q")
    channel.write_frame(METHOD, method_payload("basic.publish", {"key": "q"}))
    channel.write_frame(HEADER, header_payload(4088, {}))
    channel.write_frame(BODY, b"x" * 4088)
    channel.get("q")


@scenario
def test_heartbeats_are_sent_as_agreed(s: Script) -> None:
    connection = s.connect(heartbeat=1)
    while not connection.heartbeats:
        connection.send(frame(HEARTBEAT, 0, b""))
        connection.pump(time.monotonic() + 5)
    s.write("a heartbeat came")


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=505 text='UNEXPECTED_FRAME - type 8, all octets = <<>>' class_id=0 method_id=0
    """,
    rookery="""
        A < connection.close code=505 text='UNEXPECTED_FRAME - a heartbeat belongs to no channel' class_id=0 method_id=0
    """,
)
def test_heartbeat_on_a_channel(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(HEARTBEAT, 1, b""))
    connection.end()


@scenario
def test_close_with_work_under_way(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.publish("kept", "q")
    connection.close()
    s.channel().get("q")


@scenario
def test_methods_after_close_are_passed_over(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    connection.zero.send("connection.close", code=200, text="done")
    channel.send("queue.declare", queue="never")
    connection.zero.expect("connection.close-ok")
    connection.drop()
    s.channel().call("queue.declare", queue="never", passive=True)


@scenario
def test_channel_close_and_reuse(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel(7)
    channel.queue("q", exclusive=True)
    channel.publish("a", "q")
    channel.get("q", no_ack=False)
    channel.close()
    again = connection.channel(7)
    again.until("q", messages=1)
    again.get("q", no_ack=False)
    again.ack(1)
    again.quiet("q")


@scenario
def test_channel_reuse_after_an_error(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel(3)
    channel.queue("q")
    channel.call("queue.declare", queue="missing", passive=True)
    again = connection.channel(3)
    again.queue("q")
    again.call("queue.declare", queue="missing", passive=True)


@scenario
def test_channel_opened_twice(s: Script) -> None:
    connection = s.connect()
    connection.channel().call("channel.open")
    connection.end()


@scenario
def test_method_on_a_channel_that_is_not_open(s: Script) -> None:
    for name, values in (
        ("queue.declare", {"queue": "q"}),
        ("channel.close", {"code": 200}),
        ("basic.ack", {"delivery": 1}),
    ):
        connection = s.connect()
        connection.closed_channel(1).send(name, **values)
        connection.end()


@differs(
    "stray-close-ok",
    rabbitmq="""
        A < connection.close code=504 text="CHANNEL_ERROR - expected 'channel.open'" class_id=20 method_id=41
        A hung up
    """,
    rookery="""
        A5 < exchange.declare-ok
        A < connection.close-ok
    """,
)
def test_close_ok_of_a_channel_that_is_not_open(s: Script) -> None:
    connection = s.connect()
    connection.closed_channel(4).send("channel.close-ok")
    connection.channel(5).call("exchange.declare", exchange="amq.direct", passive=True)


@scenario
def test_flow(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.call("channel.flow", active=True)
    channel.call("channel.flow", active=False)
    connection.end()


@scenario
def test_methods_only_a_server_sends(s: Script) -> None:
    for name, values in (
        ("queue.declare-ok", {"queue": "q"}),
        ("basic.get-empty", {}),
    ):
        connection = opened(s)
        s.write(name)
        connection.send(frame(METHOD, 1, method_payload(name, values)))
        connection.end()


@scenario
def test_methods_of_the_connection_on_a_channel(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(METHOD, 1, method_payload("connection.open", {"vhost": "/"})))
    connection.end()


@scenario
def test_methods_of_a_channel_on_channel_zero(s: Script) -> None:
    connection = opened(s)
    connection.zero.send("queue.declare", queue="q")
    connection.end()
    connection = opened(s)
    connection.zero.send("channel.open")
    connection.end()


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=501 text='FRAME_ERROR - cannot decode <<>>' class_id=60 method_id=200
    """,
    rookery="""
        A < connection.close code=503 text='COMMAND_INVALID - unimplemented method' class_id=60 method_id=200
        B < connection.close code=503 text='COMMAND_INVALID - unimplemented method' class_id=99 method_id=10
        C < connection.close code=503 text='COMMAND_INVALID - unimplemented method' class_id=50 method_id=99
    """,
)
def test_unknown_methods_and_classes(s: Script) -> None:
    for class_id, method_id in ((60, 200), (99, 10), (50, 99)):
        connection = opened(s)
        connection.send(frame(METHOD, 1, struct.pack(">HH", class_id, method_id)))
        connection.end()


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=501 text='FRAME_ERROR - type 1, all octets = <<>>: unknown_frame' class_id=0
            method_id=0
        B < connection.close code=501 text='FRAME_ERROR - type 1, all octets = <<0,50>>: unknown_frame' class_id=0
            method_id=0
        C < connection.close code=501 text='FRAME_ERROR - cannot decode <<0,0,1,113,0,0,0>>' class_id=50 method_id=10
    """,
    rookery="""
        A < connection.close code=501 text='FRAME_ERROR - no frame of type 1 and 0 bytes is known' class_id=0
            method_id=0
        B < connection.close code=501 text='FRAME_ERROR - no frame of type 1 and 2 bytes is known' class_id=0
            method_id=0
        C < connection.close code=502 text="SYNTAX_ERROR - a method's arguments are cut off" class_id=50 method_id=10
    """,
)
def test_methods_cut_short(s: Script) -> None:
    for payload in (b"", b"\x00\x32", method_payload("queue.declare", {"queue": "q"})[:-2]):
        connection = opened(s)
        connection.send(frame(METHOD, 1, payload))
        connection.end()


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=501 text='FRAME_ERROR - type 1, all octets = <<0,50,0,10,0,0,1,113,0,0,0,0,0>>:
            {invalid_frame_end_marker,0}' class_id=0 method_id=0
        B < connection.close code=501 text='FRAME_ERROR - type 1, all octets = <<>>:
            {frame_too_large,2147483647,131064}'
            class_id=0 method_id=0
        C < connection.close code=501 text='FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,5000,4088}'
            class_id=0 method_id=0
    """,
    rookery="""
        A < connection.close code=501 text='FRAME_ERROR - a frame does not end where it says' class_id=0 method_id=0
        B < connection.close code=501 text='FRAME_ERROR - a frame of 2147483647 bytes is longer than negotiated'
            class_id=0 method_id=0
        C < connection.close code=501 text='FRAME_ERROR - a frame of 5000 bytes is longer than negotiated' class_id=0
            method_id=0
    """,
)
def test_frames_of_wrong_size(s: Script) -> None:
    endless, enormous = opened(s), opened(s)
    endless.send(frame(METHOD, 1, method_payload("queue.declare", {"queue": "q"}), end=0))
    enormous.send(struct.pack(">BHI", METHOD, 1, 0x7FFFFFFF) + b"hello")
    narrow = s.connect(frame_max=4096)
    channel = narrow.channel()
    channel.queue("q")
    channel.write_frame(METHOD, method_payload("basic.publish", {"key": "q"}))
    channel.write_frame(HEADER, header_payload(5000, {}))
    channel.write_frame(BODY, b"x" * 5000)
    end_all(endless, enormous, narrow)


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=501 text='FRAME_ERROR - type 7, all octets = <<"hello">>: unknown_frame' class_id=0
            method_id=0
    """,
    rookery="""
        A < connection.close code=501 text='FRAME_ERROR - no frame of type 7 and 5 bytes is known' class_id=0
            method_id=0
    """,
)
def test_unknown_frame_type(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(7, 1, b"hello"))
    connection.end()


@scenario
def test_content_without_a_method(s: Script) -> None:
    for kind, payload in ((HEADER, header_payload(5, {})), (BODY, b"hello")):
        connection = opened(s)
        connection.send(frame(kind, 1, payload))
        connection.end()


@scenario
def test_method_instead_of_a_header(s: Script) -> None:
    connection = opened(s)
    publish = frame(METHOD, 1, method_payload("basic.publish", {"key": "q"}))
    connection.send(publish + publish)
    connection.end()


@scenario
def test_body_instead_of_a_header(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(METHOD, 1, method_payload("basic.publish", {"key": "q"})) + frame(BODY, 1, b"hello"))
    connection.end()


@scenario
def test_header_instead_of_a_body(s: Script) -> None:
    connection = opened(s)
    header = frame(HEADER, 1, header_payload(5, {}))
    connection.send(frame(METHOD, 1, method_payload("basic.publish", {"key": "q"})) + header + header)
    connection.end()


@scenario
def test_method_instead_of_a_body(s: Script) -> None:
    connection = opened(s)
    publish = frame(METHOD, 1, method_payload("basic.publish", {"key": "q"}))
    connection.send(publish + frame(HEADER, 1, header_payload(5, {})) + publish)
    connection.end()


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=505 text='UNEXPECTED_FRAME - expected content body, got non content body frame
            instead'
            class_id=60 method_id=40
    """,
    rookery="""
        A < connection.close code=501 text='FRAME_ERROR - a content body is longer than its header says' class_id=0
            method_id=0
    """,
)
def test_more_body_than_announced(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(METHOD, 1, method_payload("basic.publish", {"key": "q"})))
    connection.send(frame(HEADER, 1, header_payload(3, {})) + frame(BODY, 1, b"hello"))
    connection.send(frame(METHOD, 1, method_payload("queue.declare", {"queue": "q"})))
    connection.end()


@scenario
def test_header_of_another_class(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(METHOD, 1, method_payload("basic.publish", {"key": "q"})))
    connection.send(frame(HEADER, 1, header_payload(5, {}, class_id=50)))
    connection.end()


@differs(
    "frame-errors",
    rabbitmq="""
        A < connection.close code=541 text='INTERNAL_ERROR' class_id=0 method_id=0
    """,
    rookery="""
        A < connection.close code=502 text='SYNTAX_ERROR - malformed properties: a string is cut off' class_id=60
            method_id=40
    """,
)
def test_properties_cut_short(s: Script) -> None:
    connection = opened(s)
    connection.send(frame(METHOD, 1, method_payload("basic.publish", {"key": "q"})))
    connection.send(frame(HEADER, 1, header_payload(0, {"content_type": "text/plain"})[:-4]))
    connection.end()


@differs(
    "frame-errors",
    rabbitmq="""

    """,
    rookery="""
        A < connection.close code=502 text='SYNTAX_ERROR - malformed table: no field type 0x5a' class_id=50 method_id=10
    """,
)
def test_table_with_an_unknown_type(s: Script) -> None:
    connection = opened(s)
    bad = method_payload("queue.declare", {"queue": "q"})[:-4] + b"\x00\x00\x00\x04\x01aZ\x00"
    connection.send(frame(METHOD, 1, bad))
    connection.end()


@scenario
def test_update_secret(s: Script) -> None:
    connection = s.connect()
    connection.zero.call("connection.update-secret", secret="guest", reason="why not")
    connection.channel().queue("q")


@scenario
def test_access_request(s: Script) -> None:
    channel = s.channel()
    channel.call("access.request", realm="/data", active=True, read=True)


@scenario
def test_capabilities_of_the_client_may_be_missing(s: Script) -> None:
    channel = s.channel(capabilities={})
    channel.queue("q")
    channel.consume("q", "c")
    channel.publish("hello", "q")
    channel.expect("basic.deliver")
    channel.nack(1)
    channel.expect("basic.deliver")
