"""Data directories that earlier formats of the journal made: each opens, and holds what it held."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rookery import __version__
from rookery.care.repair import inspect
from rookery.core.access import Access
from rookery.errors import StoreError
from rookery.format import records
from rookery.store import changes
from tests.contract.journal_world import FileSite, World, picture

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "tests" / "fixtures").glob("journal-*"))


def maker() -> ModuleType:
    """The script that made the fixtures: it knows how to describe them."""
    spec = importlib.util.spec_from_file_location("make_journal_fixture", ROOT / "tools" / "make_journal_fixture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_within(expected: Any, found: Any) -> bool:
    """Equal, but for settings that came later."""
    if isinstance(expected, dict):
        return all(name in found and is_within(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(is_within, expected, found))
    return bool(expected == found)


def opened(where: Path, wall_ms: int, access: Access) -> World:
    site = FileSite(where)
    return site.start(wall_ms=wall_ms, access=access)


def test_there_is_a_fixture_of_every_format() -> None:
    assert [path.name for path in FIXTURES] == ["journal-1"]


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name)
def test_a_directory_of_that_format_opens_with_all_that_is_in_it(fixture: Path, tmp_path: Path) -> None:
    content = json.loads((fixture / "content.json").read_text(encoding="utf-8"))
    shutil.copytree(fixture, tmp_path / "shard")
    assert inspect(tmp_path / "shard").sound
    access = Access(bytes)
    world = opened(tmp_path, content["wall_ms"], access)
    found = json.loads(json.dumps(maker().describe(world.shard)))
    for part in ("definitions", "dedup", "messages"):
        assert is_within(content[part], found[part]), part
    assert [key.kid for key in access.keys("acme")] == [content["kid"]]
    assert access.check_key(content["key"], content["wall_ms"]).tenant == "acme"
    assert [user.name for user in access.users()] == ["ann"]
    # and it goes on from there
    world.shard.publish(world.shard.tenant("acme"), "", "jobs", b"\0\0", b"new")
    world.retire_all()
    before = picture(world)
    world.close()
    assert inspect(tmp_path / "shard").sound
    world = opened(tmp_path, content["wall_ms"], Access(bytes))
    assert before == picture(world)
    assert world.shard.tenant("acme").queue("jobs").ready_entries()[-1].message.body == b"new"
    world.close()


@pytest.mark.parametrize("what", ["a change", "a record", "a setting", "a batch"])
def test_what_a_newer_version_wrote_is_refused_with_what_to_do(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is changed, and the version that wrote it goes on."""
    with monkeypatch.context() as newer:
        newer.setattr(changes, "__version__", "9.8.7")
        site = FileSite(tmp_path)
        world = site.start()
        world.queue()
        world.publish(b"kept")
        world.write()
        if what == "a change":
            world.shard.log.change("teleport", "default", {"name": "q"})
        elif what == "a setting":
            world.shard.log.change("limits", "default", {"dreams_max": 7})
        world.write()
        world.close()
    (number,) = site.numbers()
    path = site.directory / f"{number:08d}.log"
    data = path.read_bytes()
    if what == "a record":
        end, seq, epoch = 0, 0, 0
        while (header := records.BatchHeader(data, end)).sound:
            end, seq, epoch = end + int(header.size), int(header.seq), int(header.epoch)
        path.write_bytes(data[:end] + records.seal(b"\xc8" + bytes(30), epoch, seq + 1, seq))
    elif what == "a batch":
        path.write_bytes(data.replace(b"RKB1", b"RKB2"))
    before = path.read_bytes()
    with pytest.raises(StoreError) as refused:
        site.start()
    text = str(refused.value)
    assert f"Rookery {__version__} does not understand" in text
    assert "Start that version or a later one, or restore a backup" in text
    # the name of the version is in the journal itself
    assert ("written by Rookery 9.8.7." in text) == (what != "a batch")
    assert path.read_bytes() == before
