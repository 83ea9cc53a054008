"""The connector as one file that executors load it from: nothing but pyspark and pyarrow has to be installed there.

Every manager of clusters brings the files of a job into the working directory of its executors, so the file is found
there by its name. A server of Spark Connect has to be started with it: what a session adds to a server is not seen by
the process in which Spark plans streams.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("rookery", "pyspark_rookery")
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"


def connector(folder: Path | None = None) -> Path:
    """The file, made if there is none of this source; equal sources make equal files."""
    root = Path(__file__).parents[2]
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    known = hashlib.sha256()
    for path in sources:
        known.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    made = (folder or cache_folder()) / f"rookery-{known.hexdigest()[:16]}.zip"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        fresh = made.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sources:
                entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), _DATE)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        fresh.replace(made)
    return made


def shipped(settings: dict[str, str]) -> dict[str, str]:
    """What lets executors of a cluster have the connector, added to what the caller says."""
    made = connector()
    files = [each for each in (settings.get("spark.files", ""), str(made)) if each]
    path = [each for each in (settings.get("spark.executorEnv.PYTHONPATH", ""), made.name) if each]
    return {"spark.files": ",".join(files), "spark.executorEnv.PYTHONPATH": os.pathsep.join(path)}
