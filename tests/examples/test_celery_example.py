"""The Celery example, started as its docstring says: a server, a worker and the program, each a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.examples.test_examples import ROOT, promised
from tests.interop.server import serving

EXAMPLE = ROOT / "examples" / "celery" / "tasks.py"


def test_the_celery_example_prints_what_it_promises(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        celery = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "error"]
        environment = {
            **os.environ,
            "CELERY_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{server.amqp}//",
            "PYTHONPATH": str(EXAMPLE.parent),
        }
        with subprocess.Popen(celery, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as worker:
            try:
                run = subprocess.run(
                    [sys.executable, str(EXAMPLE)],
                    capture_output=True,
                    text=True,
                    env=environment,
                    cwd=tmp_path,
                    timeout=60,
                    check=False,
                )
            finally:
                worker.kill()
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip() == promised(EXAMPLE)
