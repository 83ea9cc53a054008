"""Damaged data directories: found to be so, and made whole again with all that is left."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rookery import Broker
from rookery.care.repair import Report, inspect, repair
from rookery.core import streams
from rookery.errors import InvalidArgument, OffsetOutOfRange, StoreDamaged, StoreLocked
from rookery.format import properties
from tests.contract.journal_world import FileSite, World, batches, picture


class Place:
    """A data directory that can be damaged."""

    def __init__(self, where: Path) -> None:
        self.site = FileSite(where)
        self.directory = self.site.directory

    def path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.log"

    def numbers(self) -> list[int]:
        return self.site.numbers()

    def ends(self, number: int) -> list[tuple[int, int]]:
        return [(at, at + int(header.size)) for at, header in batches(self.path(number).read_bytes())]

    def flip(self, number: int, at: int) -> None:
        data = bytearray(self.path(number).read_bytes())
        data[at] ^= 0x40
        self.path(number).write_bytes(data)

    def flip_in(self, number: int, text: bytes) -> None:
        self.flip(number, self.path(number).read_bytes().index(text))

    def start(self, directory: Path | None = None, **options: Any) -> World:
        if directory is not None:
            self.site.directory = directory
        return self.site.start(**options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    world = made.start(segment_bytes=700)
    world.queue()
    world.queue("r")
    for n in range(12):
        world.publish(b"message %d " % n + b"x" * 100, "q" if n % 3 else "r")
        world.write()
    world.publish_once("k", b"once")
    world.write()
    world.ack(2)
    world.write()
    world.close()
    assert len(made.numbers()) >= 3
    return made


def content(world: World) -> list[bytes]:
    return sorted(body for name in world.tenant().queues for body in world.bodies(name))


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# Looking


def test_a_sound_directory_has_no_damage(place: Place) -> None:
    before = files(place.directory)
    seen: list[tuple[int, int]] = []
    report = inspect(place.directory, lambda done, total: seen.append((done, total)))
    assert report.sound
    assert report.unfinished is None
    assert [segment.number for segment in report.segments] == place.numbers()
    assert report.batches == sum(len(place.ends(number)) for number in place.numbers())
    assert report.epoch == 1
    assert seen[-1] == (seen[-1][1], seen[-1][1])
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert files(place.directory) == before
    assert report.lines()[-1] == "no damage"


def test_an_unfinished_end_is_no_damage(place: Place) -> None:
    world = place.start()
    world.publish(b"one more")
    world.write()
    world.publish(b"and another")
    world.write()
    place.site.kill(world)
    last = place.numbers()[-1]
    data = place.path(last).read_bytes()
    start, end = place.ends(last)[-1]
    place.path(last).write_bytes(data[: end - 3])
    report = inspect(place.directory)
    assert report.sound
    assert report.unfinished is not None
    assert (report.unfinished.offset, report.unfinished.file) == (start, str(place.path(last)))


def test_damage_is_named_with_file_and_offset_as_the_broker_names_it(place: Place) -> None:
    chance = random.Random(2)
    last = place.numbers()[-1]
    for number in place.numbers():
        good = place.path(number).read_bytes()
        ends = place.ends(number)
        for start, end in ends[:-1] if number == last else ends:
            place.flip(number, chance.randrange(start, end))
            report = inspect(place.directory)
            (damage,) = report.damage
            assert (damage.file, damage.offset, damage.end, damage.batches) == (str(place.path(number)), start, end, 1)
            with pytest.raises(StoreDamaged) as caught:
                place.start()
            assert (caught.value.file, caught.value.offset) == (damage.file, damage.offset)
            place.path(number).write_bytes(good)


def test_several_damages_are_all_named(place: Place) -> None:
    first, second, *_ = place.numbers()
    place.flip(first, place.ends(first)[1][0])
    place.flip(second, place.ends(second)[0][0] + 50)
    place.path(place.numbers()[2]).unlink()
    report = inspect(place.directory)
    assert [damage.file for damage in report.damage][:2] == [str(place.path(first)), str(place.path(second))]
    assert any("missing" in damage.reason for damage in report.damage)
    assert len(report.lines()) == 1 + len(report.damage)


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        inspect(tmp_path / "nowhere")
    with pytest.raises(InvalidArgument):
        repair(tmp_path / "nowhere", tmp_path / "out")
    assert inspect(tmp_path).sound


# Repairing


def repaired(place: Place, tmp_path: Path) -> tuple[Report, World]:
    before = files(place.directory)
    out = tmp_path / "out"
    report = repair(place.directory, out)
    assert {name: data for name, data in files(place.directory).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    assert report.out == str(out)
    assert inspect(out).sound
    world = place.start(out)
    return report, world


def test_a_sound_directory_is_copied_as_it_is(place: Place, tmp_path: Path) -> None:
    world = place.start()
    before = picture(world)
    world.close()
    report, world = repaired(place, tmp_path)
    assert before == picture(world)
    assert (report.messages, report.doubtful_messages, report.settles_left_out) == (11, 0, 0)
    world.publish(b"it goes on")
    world.close()
    assert b"it goes on" in place.start().bodies()


def test_every_batch_may_be_the_damaged_one(place: Place, tmp_path: Path) -> None:
    """Whatever batch it is, only that one is hurt: all other messages are there, and no other ones."""
    world = place.start()
    whole = content(world)
    acked = {b"message 1 " + b"x" * 100, b"message 2 " + b"x" * 100}
    world.close()
    chance = random.Random(3)
    for number in place.numbers():
        good = place.path(number).read_bytes()
        for start, end in place.ends(number):
            place.flip(number, chance.randrange(start, end))
            out = tmp_path / f"out-{number}-{start}"
            report = repair(place.directory, out)
            world = place.start(out)
            found = [
                entry.message.body
                for tenant in world.shard.tenants.values()
                for queue in tenant.queues.values()
                for entry in queue.ready_entries()
            ]
            missing = [body for body in whole if body not in found]
            assert len(missing) <= 1, (number, start, missing)
            strange = [body for body in found if body not in whole and body not in acked]
            assert len(strange) <= report.doubtful_messages
            if missing:
                assert report.damage or report.unfinished
            world.close()
            place.path(number).write_bytes(good)


def test_a_message_of_a_damaged_batch_is_doubtful(place: Place, tmp_path: Path) -> None:
    number = place.numbers()[0]
    place.flip_in(number, b"message 2 ")
    report, world = repaired(place, tmp_path)
    assert report.doubtful_messages == 1
    assert report.batches_lost == 1
    assert any("may be wrong" in line for line in report.lines())
    assert len(content(world)) == 11
    world.close()


def test_settles_of_a_damaged_batch_are_left_out(place: Place, tmp_path: Path) -> None:
    world = place.start()
    world.publish(b"so that the settles are not the end")
    world.close()
    number = place.numbers()[-2]
    _, end = place.ends(number)[-1]
    place.flip(number, end - 6)
    report, world = repaired(place, tmp_path)
    assert report.settles_left_out == 2
    assert len(content(world)) == 11 + 2 + 1
    assert any("delivered again" in line for line in report.lines())
    world.close()


def test_a_missing_segment_costs_what_was_in_it(place: Place, tmp_path: Path) -> None:
    world = place.start()
    whole = content(world)
    world.close()
    gone = place.numbers()[1]
    in_it = [body for body in whole if body in place.path(gone).read_bytes()]
    assert in_it
    place.path(gone).unlink()
    report, world = repaired(place, tmp_path)
    assert [damage.file for damage in report.damage if "missing" in damage.reason]
    assert content(world) == [body for body in whole if body not in in_it]
    world.retire_all()
    world.close()
    assert content(place.start()) == [body for body in whole if body not in in_it]


def test_queues_whose_definition_is_lost_are_given_names(tmp_path: Path) -> None:
    place = Place(tmp_path)
    world = place.start()
    world.queue("precious")
    world.publish(b"1", "precious")
    world.write()
    world.publish(b"2", "precious")
    world.write()
    world.close()
    place.flip_in(1, b'"definitions"')
    report, world = repaired(place, tmp_path)
    (name,) = report.recovered_queues
    queue = world.shard.tenant("recovered").queue(name)
    assert [entry.message.body for entry in queue.ready_entries()] == [b"1", b"2"]
    assert any(name in line for line in report.lines())
    world.close()


def test_the_messages_of_a_queue_that_was_deleted_do_not_come_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    world = place.start()
    world.queue("gone")
    world.queue("kept")
    for name in ("gone", "kept"):
        world.publish(b"x", name)
    world.write()
    world.tenant().delete_queue("gone")
    world.write()
    world.roll()
    world.publish(b"y", "kept")
    world.write()
    world.close()
    place.flip_in(1, b'"definitions"')
    report, world = repaired(place, tmp_path)
    assert report.recovered_queues == []
    assert list(world.tenant().queues) == ["kept"]
    world.close()


def test_a_lost_deletion_is_no_conflict(tmp_path: Path) -> None:
    place = Place(tmp_path)
    world = place.start()
    world.queue("q", {"max_attempts": 1})
    world.tenant().declare_exchange("x", "direct")
    world.write()
    world.tenant().delete_queue("q")
    world.tenant().delete_exchange("x")
    world.write()
    world.queue("q", {"max_attempts": 2})
    world.tenant().declare_exchange("x", "fanout")
    world.publish(b"of the new one")
    world.write()
    world.close()
    start, end = place.ends(1)[1]
    data = place.path(1).read_bytes()
    place.path(1).write_bytes(data[:start] + bytes(end - start) + data[end:])
    report, world = repaired(place, tmp_path)
    assert report.batches_lost == 1
    assert world.queue().max_attempts == 2
    assert world.tenant().exchange("x").kind == "fanout"
    assert world.bodies() == [b"of the new one"]
    world.close()


def test_a_zeroed_page_and_noise(place: Place, tmp_path: Path) -> None:
    chance = random.Random(9)
    for n, number in enumerate(place.numbers()):
        good = place.path(number).read_bytes()
        for kind in range(6):
            data = bytearray(good)
            at = chance.randrange(len(data))
            size = min(chance.randrange(1, 600), len(data) - at)
            data[at : at + size] = bytes(size) if kind % 2 else chance.randbytes(size)
            place.path(number).write_bytes(data)
            report = repair(place.directory, tmp_path / f"out-{n}-{kind}")
            assert inspect(tmp_path / f"out-{n}-{kind}").sound
            assert report.damage or report.unfinished or bytes(data).rstrip(b"\0") == good.rstrip(b"\0")
        place.path(number).write_bytes(good)


def test_message_numbers_are_not_used_again(place: Place, tmp_path: Path) -> None:
    world = place.start()
    last = world.publish(b"new").id
    world.close()
    for number in place.numbers():
        for start, _ in place.ends(number)[1:]:
            place.flip(number, start + 40)
    _, world = repaired(place, tmp_path)
    world.queue()
    assert world.publish(b"x").id > last
    world.close()


@pytest.mark.parametrize("text", [None, "", "x\n", "0\n"])
def test_a_broken_epoch(place: Place, tmp_path: Path, text: str | None) -> None:
    if text is None:
        (place.directory / "epoch").unlink()
    else:
        (place.directory / "epoch").write_text(text)
    report, world = repaired(place, tmp_path)
    assert report.damage[0].file == str(place.directory / "epoch")
    assert len(content(world)) == 11
    assert world.shard.epoch > 1
    world.close()


# Streams


def test_lost_records_of_a_stream_leave_empty_ones(tmp_path: Path) -> None:
    made = Place(tmp_path)
    world = made.start(segment_bytes=700)
    streams.declare(world.tenant(), "log", {})
    for n in range(20):
        world.publish(b"record %d " % n + b"x" * 100, "log")
        world.write()
    world.close()
    for n, text in ((3, b"record 3 "), (4, b"record 4 "), (8, b"record 8 ")):
        number = next(number for number in made.numbers() if text in made.path(number).read_bytes())
        if n == 8:
            # with all that is in it
            made.path(number).unlink()
        else:
            made.flip(number, made.path(number).read_bytes().index(text) - 50)
    report = repair(made.directory, tmp_path / "out")
    assert report.records_lost
    world = made.start(tmp_path / "out")
    (partition,) = world.tenant().stream("log").partitions
    assert (partition.tail, partition.visible) == (0, 20)
    found = [world.shard.message_of(partition.record(offset)) for offset in range(20)]
    for n, message in enumerate(found):
        if message.body:
            assert message.body.startswith(b"record %d " % n)
        else:
            assert properties.decode(message.props).headers == {"x-lost": True}
    assert sum(not message.body for message in found) == report.records_lost
    stamps = [int(partition.stamp(offset)) for offset in range(20)]
    assert stamps == sorted(stamps)
    assert len({int(message.id) for message in found}) == 20
    world.publish(b"next", "log")
    world.write()
    assert partition.visible == 21
    world.close()


def test_an_untouched_stream_is_kept_as_it_is(tmp_path: Path) -> None:
    made = Place(tmp_path)
    world = made.start(segment_bytes=700)
    streams.declare(world.tenant(), "empty", {})
    streams.declare(world.tenant(), "log", {})
    for n in range(12):
        world.publish(b"record %d " % n + b"x" * 100, "log")
        world.write()
    world.close()
    report = repair(made.directory, tmp_path / "out")
    assert (report.records_lost, report.messages) == (0, 12)
    world = made.start(tmp_path / "out")
    assert world.tenant().stream("empty").partitions[0].visible == 0
    assert world.tenant().stream("log").partitions[0].visible == 12
    world.close()


def test_lost_files_of_sealed_records_are_seen_and_replaced(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    data = tmp_path / "data"
    with Broker(enable_persistence=True, persistence_path=str(data)) as broker:
        orders = broker.stream("orders")
        for day in range(4):
            orders.publish_many([f"record {day} {n}" for n in range(5)])
            orders.seal()
        orders.publish("last")
    files = sorted((data / "streams").rglob("*.parquet"))
    assert inspect(data).sound
    files[0].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-1])
    with pytest.raises(StoreDamaged):
        Broker(enable_persistence=True, persistence_path=str(data)).queues()
    found = inspect(data)
    assert [(damage.file, damage.reason) for damage in found.damage] == [
        (str(files[0]), "sealed records 0 to 4 are missing"),
        (str(files[2]), "sealed records 10 to 14 are missing"),
    ]
    report = repair(data)
    assert (report.records_let_go, report.records_lost, len(report.damage)) == (5, 5, 2)
    text = "\n".join(report.lines())
    assert "5 records of streams are lost: their partitions begin after them" in text
    assert "5 records of streams are lost: empty ones (x-lost)" in text
    assert inspect(data).sound
    with Broker(enable_persistence=True, persistence_path=str(data)) as broker:
        orders = broker.stream("orders")
        with pytest.raises(OffsetOutOfRange):
            orders.read(4)
        records = [record for start in (5, 10, 15, 20) for record in orders.read(start)]
        assert [record.offset for record in records] == list(range(5, 21))
        lost = [record for record in records if "x-lost" in record.message.meta]
        assert [record.offset for record in lost] == list(range(10, 15))
        assert [record.data for record in records if record not in lost] == [
            *(f"record {day} {n}" for day in (1, 3) for n in range(5)),
            "last",
        ]
        assert [record.time for record in records] == sorted(record.time for record in records)


# In place


def test_in_place_the_damaged_directory_is_kept(place: Place) -> None:
    for n, text in ((1, b"message 2 "), (2, b"message 3 ")):
        number = place.numbers()[0]
        place.flip_in(number, text)
        damaged = files(place.directory)
        report = repair(place.directory)
        kept = place.directory.with_name(f"{place.directory.name}.damaged-{n}")
        assert (report.out, report.kept) == (str(place.directory), str(kept))
        assert {k: v for k, v in files(kept).items() if k != "lock"} == {
            k: v for k, v in damaged.items() if k != "lock"
        }
        assert inspect(place.directory).sound
    # what is sound is left as it is
    before = files(place.directory)
    report = repair(place.directory)
    assert (report.sound, report.out, report.kept) == (True, None, None)
    assert {k: v for k, v in files(place.directory).items() if k != "lock"} == {
        k: v for k, v in before.items() if k != "lock"
    }
    world = place.start()
    assert len(content(world)) == 11
    world.close()


def test_a_directory_in_use_or_a_place_that_is_taken_is_refused(place: Place, tmp_path: Path) -> None:
    world = place.start()
    with pytest.raises(StoreLocked):
        repair(place.directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    world.close()
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidArgument):
        repair(place.directory, tmp_path / "out")
