"""Every example runs and prints what it says it prints; every block of the embedded broker's page runs too."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import rookery

ROOT = Path(__file__).resolve().parents[2]
# those for Spark run where a session is, in tests/interop/test_spark_page.py
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("spark_"))
PAGE = ROOT / "docs" / "embedded.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

FEATURES = {
    "acknowledgements",
    "amqp_aio_pika",
    "amqp_pika",
    "async_consumer",
    "client",
    "deduplication",
    "delay_and_expiry",
    "embedded_basics",
    "message_groups",
    "monitoring",
    "policies",
    "priorities",
    "request_reply",
    "testing_with_pytest",
    "topics",
    "transactions",
    "typed_handlers",
    "work_queue",
}

# names of the library that the embedded face has the features of; the page says what ours are
THERE = """
    NewInProcBroker Publish Subscribe PublishBatch SubscribeBatch PublishPriority PublishTTL PublishWithAck Ack Nack
    PublishWithTransaction CommitTransaction RollbackTransaction PublishToDeadLetter GetDeadLetterStats DrainDeadLetter
    ReplayDeadLetter HealthCheck GetConfig UpdateConfig MaxTopics MaxSubscribers DefaultBufferSize EnableMetrics
    HealthCheckInterval EnablePriorityQueue EnableAckSupport DefaultAckTimeout MaxMemoryUsage EnableTransactions
    TransactionTimeout EnableDeadLetterQueue DeadLetterTopic MessageTTL EnableHealthCheck EnableTriePattern
    EnablePersistence PersistencePath RecoverMessages ReplayMessages
"""


def promised(example: Path) -> str:
    """What the example's docstring says it prints, `...` standing for anything within a line."""
    said = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    _, found, output = said.partition("Prints:\n\n")
    assert found, f"{example.name} does not say what it prints"
    return textwrap.dedent(output).strip()


@pytest.mark.row("S1-58", "S1-59")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(example: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1]), "PYTHONWARNINGS": "error"}
    # an example runs pytest
    environment.pop("PYTEST_ADDOPTS", None)
    run = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    pattern = re.escape(promised(example)).replace(r"\.\.\.", ".*")
    assert re.fullmatch(pattern, run.stdout.strip()), run.stdout


@pytest.mark.row("S1-59")
def test_there_is_an_example_for_each_feature_and_a_benchmark_command() -> None:
    assert {path.stem for path in EXAMPLES} >= FEATURES
    assert re.search(r"^bench:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert os.access(ROOT / "bench" / "run", os.X_OK)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_page_does_what_it_says(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that begin with `# >` are what the lines before them print."""
    monkeypatch.chdir(tmp_path)
    block = BLOCKS[number]
    expected = re.findall(r"^ *# ?> ?(.*)$", block, re.MULTILINE)
    printed = io.StringIO()
    names: dict[str, Any] = {"__name__": f"block_{number}"}
    with contextlib.redirect_stdout(printed):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
    assert printed.getvalue().splitlines() == expected


@pytest.mark.row("S1-58")
def test_the_page_has_a_block_for_each_thing_it_speaks_of() -> None:
    assert len(BLOCKS) >= 12
    said = PAGE.read_text(encoding="utf-8")
    for name in THERE.split():
        assert f"`{name}" in said, name
