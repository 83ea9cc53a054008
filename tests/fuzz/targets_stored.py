"""What lies in files, or goes through native libraries: records of the journal, compressed bodies, Arrow, Parquet,
Avro, MessagePack, definitions, pipelines.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import zlib
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import yaml
import zstandard

from rookery.arrow import rows as arrow_rows
from rookery.arrow.decoder import EXPANSION_MAX, ArrowDecoder
from rookery.core import definitions
from rookery.core.shard import Shard
from rookery.core.staging import Row
from rookery.errors import InvalidArgument, InvalidPipeline, RookeryError, StoreDamaged, StoreError
from rookery.format import compression, properties, records
from rookery.format.bytes import BytesWriter
from rookery.format.model import Message, Route
from rookery.pipelines import document
from rookery.sealed import parquet
from rookery.sealed.schema import SEALED_SCHEMA, schema_of
from rookery.sealed.sealing import sealed_writer
from rookery.spark.decoding import avro_rows
from rookery.store.recovery import Recovery
from rookery.wire import packed
from tests.fuzz.target import Target, words
from tests.fuzz.targets_amqp import table
from tests.fuzz.targets_http import NOW_MS, json_value

UNREADABLE = (RookeryError, ValueError, IndexError, KeyError, TypeError, OverflowError)
"""What reading a record may raise whose batch has a false checksum; `repair` goes on with the next one."""


def _message(rng: random.Random) -> Message:
    props = properties.encode(properties.Properties(headers=table(rng), content_type=words(rng)))
    route = Route(words(rng), words(rng))
    return Message(route, props, rng.randbytes(rng.randrange(60)), rng.randrange(1, 99), rng.randrange(3), 0, 0)


def _batch(rng: random.Random, seq: int) -> bytes:
    w = BytesWriter()
    for _ in range(rng.randrange(1, 4)):
        message = _message(rng)
        kind = rng.randrange(3)
        if kind == 0:
            records.write_record(w, 1, rng.randrange(99), NOW_MS, message, message.body, records.PLAIN)
        elif kind == 1:
            packing = rng.choice(("zlib", "zstd"))
            coding = records.ZLIB if packing == "zlib" else records.ZSTD
            records.write_record(w, 1, 5, NOW_MS, message, compression.packer(packing)(message.body), coding)
        else:
            records.write_document(w, records.MARK, ["t", "q", words(rng), 1, NOW_MS])
    return records.seal(w.getvalue(), 1, seq, seq - 1)


class Journal(Target):
    """A segment: a whole journal, or damage that is reported as such. What a false checksum covers is not believed, and
    can be looked at by `repair`.
    """

    tokens = (records.MAGIC_BYTES, b"\x00" * 36, b"\xff\xff\xff\xff")

    def make(self, rng: random.Random) -> bytes:
        return b"".join(_batch(rng, seq) for seq in range(1, rng.randrange(2, 4)))

    def check(self, data: bytes) -> None:
        def read(_segment: int, offset: int, size: int) -> bytes:
            return data[offset : offset + size]

        recovery = Recovery(Shard(b"x", 2), read, str, lambda _kind, _document: None)
        try:
            recovery.scan([(1, len(data))])
        except (StoreError, InvalidArgument):
            # damage, or a format that another version wrote
            pass
        self._look(data)

    def _look(self, data: bytes) -> None:
        """What `repair` does with a batch whose checksum is false."""
        size = records.batch_bytes(data, 0)
        if size < 0:
            return
        reader = records.Reader(data, records.BATCH_HEADER_BYTES, min(size, len(data)))
        view = records.RecordView()
        try:
            while reader.next():
                if reader.kind == records.RECORD:
                    view.read(data, reader.start)
                    view.envelope(data)
                    view.body(data)
                if reader.kind in (records.RECORD, records.PUT):
                    reader.message({})
        except UNREADABLE:
            pass


class Compressed(Target):
    """A byte for the coding, four for the stated size, then the body: no more than the stated size comes out."""

    def make(self, rng: random.Random) -> bytes:
        body = rng.choice((rng.randbytes(50), b"ab" * 500, bytes(100_000), b""))
        if rng.random() < 0.5:
            return b"\0" + len(body).to_bytes(4, "big") + zlib.compress(body)
        packer = zstandard.ZstdCompressor(write_content_size=rng.random() < 0.7, write_checksum=rng.random() < 0.5)
        return b"\1" + len(body).to_bytes(4, "big") + packer.compress(body)

    def check(self, data: bytes) -> None:
        size = int.from_bytes(data[1:5], "big") % (1 << 24)
        try:
            found = compression.unpack(data[5:], data[:1] != b"\0", size)
        except StoreDamaged:
            return
        assert len(found) == size


ROWS_MAX_BYTES = 64 << 20
_NAMES = {"stream": "s", "exchange": "", "topic": "s", "queue": ""}


class ArrowRows(Target):
    """An Arrow IPC stream of rows to be staged: rows whose bytes can be read, or an error."""

    def __init__(self) -> None:
        self._decoder = ArrowDecoder(ROWS_MAX_BYTES // EXPANSION_MAX)

    def make(self, rng: random.Random) -> bytes:
        count = rng.randrange(5)
        columns: dict[str, Any] = {"value": pa.array([rng.randbytes(9) for _ in range(count)], self._bytes(rng))}
        for name in rng.sample(("key", "routing_key", "message_id", "content_type", "stream"), rng.randrange(4)):
            texts = ["s" if name == "stream" else words(rng) for _ in range(count)]
            columns[name] = pa.array(texts, rng.choice((pa.string(), pa.large_string())))
        if rng.random() < 0.5:
            columns["partition"] = pa.array([0] * count, rng.choice((pa.int64(), pa.int8(), pa.uint64())))
        if rng.random() < 0.5:
            columns["timestamp"] = pa.array([NOW_MS] * count, pa.timestamp("ms", tz="UTC"))
        if rng.random() < 0.5:
            headers = [[(words(rng), words(rng))] * rng.randrange(3) for _ in range(count)]
            columns["headers"] = pa.array(headers, pa.map_(pa.string(), rng.choice((pa.string(), pa.binary()))))
        made = pa.table(columns)
        if rng.random() < 0.2 and count:
            made = made.set_column(0, "value", made.column("value").dictionary_encode())
        sink = io.BytesIO()
        coding = rng.choice((None, "zstd", "lz4"))
        options = pa.ipc.IpcWriteOptions(compression=coding)
        with pa.ipc.new_stream(sink, made.schema, options=options) as writer:
            writer.write_table(made, max_chunksize=rng.choice((1, 2, 100)))
        return sink.getvalue()

    def _bytes(self, rng: random.Random) -> pa.DataType:
        return rng.choice((pa.binary(), pa.large_binary(), pa.binary(9), pa.binary_view()))

    def check(self, data: bytes) -> None:
        try:
            rows = self._rows(data)
        except RookeryError:
            return
        for row in rows:
            properties.decode(row.props)
            row.key.encode()
            assert len(bytes(row.body)) <= ROWS_MAX_BYTES

    def _rows(self, data: bytes) -> list[Row]:
        """The rows of a body as the server gets them, from the process that decodes. Nine bodies of ten are decoded
        here, as that process does it, so that a crash is seen: there, it is an error like every other.
        """
        if zlib.crc32(data) % 10:
            try:
                for _ in arrow_rows.parts_of(data, "key", _NAMES, NOW_MS, ROWS_MAX_BYTES):
                    pass
            except OSError:
                # which that process takes for the end of the server
                raise
            except Exception:  # noqa: BLE001 - every other error refuses the body
                pass
            return []
        return self._decoder.rows(data, "key", _NAMES, NOW_MS)

    def close(self) -> None:
        self._decoder.close()


class Sealed(Target):
    """A sealed file: its records, or damage."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(suffix=".parquet")  # noqa: SIM115 - lives as long as the process
        self._path = Path(self._file.name)

    def close(self) -> None:
        self._file.close()

    def make(self, rng: random.Random) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sealed"
            count = rng.randrange(1, 6)
            columns = {field.name: self._values(rng, field, count) for field in SEALED_SCHEMA}
            with sealed_writer(path) as writer:
                writer.write_table(pa.table(columns, schema=SEALED_SCHEMA))
            return path.read_bytes()

    def _values(self, rng: random.Random, field: pa.Field, count: int) -> pa.Array:
        if field.name == "offset":
            return pa.array(range(count), field.type)
        if pa.types.is_integer(field.type):
            return pa.array([rng.randrange(100) for _ in range(count)], field.type)
        if pa.types.is_timestamp(field.type):
            return pa.array([NOW_MS] * count, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(field.type)
        if pa.types.is_string(field.type):
            return pa.array([words(rng) for _ in range(count)], field.type)
        if pa.types.is_binary(field.type):
            return pa.array([rng.randbytes(12) for _ in range(count)], field.type)
        return pa.array([None] * count, field.type) if field.nullable else pa.array([[]] * count, field.type)

    def check(self, data: bytes) -> None:
        self._path.write_bytes(data)
        same = {"tenant": "t", "stream": "s", "partition": 0}
        for work in (
            lambda: parquet.records_of(self._path, 0, 100),
            lambda: list(parquet.batches(self._path, 1, 50, schema_of([]), same, "a.#")),
            lambda: parquet.first_at(self._path, NOW_MS),
        ):
            try:
                work()
            except StoreError:
                pass


_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
            {"name": "raw", "type": "bytes"},
            {"name": "next", "type": ["null", "order"]},
            {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a", "b"]}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "mark", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }
)


class Avro(Target):
    """Each body is a row, or corrupt; never an error of the whole batch."""

    def __init__(self) -> None:
        self._parsed = fastavro.parse_schema(json.loads(_SCHEMA))

    def make(self, rng: random.Random) -> bytes:
        made = self._row(rng, 0)
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, self._parsed, made)
        return sink.getvalue()

    def _row(self, rng: random.Random, depth: int) -> dict[str, Any]:
        return {
            "id": rng.randrange(-(1 << 63), 1 << 63),
            "name": rng.choice((None, words(rng))),
            "lines": [{words(rng): 1.5} for _ in range(rng.randrange(3))],
            "raw": rng.randbytes(5),
            "next": self._row(rng, depth + 1) if depth < 3 and rng.random() < 0.5 else None,
            "kind": rng.choice("ab"),
            "at": NOW_MS,
            "price": b"\x01\x02",
            "mark": "12345678-1234-5678-1234-567812345678",
        }

    def check(self, data: bytes) -> None:
        (row,) = avro_rows([data], _SCHEMA, "_corrupt")
        assert row is not None
        assert row.get("_corrupt", data) == data


class Packed(Target):
    """MessagePack as clients and brokers exchange it, behind a byte for what it is."""

    tokens = (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 40,
        b"\xc4\x02\x00\x00",
        b"\xcf",
    )

    def __init__(self) -> None:
        from rookery.client.messages import unpack

        self._unpack = unpack
        self._readers = (packed.decode_publishes, packed.decode_work, packed.decode_messages, packed.decode_page)

    def make(self, rng: random.Random) -> bytes:
        kind = rng.randrange(4)
        props = properties.encode(properties.Properties(headers=table(rng)))
        publish = packed.PackedPublish(props, rng.randbytes(5))
        made: Any = [publish] * rng.randrange(1, 4)
        if kind == 1:
            made = packed.PackedWork([publish], [packed.PackedSettle("lease", "ack")])
        elif kind > 1:
            made = json_value(rng, 0)
        return bytes([kind]) + msgspec.msgpack.encode(made)

    def check(self, data: bytes) -> None:
        kind = (data[0] if data else 0) % 4
        try:
            found = packed.read(self._readers[kind], data[1:])
        except InvalidArgument:
            return
        again = packed.read(self._readers[kind], packed.encode(found))
        assert packed.encode(again) == packed.encode(found)
        if kind == 2:
            for each in found:
                try:
                    self._unpack(each)
                except InvalidArgument:
                    pass


class Definitions(Target):
    """A document of definitions: loaded, and then exported and loaded again, or refused."""

    tokens = (
        b'{"rookery":1,"tenants":[',
        b'{"name":"t","queues":[{"name":"q","face":"amqp","settings":{}}]}',
        b'"arguments":{"a":{"$decimal":"1E-5"}}',
        b'{"$timestamp":5}',
        b'{"$bytes":"AA=="}',
        b'{"$float":"nan"}',
        b'{"$datetime":"2026-01-01T00:00:00"}',
        b'{"$table":{}}',
        b'"limits":{"queues_max":1}',
        b"1e999",
        b'{"$float":' + b"9" * 400 + b"}",
    )

    def make(self, rng: random.Random) -> bytes:
        arguments = {words(rng): rng.choice(({"$timestamp": 5}, {"$decimal": "1.5"}, {"$float": "inf"}, 5, "x"))}
        made = {
            "name": "t",
            "limits": {"queues_max": 5},
            "policies": [{"name": "p", "pattern": "^a", "settings": {"max_attempts": 5}, "priority": 1}],
            "exchanges": [{"name": "x", "kind": rng.choice(("topic", "headers")), "arguments": arguments}],
            "queues": [{"name": "q", "face": "amqp", "settings": {}}],
            "streams": [{"name": "s", "settings": {"partitions": 2}}],
            "bindings": [{"source": "x", "target": "q", "target_kind": "queue", "key": "a", "arguments": arguments}],
        }
        for name in rng.sample(tuple(made), rng.randrange(3)):
            if name != "name":
                del made[name]
        return json.dumps({"rookery": 1, "tenants": [made]}).encode()

    def check(self, data: bytes) -> None:
        try:
            wanted = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        shard = Shard(b"x", 1)
        try:
            definitions.load(shard, wanted)
        except RookeryError:
            return
        whole = records.encode_json(definitions.export(shard))
        again = Shard(b"x", 1)
        definitions.load(again, records.decode_json(whole))  # type: ignore[arg-type]
        assert records.encode_json(definitions.export(again)) == whole


class Pipelines(Target):
    """A file of a pipeline: its specification, or an error with the line."""

    tokens = (
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/object:x ",
        b"- ",
        b": ",
        b"${X:-y}",
        b"|\n  ",
        b"{" * 40,
        b"\t",
        b"---\n",
        b"!!binary ",
    )

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(suffix=".yaml")  # noqa: SIM115 - lives as long as the process
        self._path = Path(self._file.name)

    def close(self) -> None:
        self._file.close()

    def make(self, rng: random.Random) -> bytes:
        source = {"stream": "orders", "start": "earliest", "every": "10s", "options": json_value(rng, 1)}
        made = {
            "name": "p",
            "source": source,
            "steps": [{"sql": "select 1"}],
            "sink": {"table": "t"},
            "x": [1, None, 2.5],
        }
        return yaml.safe_dump(made).encode()

    def check(self, data: bytes) -> None:
        self._path.write_bytes(data)
        try:
            value = document.read(self._path)
            value.plain()
            for each in value.fields().values():
                each.raw()
                each.duration_ms()
        except InvalidPipeline:
            pass
