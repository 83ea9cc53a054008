"""Every decoder of bytes from outside, with its limits: the one list. `docs/decoders.md` is written from it.

`modules` are those that decode. `test_decoders.py` looks for modules that do and are neither here nor in `TRUSTED`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rookery import spans
from rookery.arrow import decoder as arrow_decoder
from rookery.client import websocket as client_websocket
from rookery.client.aio import transport
from rookery.core import definitions, pattern_syntax, patterns, staging
from rookery.core.webhooks import ENDPOINT_MAX
from rookery.format import fieldtables
from rookery.pipelines import document
from rookery.server import proxy
from rookery.webhooks import network
from rookery.wire import websocket
from rookery.wire.amqp import codec
from rookery.wire.amqp import connection as amqp
from rookery.wire.api import bodies
from rookery.wire.http import answers as http_answers
from rookery.wire.http import connection as http
from rookery.wire.http import tokens
from rookery.wire.line import connection as line
from rookery.wire.push import ops

if TYPE_CHECKING:
    from tests.fuzz.target import Target

NOT_COMPRESSED = "not compressed"
BY_SIZE = "by size"
RECURSION = "the interpreter's recursion limit; deeper is refused"
FLAT = "flat"


@dataclass(frozen=True)
class Decoder:
    """`library` is the native library below, empty where all of it is our own: such decoders are fuzzed by coverage.
    The texts say what limits the size, depth and count of what is decoded, and how much more it may become.
    """

    name: str
    what: str
    sender: str
    modules: tuple[str, ...]
    entry: str
    size: str
    depth: str
    count: str
    expansion: str
    refusal: str
    library: str = ""
    input_max_bytes: int = 4_096
    runs: int = 2_000
    """How many inputs the short run of the tests tries."""

    @property
    def native(self) -> bool:
        return bool(self.library)

    def target(self) -> Target:
        module, _, name = self.entry.partition(":")
        made: Target = getattr(importlib.import_module(f"tests.fuzz.{module}"), name)()
        return made


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} bytes"


_BODY = "`ROOKERY_HTTP_BODY_MAX_BYTES`, 16 MiB by default"

AMQP = (
    Decoder(
        name="amqp-table",
        what="AMQP field tables: headers, arguments, client properties",
        sender="AMQP peers; stored messages",
        modules=("rookery.format.fieldtables", "rookery.format.bytes_fallback"),
        entry="targets_amqp:Tables",
        size=f"its frame: {_bytes(codec.FRAME_MAX_BYTES)}",
        depth=f"{fieldtables.DEPTH_MAX}",
        count=BY_SIZE,
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, AMQP 502",
    ),
    Decoder(
        name="amqp-properties",
        what="AMQP property lists",
        sender="every publisher; stored messages",
        modules=("rookery.format.properties",),
        entry="targets_amqp:PropertyLists",
        size=f"its frame: {_bytes(codec.FRAME_MAX_BYTES)}",
        depth=f"{fieldtables.DEPTH_MAX} (headers)",
        count="14 properties",
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, AMQP 502",
    ),
    Decoder(
        name="amqp-arguments",
        what="arguments of AMQP methods",
        sender="AMQP peers",
        modules=("rookery.wire.amqp.codec",),
        entry="targets_amqp:MethodArguments",
        size=f"its frame: {_bytes(codec.FRAME_MAX_BYTES)}",
        depth=f"{fieldtables.DEPTH_MAX} (tables)",
        count=BY_SIZE,
        expansion=NOT_COMPRESSED,
        refusal="AMQP 501, 502",
    ),
    Decoder(
        name="amqp-connection",
        what="AMQP frames and methods: a whole connection",
        sender="AMQP peers, before and after login",
        modules=("rookery.wire.amqp.connection", "rookery.wire.amqp.parking", "rookery.wire.amqp.publish"),
        entry="targets_amqp:Connections",
        size=f"{_bytes(codec.FRAME_MAX_BYTES)} a frame ({_bytes(codec.FRAME_FIRST_BYTES)} before tuning), "
        f"{_bytes(int(amqp.UNPARSED_MAX_BYTES))} unparsed; a message by `ROOKERY_MESSAGE_MAX_BYTES`",
        depth=f"{fieldtables.DEPTH_MAX} (tables)",
        count="`channel-max` channels",
        expansion=NOT_COMPRESSED,
        refusal="AMQP 501 to 541, then the connection is closed",
        runs=1_000,
    ),
)

WIRE = (
    Decoder(
        name="websocket-server",
        what="WebSocket frames of readers",
        sender="HTTP peers, after login",
        modules=("rookery.wire.websocket",),
        entry="targets_wire:ServerFrames",
        size=f"a message by {_BODY}; {websocket.CONTROL_MAX_BYTES} bytes a control frame",
        depth=FLAT,
        count=f"{websocket.PARTS_MAX} parts a message",
        expansion=f"{NOT_COMPRESSED}; extensions are refused",
        refusal="close 1002, 1007 or 1009",
    ),
    Decoder(
        name="websocket-client",
        what="WebSocket frames that a client reads",
        sender="the broker a client calls",
        modules=("rookery.wire.websocket", "rookery.client.websocket"),
        entry="targets_wire:ClientFrames",
        size=f"{_bytes(client_websocket.MESSAGE_MAX_BYTES)} a message",
        depth=FLAT,
        count=f"{websocket.PARTS_MAX} parts a message",
        expansion=NOT_COMPRESSED,
        refusal="`BrokenAnswer`: the client connects again",
    ),
    Decoder(
        name="proxy",
        what="PROXY protocol headers, versions 1 and 2",
        sender="peers of the listeners in `ROOKERY_PROXY_PROTOCOL`, before login",
        modules=("rookery.server.proxy",),
        entry="targets_wire:ProxyHeaders",
        size=f"version 1 {proxy.LINE_MAX_BYTES} bytes, version 2 {_bytes(proxy.HEADER_MAX_BYTES)}",
        depth=FLAT,
        count="one header a connection",
        expansion=NOT_COMPRESSED,
        refusal="the connection is closed",
    ),
    Decoder(
        name="line",
        what="the line protocol: a whole connection",
        sender="line peers, before and after login",
        modules=("rookery.wire.line.connection", "rookery.wire.line.commands"),
        entry="targets_wire:Lines",
        size=f"{_bytes(int(line.LINE_MAX_BYTES))} a line, {_bytes(int(line.FIRST_LINE_MAX_BYTES))} before login",
        depth=FLAT,
        count="words by size",
        expansion=NOT_COMPRESSED,
        refusal="`Error: …`",
        runs=1_000,
    ),
)

HTTP = (
    Decoder(
        name="http-request",
        what="HTTP/1.1 requests: heads, chunks, trailers, pipelining, known heads",
        sender="HTTP peers, before login",
        modules=("rookery.wire.http.connection",),
        entry="targets_http:Requests",
        library="",
        size=f"head {_bytes(int(http.HEAD_MAX_BYTES))}, URL {_bytes(int(http.URL_MAX_BYTES))}; body by {_BODY}",
        depth=FLAT,
        count=f"{int(http.HEADERS_MAX)} headers, {int(http.CALLS_MAX)} requests ahead of their answers",
        expansion="`Content-Encoding` is refused: gzip is written, never read",
        refusal="400, 413, 414, 417, 431, 503, then the connection is closed",
        runs=600,
    ),
    Decoder(
        name="http-url",
        what="paths, queries and Host headers",
        sender="HTTP peers, before login",
        modules=("rookery.wire.http.routes",),
        entry="targets_http:Urls",
        size=f"{_bytes(int(http.URL_MAX_BYTES))}",
        depth=FLAT,
        count=BY_SIZE,
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, 400; `not_found`, 404",
    ),
    Decoder(
        name="http-credential",
        what="Authorization headers (Basic, Bearer, ApiKey), credentials in `Sec-WebSocket-Protocol`",
        sender="HTTP peers, before login",
        modules=("rookery.wire.http.auth", "rookery.core.credentials"),
        entry="targets_http:Credentials",
        size=f"the head: {_bytes(int(http.HEAD_MAX_BYTES))}",
        depth=FLAT,
        count="one credential a request",
        expansion=NOT_COMPRESSED,
        refusal="`unauthenticated`, 401",
    ),
    Decoder(
        name="jwt",
        what="JSON Web Tokens",
        sender="HTTP peers, before login",
        modules=("rookery.wire.http.tokens",),
        entry="targets_http:WebTokens",
        library="PyJWT",
        size=f"{tokens.TOKEN_MAX_CHARS} characters",
        depth=RECURSION,
        count=BY_SIZE,
        expansion=f"{NOT_COMPRESSED}; encrypted tokens are refused",
        refusal="`unauthenticated`, 401",
        input_max_bytes=16_384,
    ),
    Decoder(
        name="http-publish",
        what="bodies that publish: JSON, lines of JSON, CloudEvents, packed, as they are",
        sender="HTTP and WebSocket peers, after login",
        modules=("rookery.wire.api.bodies",),
        entry="targets_http:Publishes",
        size=_BODY,
        depth=f"{RECURSION}; headers {fieldtables.DEPTH_MAX}",
        count=f"{bodies.BATCH_MAX} messages",
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, 400; `unsupported_media_type`, 415",
    ),
    Decoder(
        name="json",
        what="JSON bodies of requests, and operations over a WebSocket",
        sender="HTTP and WebSocket peers, after login",
        modules=(
            "rookery.wire.api.bindings",
            "rookery.wire.api.transactions",
            "rookery.wire.push.ops",
            "rookery.wire.api.compat.legacy",
        ),
        entry="targets_http:JsonBodies",
        library="msgspec",
        size=_BODY,
        depth=RECURSION,
        count=f"by size and type; a credit is at most {ops.CREDIT_MAX}",
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, 400",
        input_max_bytes=16_384,
    ),
    Decoder(
        name="http-answer",
        what="HTTP answers that a client reads",
        sender="the broker a client calls",
        modules=("rookery.wire.http.answers", "rookery.client.answers"),
        entry="targets_http:Answers",
        size=f"head {_bytes(http_answers.HEAD_MAX_BYTES)}; a line {_bytes(transport.LINE_MAX_BYTES)}",
        depth=RECURSION,
        count=f"{http_answers.HEADERS_MAX} headers",
        expansion=NOT_COMPRESSED,
        refusal="`BrokenAnswer`: the client tries again",
    ),
    Decoder(
        name="webhook-answer",
        what="answers of endpoints that webhooks call, with Retry-After and Location",
        sender="any server that a webhook names",
        modules=(
            "rookery.wire.http.answers",
            "rookery.webhooks.network",
            "rookery.webhooks.calls",
            "rookery.webhooks.addresses",
            "rookery.webhooks.dispatcher",
            "rookery.core.webhooks",
        ),
        entry="targets_http:Endpoints",
        size=f"head {_bytes(http_answers.HEAD_MAX_BYTES)}, content {_bytes(network.CONTENT_MAX_BYTES)}, "
        f"a URL {ENDPOINT_MAX} characters",
        depth=FLAT,
        count=f"{http_answers.HEADERS_MAX} headers",
        expansion=f"{NOT_COMPRESSED}: no coding is asked for",
        refusal="the call failed: it is tried again",
        runs=1_000,
    ),
)

TEXTS = (
    Decoder(
        name="handles",
        what="texts that stand for something: leases, message ids, offsets, traces, keys",
        sender="every peer",
        modules=("rookery.core.shard", "rookery.format.model", "rookery.wire.api.compat.handles"),
        entry="targets_texts:Handles",
        size=f"that of what they stand in; a trace state {spans.STATE_MAX} characters",
        depth=FLAT,
        count="18 digits a number",
        expansion=NOT_COMPRESSED,
        refusal="they stand for nothing: 404, or `invalid_argument`",
        input_max_bytes=8_192,
    ),
    Decoder(
        name="broker-frames",
        what="messages, pages of records and JSON that a client reads",
        sender="the broker a client calls",
        modules=("rookery.client.messages",),
        entry="targets_texts:BrokerFrames",
        size=f"a frame {_bytes(client_websocket.MESSAGE_MAX_BYTES)}; a line {_bytes(transport.LINE_MAX_BYTES)}",
        depth=RECURSION,
        count="as many messages as were asked for",
        expansion=NOT_COMPRESSED,
        refusal="`BrokenAnswer`: the client tries again",
    ),
    Decoder(
        name="shown-body",
        what="bodies of messages that are shown as JSON",
        sender="every publisher",
        modules=(
            "rookery.format.rendering",
            "rookery.embed.messages",
            "rookery.embed.aio.handlers",
        ),
        entry="targets_texts:ShownBodies",
        size="that of a message",
        depth=f"{RECURSION} to be JSON, and shown as text",
        count=BY_SIZE,
        expansion=NOT_COMPRESSED,
        refusal="shown as text or base64",
    ),
    Decoder(
        name="msgpack",
        what="MessagePack bodies: packed publishes, transactions, messages, records",
        sender="HTTP peers, after login; the broker a client calls",
        modules=("rookery.wire.packed",),
        entry="targets_stored:Packed",
        library="msgspec",
        size=_BODY,
        depth=f"by type; headers {fieldtables.DEPTH_MAX}",
        count=f"{bodies.BATCH_MAX} messages",
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, 400",
        input_max_bytes=16_384,
    ),
    Decoder(
        name="pattern",
        what="patterns of policies and rights",
        sender="HTTP peers with the right to configure; makers of keys",
        modules=("rookery.core.patterns", "rookery.core.pattern_syntax"),
        entry="targets_patterns:Patterns",
        size=f"{pattern_syntax.CHARS_MAX} characters",
        depth=f"{pattern_syntax.DEPTH_MAX} groups",
        count=f"{patterns.LOOKS_MAX} look-arounds",
        expansion=f"{patterns.STATES_MAX} states",
        refusal="`invalid_argument`, 400; in stored rights, nothing is allowed",
        input_max_bytes=600,
    ),
    Decoder(
        name="definitions",
        what="documents of definitions",
        sender="HTTP peers with the right to configure; the journal",
        modules=("rookery.core.definitions",),
        entry="targets_stored:Definitions",
        size=_BODY,
        depth=f"arguments {definitions.ARGUMENTS_DEPTH_MAX}; else {RECURSION}",
        count="the limits of the tenant",
        expansion=NOT_COMPRESSED,
        refusal="`invalid_argument`, 400; nothing is changed",
        runs=600,
    ),
)

FILES = (
    Decoder(
        name="arrow",
        what="Arrow IPC streams of rows to be staged",
        sender="HTTP peers, after login",
        modules=("rookery.arrow.rows", "rookery.arrow.ipc", "rookery.arrow.frames"),
        entry="targets_stored:ArrowRows",
        library="pyarrow",
        size=_BODY,
        depth="columns of fixed types",
        count=f"{staging.CHUNK_ROWS_MAX} rows",
        expansion=f"{arrow_decoder.EXPANSION_MAX} × the largest body, known before anything is decompressed; "
        f"decoded in a process with a limit on memory, {arrow_decoder.CPU_SEC} s of CPU and "
        f"{arrow_decoder.WALL_SEC} s altogether",
        refusal="`invalid_argument`, 400; `message_too_large`, 413; `decoding_failed`, 503",
        input_max_bytes=16_384,
        runs=600,
    ),
    Decoder(
        name="parquet",
        what="sealed Parquet files that are read back",
        sender="the data directory",
        modules=("rookery.sealed.parquet", "rookery.sealed.sealing"),
        entry="targets_stored:Sealed",
        library="pyarrow",
        size="a file that the broker wrote, one row group at a time",
        depth="columns of fixed types",
        count="rows of a group",
        expansion="a row group",
        refusal="`store_damaged`",
        input_max_bytes=16_384,
        runs=300,
    ),
    Decoder(
        name="avro",
        what="Avro bodies as columns of a Spark frame",
        sender="every publisher; decoded in Spark, not in the broker",
        modules=("rookery.spark.decoding",),
        entry="targets_stored:Avro",
        library="fastavro",
        size="that of a message",
        depth=f"the schema, else {RECURSION}",
        count=BY_SIZE,
        expansion=NOT_COMPRESSED,
        refusal="a corrupt record: null columns, the bytes in a column of their own",
        input_max_bytes=16_384,
    ),
    Decoder(
        name="compression",
        what="compressed bodies of the journal (zlib, zstd)",
        sender="the data directory",
        modules=("rookery.format.compression",),
        entry="targets_stored:Compressed",
        library="zlib, zstandard",
        size="that of a record",
        depth=FLAT,
        count="one body",
        expansion="the size that the record states, not a byte more",
        refusal="`store_damaged`",
        input_max_bytes=200_000,
    ),
    Decoder(
        name="journal",
        what="segments of the journal: batches, records, messages",
        sender="the data directory",
        modules=(
            "rookery.format.records",
            "rookery.store.journal",
            "rookery.store.pager",
            "rookery.store.changes",
            "rookery.sealed.columns",
            "rookery.sealed.arrow",
            "rookery.core.stream",
        ),
        entry="targets_stored:Journal",
        size="a batch by its length, within its segment; nothing is believed before its checksum",
        depth=f"{RECURSION} (definitions)",
        count=BY_SIZE,
        expansion="see compression",
        refusal="`store_damaged`, with the file and the offset",
    ),
    Decoder(
        name="pipeline",
        what="YAML files of pipelines",
        sender="whoever writes the pipelines",
        modules=("rookery.pipelines.document",),
        entry="targets_stored:Pipelines",
        size=f"{document.FILE_MAX_CHARS} characters",
        depth=f"{document.DEPTH_MAX}",
        count=f"{document.VALUES_MAX} values",
        expansion="a value that aliases repeat counts each time",
        refusal="`InvalidPipeline`, with the line",
        runs=600,
    ),
)

DECODERS = {decoder.name: decoder for decoder in (*AMQP, *WIRE, *HTTP, *TEXTS, *FILES)}

_OPERATOR = "whoever runs the command or the server wrote it"
_OWN = "the broker itself made it, in memory"
_LAKE = "tables and files below the root of the pipelines, which only their operator writes"
_BROKER = "the broker that the user of the client or of Spark chose"

TRUSTED = {
    "rookery.cli.bench": _OPERATOR,
    "rookery.cli.claiming": _BROKER,
    "rookery.cli.commands": _OPERATOR,
    "rookery.cli.definitions": _OPERATOR,
    "rookery.cli.moving": _OPERATOR,
    "rookery.cli.publishing": _OPERATOR,
    "rookery.cli.subscribing": _BROKER,
    "rookery.cli.where": _OPERATOR,
    "rookery.client.address": _OPERATOR,
    "rookery.client.aio.streams": _BROKER,
    "rookery.config.settings": _OPERATOR,
    "rookery.config.kinds": _OPERATOR,
    "rookery.core.routing": _OWN,
    "rookery.server.peers": "what the kernel says about a socket, and addresses that it gave",
    "rookery.server.limits": "an address that the operating system or a PROXY header gave",
    "rookery.pipelines.backfill": _LAKE,
    "rookery.pipelines.builtin.care": _LAKE,
    "rookery.pipelines.builtin.changes": _LAKE,
    "rookery.pipelines.builtin.letters": _LAKE,
    "rookery.pipelines.builtin.replay": _LAKE,
    "rookery.pipelines.ends": _OPERATOR,
    "rookery.pipelines.lake": _LAKE,
    "rookery.pipelines.runner": "Spark's own reports of progress",
    "rookery.pipelines.stats": _LAKE,
    "rookery.spark.client": _BROKER,
    "rookery.spark.options": _OPERATOR,
    "rookery.spark.shipping": "an archive of the package itself, which is written",
    "rookery.sealed.history": "what the process that seals answers, which the broker started",
    "rookery.lake.pipelines": _LAKE,
    "rookery.webhooks.signing": "the secret that the receiver of a webhook was given",
}
"""Modules that decode what is not from outside, and whose bytes that is."""
