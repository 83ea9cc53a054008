"""`rookery keys`, `rookery users` and `rookery tenants`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rookery.cli.commands import Prefix, Yes, command, family, pairs, time_option
from rookery.cli.output import Columns, ago, confirm, size
from rookery.cli.session import Session
from rookery.errors import InvalidArgument

keys = family("List, create and revoke API keys.")
users = family("List, show, set and delete users (admin).")
tenants = family("List, show, create, limit and delete tenants (admin).")

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Configure = Annotated[str | None, typer.Option("--configure", help="Names it may configure: a regular expression.")]
Write = Annotated[str | None, typer.Option("--write", help="Names it may publish to.")]
Read = Annotated[str | None, typer.Option("--read", help="Names it may read.")]
Limits = Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as queues_max=100; 0 is no limit.")]


def _rights(configure: str | None, write: str | None, read: str | None) -> dict[str, str] | None:
    """What is said of rights; when something is, the rest is nothing."""
    if configure is None and write is None and read is None:
        return None
    return {"configure": configure or "", "write": write or "", "read": read or ""}


def _shown_rights(rights: Any) -> str:
    return " ".join(f"{name}={rights[name]!r}" for name in ("configure", "write", "read"))


# Keys


@command(keys, "list", "rookery keys list", "rookery keys list --tenant shop")
def list_keys(at: Session, tenant: Annotated[str, typer.Option("--tenant", help="Another's (admin).")] = "") -> None:
    """The keys of a tenant, without their secrets."""
    columns: Columns = {
        "kid": "kid",
        "tenant": "tenant",
        "admin": "admin",
        "rights": lambda row: _shown_rights(row["rights"]),
        "made": lambda row: ago(row["created_ms"]),
        "expires": lambda row: ago(row["expires_ms"]),
        "note": "note",
    }
    at.out.table(at.get("/keys", tenant=tenant)["keys"], columns, empty="There are no keys.")


@command(
    keys,
    "create",
    "rookery keys create --tenant shop",
    "rookery keys create --tenant shop --write '^orders$' --note 'the web shop' --expires 90d",
    "export ROOKERY_API_KEY=$(rookery keys create --tenant shop --json | jq -r .api_key)",
)
def create_key(
    at: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", help="A new one is made; else the key's own.")] = None,
    configure: Configure = None,
    write: Write = None,
    read: Read = None,
    admin: Annotated[bool, typer.Option("--admin", help="With the admin right.")] = False,
    expires: Annotated[int | None, time_option("--expires", "How long it is valid, such as 90d.")] = None,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
) -> None:
    """Make an API key; it is shown this once. Without rights named, it may do everything in its tenant."""
    body: dict[str, Any] = {"admin": admin, "note": note}
    if tenant is not None:
        body["tenant"] = tenant
    rights = _rights(configure, write, read)
    if rights is not None:
        body["rights"] = rights
    if expires is not None:
        body["expires_in_sec"] = max(1, expires // 1000)
    at.out.record(at.post("/keys", body=body))


@command(keys, "revoke", "rookery keys revoke KID --yes")
def revoke(
    at: Session, kid: Annotated[str, typer.Argument(metavar="KID", help="As `list` shows it.")], yes: Yes = False
) -> None:
    """Revoke a key: its next use fails, and its connections end."""
    confirm(f"Revoke key {kid}?", yes)
    at.out.done(f"key {kid} revoked", at.delete("/keys/{}", kid))


# Users


@command(users, "list", "rookery users list")
def list_users(at: Session) -> None:
    """All users."""
    columns: Columns = {
        "user": "name",
        "admin": "admin",
        "tenants": lambda row: "; ".join(f"{tenant}: {_shown_rights(r)}" for tenant, r in row["tenants"].items()),
    }
    at.out.table(at.get("/users")["users"], columns, empty="There are no users.")


@command(users, "show", "rookery users show anna")
def show_user(at: Session, user: User) -> None:
    """A user, and what it may do where."""
    at.out.record(at.get("/users/{}", user))


@command(
    users,
    "set",
    "rookery users set anna --tenant shop --write '.*' --read '.*' < password.txt",
    "rookery users set anna --admin --keep-password",
)
def set_user(
    at: Session,
    user: User,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Where the rights are; replaces others.")] = None,
    configure: Configure = None,
    write: Write = None,
    read: Read = None,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="The admin right.")] = None,
    keep_password: Annotated[bool, typer.Option("--keep-password", help="Do not ask for one.")] = False,
) -> None:
    """Make or change a user. The password is asked for on a terminal, else read from stdin."""
    body: dict[str, Any] = {}
    if not keep_password:
        body["password"] = _password()
    rights = _rights(configure, write, read)
    if tenant is not None:
        body["tenants"] = {tenant: rights or {"configure": ".*", "write": ".*", "read": ".*"}}
    elif rights is not None:
        raise InvalidArgument("rights are of a tenant: say which with --tenant", argument="--tenant")
    if admin is not None:
        body["admin"] = admin
    at.out.done(f"user {user} is set", at.put("/users/{}", user, body=body))


def _password() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise InvalidArgument("there is no password on stdin; --keep-password leaves it as it is", argument="password")
    return text


@command(users, "delete", "rookery users delete anna --yes")
def delete_user(at: Session, user: User, yes: Yes = False) -> None:
    """Delete a user; its connections end."""
    confirm(f"Delete user {user}?", yes)
    at.out.done(f"user {user} deleted", at.delete("/users/{}", user))


# Tenants


@command(tenants, "list", "rookery tenants list", "rookery tenants list --json | jq -r '.[].name'")
def list_tenants(at: Session, prefix: Prefix = "") -> None:
    """All tenants, with what they have."""
    columns: Columns = {
        "tenant": "name",
        "queues": "stats.queues",
        "exchanges": "stats.exchanges",
        "ready": "stats.totals.ready",
        "dead": "stats.totals.dead",
        "published": "stats.published",
        "memory": lambda row: size(row["stats"]["memory_bytes"]),
    }
    at.out.table(at.pages("/tenants", "tenants", prefix=prefix), columns)


@command(tenants, "show", "rookery tenants show shop")
def show_tenant(at: Session, tenant: TenantName) -> None:
    """A tenant: its limits and its counts."""
    at.out.record(at.get("/tenants/{}", tenant))


@command(tenants, "create", "rookery tenants create shop", "rookery tenants create shop queues_max=100")
def create_tenant(at: Session, tenant: TenantName, limits: Limits = []) -> None:  # noqa: B006
    """Make a tenant, with limits if some are said."""
    made = at.put("/tenants/{}", tenant, body={"limits": pairs(limits, "NAME=VALUE")})
    at.out.done(f"tenant {tenant} is there", made)


@command(tenants, "limits", "rookery tenants limits shop", "rookery tenants limits shop connections_max=50")
def limits(at: Session, tenant: TenantName, limits: Limits = []) -> None:  # noqa: B006
    """What a tenant may have; with NAME=VALUE, change it."""
    if limits:
        found = at.put("/tenants/{}/limits", tenant, body=pairs(limits, "NAME=VALUE"))
    else:
        found = at.get("/tenants/{}/limits", tenant)
    at.out.record(found)


@command(tenants, "delete", "rookery tenants delete shop --yes")
def delete_tenant(at: Session, tenant: TenantName, yes: Yes = False) -> None:
    """Delete a tenant with everything in it, its keys too."""
    confirm(f"Delete tenant {tenant} with everything in it?", yes)
    at.out.done(f"tenant {tenant} deleted", at.delete("/tenants/{}", tenant))
