"""Bugs of the journal that the simulator must find, on a faulty medium, by the laws alone; see `bugs`."""

from __future__ import annotations

from tests.simulation.bugs import Bug


def _bug(name: str, path: str, old: str, new: str) -> Bug:
    part, file = path.split("/")
    return Bug(name, file, old, new, part, kept=True)


JOURNAL_BUGS = (
    # what is answered, and when
    _bug(
        "a confirm is released before the sync",
        "store/journal.py",
        '        sync = log.wants_sync and self.sync == "always"\n',
        "        sync = False\n",
    ),
    _bug(
        "a confirm is released when its batch is handed over",
        "store/journal.py",
        "        self._in_flight = (number, self._seq, segment.number, data, sync)\n        self._append()",
        "        self._in_flight = (number, self._seq, segment.number, data, sync)\n        log.durable = number\n"
        "        self._append()",
    ),
    _bug(
        "an ack is answered before it is written",
        "store/journal.py",
        "        self._in_flight = (number, self._seq, segment.number, data, sync)\n        self._append()",
        "        self._in_flight = (number, self._seq, segment.number, data, sync)\n        log.written = number\n"
        "        self._append()",
    ),
    _bug(
        "a failed sync is taken for a good one",
        "store/journal.py",
        "        if error is not None:\n            self._failed(error)\n            return\n        number, seq",
        "        if error is not None and not isinstance(error, StoreFailed):\n            self._failed(error)\n"
        "            return\n        number, seq",
    ),
    _bug(
        "a settle in a transaction is not synced",
        "core/transactions.py",
        "            shard.log.wants_sync = shard.log.active\n",
        "            pass\n",
    ),
    _bug(
        "settles that nobody waits for are not written in time",
        "store/journal.py",
        "        if self._lazy_since_ms is not None:\n            waits.append(",
        "        if self._lazy_since_ms is not None and self._full:\n            waits.append(",
    ),
    _bug(
        "the interval policy does not sync",
        "store/journal.py",
        "        return since is not None and int(self.shard.mono_ms) - since >= SYNC_MS",
        "        return False",
    ),
    _bug(
        "that there is room again is not noticed",
        "store/journal.py",
        "            else:\n                self.log.accept()\n",
        "",
    ),
    # batches
    _bug(
        "a batch of unknown outcome is appended twice",
        "store/journal.py",
        "        elif isinstance(error, StoreUnavailable):\n",
        "        elif isinstance(error, StoreUnavailable) and self._in_flight is not None:\n"
        "            number, _, place, data, sync = self._in_flight\n"
        "            self._seq += 1\n"
        "            data = records.seal(data[36:], self.shard.epoch, self._seq, self._synced)\n"
        "            self._in_flight = (number, self._seq, place, data, sync)\n",
    ),
    _bug(
        "a torn tail is accepted",
        "format/records.py",
        "        self.sound = found == stated",
        "        self.sound = True",
    ),
    _bug(
        "a transaction is split over two batches",
        "core/log.py",
        "        self._write_entries(w, segment)\n        if self._appended:",
        "        queues, entries = self._queues[3:], self._entries[3:]\n"
        "        del self._queues[3:], self._entries[3:]\n"
        "        self._write_entries(w, segment)\n"
        "        self._queues.extend(queues)\n        self._entries.extend(entries)\n        if self._appended:",
    ),
    _bug(
        "exits are written in the batch after",
        "core/log.py",
        "        if len(self._exits):\n            w.write(",
        "        if len(self._exits) and self.puts:\n            w.write(",
    ),
    _bug(
        "of a run of exits only the first counts",
        "store/recovery.py",
        "            end = seq + reader.count\n",
        "            end = seq + 1\n",
    ),
    # what is written of a message
    _bug(
        "a message is written without its delay",
        "core/log.py",
        "        due: i64 = entry.due_ms if entry.state == DELAYED else 0\n        records.place(",
        "        due: i64 = 0\n        records.place(",
    ),
    _bug(
        "attempts are lost",
        "core/queue.py",
        "        if self.journaled and entry.message.segment:\n            self.shard.log.back",
        "        if self.journaled and entry.message.segment and delay_ms > 0:\n            self.shard.log.back",
    ),
    _bug(
        "an expired message comes back to life",
        "core/queue.py",
        '        elif reason == "expired":\n            self.expired += 1\n',
        '        elif reason == "expired":\n            self.expired += 1\n            message.set_segment(0)\n',
    ),
    _bug(
        "a dedup key is not written",
        "core/topology.py",
        "        if self.shard.log.active:\n",
        "        if self.shard.log.active and exchange:\n",
    ),
    _bug(
        "message numbers of a lost process are used again",
        "store/journal.py",
        " + owners * IDS_PER_OWNER",
        "",
    ),
    # segments
    _bug(
        "a settle record is unlinked before its message",
        "store/journal.py",
        "            if reader.segment != here and journal.has_segment(int(reader.segment)):\n",
        "            if reader.segment > here and journal.has_segment(int(reader.segment)):\n",
    ),
    _bug(
        "a segment is deleted before what lived in it is durable elsewhere",
        "store/journal.py",
        "        self._wait_for = int(journal.log.batch)\n",
        "        self._wait_for = int(journal.log.batch)\n        self.settled(self._wait_for)\n",
    ),
    _bug(
        "attempts are lost when their segment retires",
        "store/journal.py",
        "            if entry is not None:\n                journal.log.back(queue, entry)\n",
        "            if entry is not None:\n                pass\n",
    ),
    _bug(
        "dedup keys are lost when their segment retires",
        "store/journal.py",
        "            if self._is_in_use(reader):\n                journal.log.note",
        "            if self._is_in_use(reader) and self.segment.exits:\n                journal.log.note",
    ),
    _bug(
        "a checkpoint misses open state",
        "store/changes.py",
        '        row["exchanges"] = [',
        '        row["policies"] = []\n        row["exchanges"] = [',
    ),
    # ownership
    _bug(
        "an owner that was taken over goes on confirming",
        "store/journal.py",
        "        if error is not None:\n            self._failed(error)\n            return\n        number, seq",
        "        if error is not None and getattr(error, 'code', '') != 'fenced':\n            self._failed(error)\n"
        "            return\n        number, seq",
    ),
    _bug(
        "a new owner reads the tail before it raises the epoch",
        "store/journal.py",
        "        epoch = self.medium.acquire()\n        shard.pager = self.pager\n",
        "        early = [self.medium.segments(), self.medium.recorded_end()]\n"
        "        pieces = {number: self.medium.read(number, 0, size) for number, size in early[0]}\n"
        "        self.medium.read = lambda number, at, size: pieces[number][at:at + size]\n"
        "        epoch = self.medium.acquire()\n        shard.pager = self.pager\n",
    ),
    _bug(
        "a new owner goes on in the segment of the old one",
        "store/journal.py",
        "        number = self._first_segment or self.segments[-1].number + 1\n",
        "        number = self.segments[-1].number if self.segments else self._first_segment\n",
    ),
    _bug(
        "what an owner writes after it was taken over counts, once the next has written",
        "store/recovery.py",
        "            end: i64 = newest.ends.get(segment, -1)\n",
        "            end: i64 = -1\n            self._recorded_segment = 0\n",
    ),
    _bug(
        "what an owner writes after it was taken over counts, before the next has written",
        "store/recovery.py",
        "        if window.segment < self._recorded_segment and header.seq > self._recorded_seq:\n",
        "        if False:\n",
    ),
    # paging
    _bug(
        "what is paged out is lost when its segment retires",
        "store/journal.py",
        "                    journal.log.move_paged(queue, reader.seq, reader.raw())\n",
        "                    pass\n",
    ),
)
