"""Runs one job: starts its query, watches it, starts it again after a failure, and tells how it is doing.

A failure counts until a batch gets done; after `restart.retries` in a row the job has failed, and stays so until
somebody starts it again. That the engine itself is gone (its JVM, its server) is for the owner of the session:
`EngineLost`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import BrokerUnreachable, EngineLost, NotFound, RookeryError
from rookery.lake.pipelines import LastError, Place, Progress, Status, now_ms
from rookery.pipelines.frames import OBSERVED
from rookery.pipelines.jobs import Job

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SEC: Final = 0.5
TELL_MS: Final = 5_000
"""How long a status may stay without being written again."""
QUIET_SEC: Final = 20.0
"""How long a query that is to stop may take for the batch it is at."""
ERROR_MAX: Final = 4_000
BEGINNING: Final = "Initializing"
"""How Spark's words for the state of a query begin until its sources are there."""

_RAISED: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.+)", re.MULTILINE)
_RAISED_BY_JAVA: Final = re.compile(r"An error occurred while calling \S+\n: (?:[\w.$]*\.)?(\w+): (.+)")


class Runner:
    """One job in one session. `heard` is called with each news, from the thread of `run`.

    Queries with the same `turn`, a lock, begin one after the other. `doubted` is asked after a failure whether the
    engine itself may be at fault. `again`: failures in a row with the engine before count.
    """

    def __init__(
        self,
        job: Job,
        root: str | Path,
        spark: SparkSession,
        *,
        once: bool = False,
        heard: Callable[[Status], None] | None = None,
        turn: AbstractContextManager[object] | None = None,
        doubted: Callable[[], bool] = lambda: False,
        again: bool = False,
    ) -> None:
        self.job = job
        self.place = Place(root, job.name)
        self.spark = spark
        self._once = once
        self._heard = heard or (lambda _: None)
        self._turn = turn or nullcontext()
        self._doubted = doubted
        self._again = again
        self.failures = 0
        """In a row, and with this engine."""
        self._stopping = threading.Event()
        self._seen: tuple[int, str] = (-1, "")
        self.status = Status(job.name, "starting", job.file, job.engine.master, started_ms=now_ms())

    def stop(self) -> None:
        """End after the batch that is being made. May be called from anywhere."""
        self._stopping.set()

    def run(self) -> Status:
        """Run until the job has finished, was stopped, or has failed for good."""
        with self.place.lock():
            self._remember()
            if self._again and self.place.stop_wanted:
                # whoever stopped it did not mean the engine that it was with
                self._tell("stopped")
                return self.status
            self.place.want_stop(False)
            self._tell("starting")
            try:
                self._tell(self._live())
            except BaseException as error:
                self._failed(error)
                self._tell("failed")
                raise
        return self.status

    def _live(self) -> str:
        identity = self.place.claim(self.job.fingerprint, self.job.file)
        restart = self.job.restart
        while True:
            try:
                state = self._attempt(identity.app)
                if state == "stopped":
                    return state
                self._well()
                if self._once or not self.job.trigger.repeats:
                    return state
                pause = self._until_next()
                self._tell("waiting", pause)
            except Exception as error:
                self._failed(error)
                if not alive(self.spark):
                    raise EngineLost(f"Spark is gone: {reason(error)}") from error
                self.status.restarts += 1
                self.failures += 1
                if self.status.restarts > restart.retries or self._for_good(error):
                    return "failed"
                if self._doubted():
                    raise EngineLost(f"{reason(error)} (trying again with a new Spark)") from error
                pause = min(restart.backoff_max_ms, restart.backoff_ms * 2 ** (self.status.restarts - 1)) / 1000
                self._tell("restarting", pause)
            if self._paused(pause):
                return "stopped"

    def _for_good(self, error: Exception) -> bool:
        """Whether it would be the same again. A broker may come back, and what is missing may be made meanwhile."""
        passing: tuple[type[RookeryError], ...] = (BrokerUnreachable,) if self._once else (BrokerUnreachable, NotFound)
        return isinstance(error, RookeryError) and not isinstance(error, passing)

    def _attempt(self, app: str) -> str:
        """One query from its start to its end: `finished` or `stopped`. Raises what it failed with."""
        with self._turn:
            query = self.job.start(self.spark, self.place, app, once=self._once)
            while query.isActive and query.status["message"].startswith(BEGINNING) and not self._stop_wanted():
                time.sleep(POLL_SEC / 10)
        self._tell("running")
        while not query.awaitTermination(POLL_SEC):  # type: ignore[arg-type]
            self._look(query)
            if self._stop_wanted():
                _stop(query)
                self._look(query)
                return "stopped"
        error = query.exception()
        if error is not None:
            raise error
        self._look(query)
        return "finished"

    def _stop_wanted(self) -> bool:
        return self._stopping.is_set() or self.place.stop_wanted

    def _paused(self, seconds: float) -> bool:
        """Wait; whether somebody wanted it to stop meanwhile."""
        until = time.monotonic() + seconds
        while not self._stop_wanted():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._stopping.wait(min(left, POLL_SEC))
            if now_ms() - self.status.updated_ms > TELL_MS:
                self.place.tell(self.status)
        return True

    def _until_next(self) -> float:
        trigger = self.job.trigger
        if trigger.cron is None:
            return trigger.every_ms / 1000
        now = datetime.now(UTC)
        then = trigger.cron.next_after(now)
        assert then is not None, "checked when it was read"
        return (then - now).total_seconds()

    # News

    def _remember(self) -> None:
        """What was told before goes on: how many rows there were, and what went wrong last."""
        try:
            before = self.place.status()
        except RookeryError:
            return
        self.status.progress, self.status.error = before.progress, before.error
        if self._again:
            self.status.restarts = before.restarts

    def _tell(self, state: str, pause: float = 0.0) -> None:
        self.status.state = state
        self.status.next_ms = now_ms() + int(pause * 1000) if pause else 0
        self.place.tell(self.status)
        self._heard(self.status)

    def _well(self) -> None:
        self.status.restarts = self.failures = 0

    def _failed(self, error: BaseException) -> None:
        self.status.error = LastError(reason(error), now_ms())

    def _look(self, query: StreamingQuery) -> None:
        """Take over what the query has done since."""
        news = False
        for found in query.recentProgress:
            each = json.loads(found.json)
            mark = (each["batchId"], each["timestamp"])
            if mark > self._seen and each.get("numInputRows") is not None:
                self._seen = mark
                self.status.progress = progress(each, self.status.progress)
                self._well()
                news = True
        if news:
            self._tell("running")
        elif now_ms() - self.status.updated_ms > TELL_MS:
            self.place.tell(self.status)


def progress(found: dict[str, Any], before: Progress) -> Progress:
    """What Spark reports of a batch, added to what was before."""
    counts = dict(before.failed_expectations)
    observed = (found.get("observedMetrics") or {}).get(OBSERVED) or {}
    for name, count in observed.items():
        counts[name] = counts.get(name, 0) + (count or 0)
    rows = found["numInputRows"]
    durations = {name: int(ms) for name, ms in (found.get("durationMs") or {}).items()}
    batch_ms = durations.get("triggerExecution", 0)
    return Progress(
        batch=found["batchId"],
        at_ms=_time_ms(found["timestamp"]),
        rows=rows,
        rows_per_sec=round(rows * 1000 / batch_ms, 1) if batch_ms else 0.0,
        batch_ms=batch_ms,
        lag=lag(found.get("sources") or []),
        total_rows=before.total_rows + rows,
        durations_ms=durations,
        failed_expectations=counts,
    )


def lag(sources: list[dict[str, Any]]) -> int | None:
    """How many records wait behind what a batch has read; None when no source says it."""
    known = None
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        for stream, partitions in latest.items():
            if not isinstance(partitions, dict):
                continue
            read = end.get(stream) or {}
            known = (known or 0) + sum(max(0, last - read.get(each, 0)) for each, last in partitions.items())
    return known


def _offsets(found: Any) -> dict[str, Any] | None:
    """Offsets, which Spark hands on as an object or as its text."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None
    return found if isinstance(found, dict) else None


def _time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def reason(error: BaseException) -> str:
    """What went wrong, in words for a person: of a trace inside of Spark's words only what was raised."""
    text = re.split(r"\n+(?:JVM stacktrace|=== Streaming Query ===)", str(error))[0].strip() or type(error).__name__
    traced = text.rfind("Traceback (most recent call last)")
    if traced >= 0:
        # what Python raises for an exception of Java names only the call; that of Java is in the line below
        raised = _RAISED_BY_JAVA.search(text, traced) or _RAISED.search(text, traced)
        if raised:
            return f"{raised[1]}: {raised[2]}"[:ERROR_MAX]
    return text[:ERROR_MAX]


def alive(spark: SparkSession) -> bool:
    """Whether a session still answers."""
    try:
        return bool(spark.conf.get("spark.sql.session.timeZone"))
    except Exception:  # noqa: BLE001  py4j and gRPC each have their own
        return False


def _stop(query: StreamingQuery) -> None:
    """Stop a query, if that can be had between two batches."""
    until = time.monotonic() + QUIET_SEC
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(POLL_SEC / 10)
    query.stop()
