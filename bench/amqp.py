"""Rookery and RabbitMQ side by side over AMQP: server CPU per message, and the ratio of the two.

    python bench/amqp.py                                  # modes transient and confirm, 5 rounds
    python bench/amqp.py --modes latency,large --rounds 3
    python bench/amqp.py --tools ~/loadtools --python .venv/bin/python

The load comes from `amqpload`, a C program, and `compare.py` runs it in turn against both servers, interleaved, so
that a slow minute of the machine hits both alike; CPU is the run time of all threads of a server's processes. Both come
with `peers.sh` in the folder named by --tools; they are compiled and run in a temporary folder, and so is RabbitMQ: on
spare loopback ports, with its own data, no system service touched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TARGETS = {"transient": 0.06, "confirm": 0.06}


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        tools = _tools(arguments.tools, Path(folder) / "tools")
        with _rabbit(tools, Path(folder)) as rabbit, _rookery(arguments.python, Path(folder)) as rookery:
            print(_circumstances(rookery), flush=True)
            report = Path(folder) / "report.json"
            subprocess.run(
                [
                    sys.executable,
                    str(tools / "compare.py"),
                    *("--tool", "amqp", "--modes", arguments.modes, "--rounds", str(arguments.rounds)),
                    *("--figures", "con,cpu,p50,p99", "--json", str(report), "--extra", arguments.extra),
                    *("--pid", f"rabbit={rabbit['pid']}", "--pid", f"rookery={rookery['pid']}"),
                    f"rabbit=127.0.0.1:{rabbit['port']}/guest/guest/",
                    f"rookery=127.0.0.1:{rookery['port']}/guest/guest/",
                ],
                check=True,
            )
            return _verdict(json.loads(report.read_text()), arguments.modes.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=REPOSITORY.parent / "shared" / "bench", metavar="DIR")
    parser.add_argument("--modes", default="transient,confirm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--extra", default="", help="further options for amqpload")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has rookery installed")
    return parser.parse_args()


def _tools(source: Path, target: Path) -> Path:
    """The load tools, copied and compiled."""
    if not (source / "amqpload.c").exists() and not (source / "amqpload").exists():
        raise SystemExit(f"there is no amqpload in {source}; --tools names the folder that has it")
    target.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copy(file, target)
    if (target / "amqpload.c").exists():
        command = [os.environ.get("CC", "cc"), "-O2", "-o", "amqpload", "amqpload.c", "-lpthread"]
        subprocess.run(command, cwd=target, check=True)
    return target


@contextmanager
def _rabbit(tools: Path, folder: Path) -> Iterator[dict[str, int]]:
    ports = dict(zip(("AMQP_PORT", "RABBIT_MQTT_PORT", "EPMD_PORT", "DIST_PORT"), _free_ports(4), strict=True))
    environ = {**os.environ, **{name: str(port) for name, port in ports.items()}}
    place = str(folder / "peers")
    script = ["bash", str(tools / "peers.sh")]
    started = subprocess.run(
        [*script, "start", place, "rabbit"], env=environ, check=True, capture_output=True, text=True
    )
    if not started.stdout.strip():
        raise SystemExit(f"RabbitMQ did not start: {started.stderr}")
    _, pid, port = started.stdout.split()
    try:
        yield {"pid": int(pid), "port": int(port)}
    finally:
        subprocess.run([*script, "stop", place], env=environ, check=True, stdout=subprocess.DEVNULL)
        _wait_for(int(pid))
        # the port mapper that the node started stays behind
        epmd = shutil.which("epmd")
        if epmd:
            subprocess.run([epmd, "-port", environ["EPMD_PORT"], "-kill"], check=False, capture_output=True)


@contextmanager
def _rookery(python: str, folder: Path) -> Iterator[dict[str, object]]:
    command = [python, "-m", "rookery", "serve", "--host", "127.0.0.1", "--http-port", "off", "--amqp-port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"event":"listening"' in line:
                break
        else:
            raise SystemExit("rookery did not start:\n" + "".join(lines))
        said = json.loads(lines[-1])
        try:
            yield {"pid": process.pid, "port": int(said["amqp"].rpartition(":")[2]), "compiled": said["compiled"]}
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [], 30)
    os.close(handle)


def _circumstances(rookery: dict[str, object]) -> str:
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True, check=False
    ).stdout
    return (
        f"rookery {'compiled' if rookery['compiled'] else 'NOT COMPILED'}, Python {platform.python_version()}; "
        f"rabbitmq-server {version or 'of unknown version'}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; "
        "256-byte bodies, one publisher, one consumer unless the mode says otherwise"
    )


def _verdict(report: dict[str, object], modes: list[str]) -> int:
    """Print the CPU figures and their ratio, per mode; fail when the target is missed."""
    runs = report["runs"]
    assert isinstance(runs, dict)
    missed = False
    print(f"\n{'mode':<18}{'rabbit us/msg':>15}{'rookery us/msg':>16}{'ratio':>9}   per round")
    for mode in modes:
        rabbit, rookery = (
            [row["server_cpu_us_per_msg"] if row else None for row in runs[mode][name]]
            for name in ("rabbit", "rookery")
        )
        pairs = [(a, b) for a, b in zip(rabbit, rookery, strict=True) if a and b]
        if not pairs:
            print(f"{mode:<18} failed")
            missed = True
            continue
        ratios = [ours / theirs for theirs, ours in pairs]
        ratio = statistics.median(ratios)
        missed = missed or ratio > TARGETS.get(mode, ratio)
        print(
            f"{mode:<18}{statistics.median(a for a, _ in pairs):>15.2f}{statistics.median(b for _, b in pairs):>16.3f}"
            f"{ratio:>9.4f}   {' '.join(f'{each:.3f}' for each in ratios)}"
        )
    for mode in TARGETS.keys() & set(modes):
        print(f"target of {mode}: a ratio of at most {TARGETS[mode]}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
