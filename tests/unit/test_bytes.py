"""The stand-in for librt behaves as librt does: the same calls give the same results and the same kinds of error."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mypy_extensions import i16, i32, i64, u8

from rookery import _compiled
from rookery.format import bytes as _bytes
from rookery.format import bytes_fallback as _bytes_fallback
from rookery.format import properties

librt_strings = pytest.importorskip("librt.strings")
librt_vecs = pytest.importorskip("librt.vecs")

READERS = ["read_i16_be", "read_i32_be", "read_i64_be", "read_f32_be", "read_f64_be"]
WRITERS = ["write_i16_be", "write_i32_be", "write_i64_be"]
EDGES = [0, 1, -1, 0x7F, 0x80, 0x7FFF, 0x8000, -0x8000, -0x8001, 0xFFFF, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63]
integers = st.integers(-(2**65), 2**65) | st.sampled_from(EDGES)


def outcome(call: Any, *arguments: object) -> object:
    """What a call gives, or the kind of error it raises."""
    try:
        result = call(*arguments)
    except Exception as error:  # noqa: BLE001 - the kind of error is what is compared
        return type(error)
    return "nan" if isinstance(result, float) and math.isnan(result) else result


def test_the_package_uses_librt_where_it_is_installed() -> None:
    assert _bytes.BytesWriter is librt_strings.BytesWriter
    assert _bytes.vec is librt_vecs.vec


@pytest.mark.skipif(_compiled.report()["rookery.format.properties"], reason="compiled modules need librt itself")
def test_the_package_works_without_librt() -> None:
    program = (
        "import sys; sys.modules['librt'] = sys.modules['librt.strings'] = sys.modules['librt.vecs'] = None\n"
        "from rookery.format import bytes as b, bytes_fallback, properties as p\n"
        "assert b.BytesWriter is bytes_fallback.BytesWriter\n"
        "wire = p.encode(p.Properties(priority=3, headers={'a': [1, 2**40, None, 1.5, 'x', b'y']}, timestamp=2**63))\n"
        "assert p.encode(p.decode(wire)) == wire\n"
        "print(p.with_headers(wire, {'b': True}).hex())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    wire = bytes.fromhex(run.stdout)
    assert properties.headers(wire) == {"a": [1, 2**40, None, 1.5, "x", b"y"], "b": True}
    assert properties.encode(properties.decode(wire)) == wire


def test_both_modules_serve_the_same_names() -> None:
    assert all(hasattr(_bytes_fallback, name) for name in _bytes.__all__)


@given(st.binary(max_size=12), st.integers(-3, 14) | st.just(2**70), st.sampled_from(READERS))
def test_reading(data: bytes, index: int, reader: str) -> None:
    ours, theirs = getattr(_bytes_fallback, reader), getattr(librt_strings, reader)
    assert outcome(ours, data, index) == outcome(theirs, data, index) or index == 2**70


def test_reading_wants_bytes() -> None:
    with pytest.raises(TypeError):
        _bytes_fallback.read_i16_be(bytearray(4), 0)  # type: ignore[arg-type]


@given(integers, st.sampled_from(WRITERS))
def test_writing_integers(number: int, writer: str) -> None:
    ours, theirs = _bytes_fallback.BytesWriter(), librt_strings.BytesWriter()
    assert outcome(getattr(_bytes_fallback, writer), ours, number) == outcome(
        getattr(librt_strings, writer), theirs, number
    )
    assert ours.getvalue() == theirs.getvalue()


@given(st.floats(allow_nan=False))
def test_writing_floats(number: float) -> None:
    ours, theirs = _bytes_fallback.BytesWriter(), librt_strings.BytesWriter()
    for module, writer in ((_bytes_fallback, ours), (librt_strings, theirs)):
        module.write_f32_be(writer, number)
        module.write_f64_be(writer, number)
    assert ours.getvalue() == theirs.getvalue()


operation = st.one_of(
    st.tuples(st.just("append"), st.integers(-2, 258)),
    st.tuples(st.just("write"), st.binary(max_size=5) | st.binary(max_size=5).map(bytearray)),
    st.tuples(st.just("write"), st.just("text")),
    st.tuples(st.just("truncate"), st.integers(-2, 12)),
    st.tuples(st.just("__getitem__"), st.integers(-8, 8)),
    st.tuples(st.just("__setitem__"), st.integers(-8, 8), st.integers(-2, 258)),
    st.tuples(st.just("getvalue")),
    st.tuples(st.just("__len__")),
)


@given(st.lists(operation, max_size=20))
def test_a_writer_goes_the_same_way(operations: list[tuple[Any, ...]]) -> None:
    ours, theirs = _bytes_fallback.BytesWriter(), librt_strings.BytesWriter()
    for name, *arguments in operations:
        assert outcome(getattr(ours, name), *arguments) == outcome(getattr(theirs, name), *arguments)
        assert ours.getvalue() == theirs.getvalue()
        assert list(ours) == list(theirs)  # type: ignore[call-overload]
        assert repr(ours) == repr(theirs)


def run_vec(module: ModuleType, item: object, start: list[int], operations: list[tuple[Any, ...]]) -> list[object]:
    """The history of a vec that is rebound at each step, as vecs are used."""
    seen: list[object] = []
    try:
        v = module.vec[item](start)
    except Exception as error:  # noqa: BLE001 - the kind of error is what is compared
        return [type(error)]
    for name, *arguments in operations:
        try:
            if name == "append":
                v = module.append(v, *arguments)
            elif name == "pop":
                v, popped = module.pop(v, *arguments)
                seen.append(popped)
            elif name == "set":
                v[arguments[0]] = arguments[1]
            else:
                seen.append(v[arguments[0]])
        except (IndexError, TypeError) as error:
            seen.append(type(error))
        except (OverflowError, ValueError):
            seen.append("out of range")
        seen.append((len(v), list(v), repr(v), 1 in v))
    return seen


small = st.integers(-2, 300)
vec_operation = st.one_of(
    st.tuples(st.just("append"), small | integers),
    st.tuples(st.just("append"), st.just("x")),
    st.tuples(st.just("pop")),
    st.tuples(st.just("pop"), st.integers(-4, 4)),
    st.tuples(st.just("set"), st.integers(-4, 4), small),
    st.tuples(st.just("get"), st.integers(-4, 4)),
)


@given(st.sampled_from([i64, i32, i16, u8]), st.lists(st.integers(0, 200), max_size=4), st.lists(vec_operation))
def test_a_vec_goes_the_same_way(item: object, start: list[int], operations: list[tuple[Any, ...]]) -> None:
    assert run_vec(_bytes_fallback, item, start, operations) == run_vec(librt_vecs, item, start, operations)


def test_a_vec_of_objects() -> None:
    v = _bytes_fallback.vec[str](["a"])
    v = _bytes_fallback.append(v, "b")
    assert list(v) == ["a", "b"]
    assert repr(v) == repr(librt_vecs.append(librt_vecs.vec[str](["a"]), "b"))
    assert list(v[1:]) == ["b"]
    with pytest.raises(TypeError):
        _bytes_fallback.vec()
