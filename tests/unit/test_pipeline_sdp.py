"""Pipelines written as projects of Spark Declarative Pipelines, and those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.errors import InvalidPipeline
from rookery.pipelines.sdp import write_project
from rookery.pipelines.spec import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def test_a_project_has_all_that_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_API_KEY", "secret")
    columns = ["order_id", "customer", "amount_cents", "routing_key", "key"]
    files = write_project(load(EXAMPLES / "orders-enriched.yaml"), tmp_path / "out", tmp_path / "root", columns)
    assert [str(each.relative_to(tmp_path / "out")) for each in files] == [
        "spark-pipeline.yml",
        "transformations/orders_enriched.py",
        "steps.py",
    ]
    text = files[1].read_text()
    compile(text, "orders_enriched.py", "exec")
    assert "secret" not in text
    assert 'BROKER["token"] = os.environ["ROOKERY_API_KEY"]' in text
    assert (
        ".selectExpr('to_json(struct(`order_id`, `customer`, `amount_cents`)) AS value', '`routing_key`', '`key`')"
        in text
    )
    assert 'dp.create_sink("orders_enriched_quarantine_sink", "rookery"' in text
    assert "steps.with_tax(input, {'rates': {'eu': 0.2, 'us': 0.07}})" in text
    assert "storage: file://" in files[0].read_text()


def test_tables_joins_and_watermarks(tmp_path: Path) -> None:
    text = ""
    for name in ("sensor-minutes", "paid-orders"):
        files = write_project(load(EXAMPLES / f"{name}.yaml"), tmp_path / name, tmp_path / "root", [])
        text = files[1].read_text()
        compile(text, name, "exec")
        assert "@dp.table(name=" in text
        assert ".withWatermark('" in text
    assert "ordered=ordered, paid=paid)" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("source: {stream: a}\nsink: {table: b, mode: merge, keys: [x]}", "p.yaml:2: sink.mode: .*no merge"),
        (
            "source: {stream: a}\nexpect: [{name: x, check: 'true'}]\nquarantine: {table: q}\nsink: {stream: b}",
            "p.yaml:3: quarantine",
        ),
        (
            "sources: {a: {stream: a}, b: {table: b}}\ntransform: [{sql: 'FROM {a} JOIN {b}'}]\nsink: {stream: b}",
            "p.yaml:1: .*Delta",
        ),
    ],
)
def test_what_cannot_be_said_there_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(InvalidPipeline, match=words):
        write_project(load(path), tmp_path / "out", tmp_path, [])
    assert not (tmp_path / "out").exists()
