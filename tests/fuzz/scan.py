"""Finds the modules of Rookery that decode bytes or texts: those that call what decoding is done with."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

_CALLS = """
    msgspec.json.decode msgspec.json.Decoder msgspec.msgpack.decode msgspec.msgpack.Decoder msgspec.yaml.decode
    msgspec.toml.decode json.load json.loads json.JSONDecoder tomllib.load tomllib.loads
    zlib.decompress zlib.decompressobj gzip.decompress gzip.open gzip.GzipFile bz2.decompress lzma.decompress
    zipfile.ZipFile tarfile.open shutil.unpack_archive pickle.load pickle.loads marshal.loads
    httptools.HttpRequestParser httptools.HttpResponseParser httptools.parse_url
    jwt.decode jwt.get_unverified_header jwt.PyJWKSet.from_dict
    yaml.compose yaml.load yaml.safe_load yaml.SafeLoader
    pa.ipc.open_file
"""
"""By their whole names."""

_NAMES = """
    b64decode b32decode b16decode a85decode b85decode urlsafe_b64decode standard_b64decode a2b_base64 unhexlify fromhex
    from_bytes unpack_from iter_unpack read_i16_be read_i32_be read_i64_be read_f32_be read_f64_be
    open_stream ParquetFile read_table read_row_group ParquetDataset
    schemaless_reader parse_schema load_pem_public_key
    unquote unquote_to_bytes unquote_plus parse_qs parse_qsl urlsplit urlparse urljoin
    fromisoformat strptime parsedate_to_datetime ip_address literal_eval fromstring
"""
"""By the last part of their names."""

CALLS = frozenset(_CALLS.split())
NAMES = frozenset(_NAMES.split())


def decoding() -> dict[str, list[str]]:
    """The modules that decode, and with what. Generated ones are left out: they are like what they are made from."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if ".blocking" in name:
            continue
        calls = {_name(node.func) for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)}
        used = sorted(call for call in calls if call in CALLS or call.rpartition(".")[2] in NAMES)
        if used:
            found[name] = used
    return found


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
