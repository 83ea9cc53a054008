"""The list of decoders is whole, its page is up to date, and its corpora stay small."""

from __future__ import annotations

from tests.fuzz.child import CORPUS
from tests.fuzz.decoders import DECODERS, TRUSTED
from tests.fuzz.page import PAGE, page
from tests.fuzz.scan import SOURCE, decoding

FILES_MAX = 200
BYTES_MAX = 500_000


def test_every_module_that_decodes_is_listed() -> None:
    listed = {module for decoder in DECODERS.values() for module in decoder.modules}
    found = decoding()
    missing = {module: calls for module, calls in found.items() if module not in listed | TRUSTED.keys()}
    assert not missing, (
        "list these in tests/fuzz/decoders.py: with a decoder and its limits, or whose bytes they decode"
    )
    assert not listed & TRUSTED.keys()
    assert not TRUSTED.keys() - found.keys(), "these decode nothing any more"
    for module in listed:
        assert (SOURCE / module.replace(".", "/")).with_suffix(".py").exists(), f"there is no module {module}"


def test_a_call_that_decodes_is_found() -> None:
    found = decoding()
    assert "httptools.HttpRequestParser" in found["rookery.wire.http.connection"]
    assert "zlib.decompressobj" in found["rookery.format.compression"]


def test_every_decoder_says_its_limits() -> None:
    for decoder in DECODERS.values():
        for limit in (decoder.size, decoder.depth, decoder.count, decoder.expansion, decoder.refusal):
            assert limit
            assert "|" not in limit


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.fuzz.page"


def test_the_corpora_belong_to_decoders_and_are_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= DECODERS.keys()
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) <= FILES_MAX
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX
