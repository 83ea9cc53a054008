"""`rookery definitions`: what was declared, as one JSON document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from rookery.cli.commands import command, family
from rookery.cli.session import Session
from rookery.errors import InvalidArgument

app = family("Queues, exchanges, bindings, streams, policies, webhooks as one JSON document.")


@command(
    app,
    "export",
    "rookery definitions export > definitions.json",
    "rookery definitions export --all --access > everything.json",
)
def export(
    at: Session,
    tenant: Annotated[str, typer.Option("--tenant", help="Another's (admin).")] = "",
    all: Annotated[bool, typer.Option("--all", help="Of every tenant (admin).")] = False,
    access: Annotated[bool, typer.Option("--access", help="Keys and users too, as digests (admin).")] = False,
) -> None:
    """Print the definitions of a tenant, by default the key's own, without messages. It holds secrets of webhooks."""
    found = at.get("/definitions", tenant=tenant, all=all, access=access)
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


@command(
    app,
    "import",
    "rookery definitions import definitions.json",
    "rookery definitions export | rookery definitions import - --url http://other:8080 --key KEY",
)
def load(
    at: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - for stdin.")] = "-",
) -> None:
    """Let everything in a document exist. What is there already must agree with it; on an error nothing changes."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        document = msgspec.json.decode(data)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}", argument="FILE") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not JSON: {error}", argument="FILE") from None
    loaded = at.post("/definitions", body=document)
    at.out.done(f"definitions of {', '.join(loaded['tenants'])} are in force", loaded)
