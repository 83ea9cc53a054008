"""What needs more rights than messages do: tenants, users, keys and connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rookery.client.aio.link import AsyncLink
from rookery.client.http import part
from rookery.embed.context import check_name, check_text


class AsyncAdmin:
    """The broker's administration, for a client with the rights for it."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def tenants(self) -> list[dict[str, Any]]:
        """All tenants, with their limits and counts."""
        return await pages(self._link, "/api/v1/tenants", "tenants")

    async def create_tenant(self, name: str, **limits: int) -> dict[str, Any]:
        """Make a tenant, or change the limits of one."""
        path = f"/api/v1/tenants/{part(check_name(name, 'tenant'))}"
        found: dict[str, Any] = await self._link.put(path, {"limits": limits})
        return found

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant with everything in it."""
        await self._link.delete(f"/api/v1/tenants/{part(check_name(name, 'tenant'))}")

    async def keys(self, tenant: str = "default") -> list[dict[str, Any]]:
        """The keys of a tenant, without their secrets."""
        found: list[dict[str, Any]] = (await self._link.get("/keys", tenant=check_name(tenant, "tenant")))["keys"]
        return found

    async def create_key(self, tenant: str = "default", **more: object) -> str:
        """A new key of a tenant; `rights` and the like are those of the API. It is shown this once."""
        answer = await self._link.post("/keys", {"tenant": check_name(tenant, "tenant"), **more})
        return str(answer["api_key"])

    async def revoke_key(self, kid: str) -> None:
        """End a key by its id, the part before the dot."""
        await self._link.delete(f"/keys/{part(check_text(kid, 'kid'))}")

    async def users(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._link.get("/api/v1/users"))["users"]
        return found

    async def set_user(
        self, name: str, password: str, *, tenants: Mapping[str, Mapping[str, str]] | None = None, admin: bool = False
    ) -> None:
        """Make a user, or change one; `tenants` has the rights in each: configure, write, read."""
        body = {"password": check_text(password, "password"), "tenants": tenants or {}, "admin": bool(admin)}
        await self._link.put(f"/api/v1/users/{part(check_name(name, 'name'))}", body)

    async def delete_user(self, name: str) -> None:
        await self._link.delete(f"/api/v1/users/{part(check_name(name, 'name'))}")

    async def connections(self) -> list[dict[str, Any]]:
        """Who is connected."""
        found: list[dict[str, Any]] = (await self._link.get("/api/v1/connections"))["connections"]
        return found


async def pages(link: AsyncLink, path: str, field: str) -> list[Any]:
    """All rows of a list that comes in pages."""
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = await link.get(path, after=after, limit=1_000)
        found += page[field]
        after = page.get("next")
    return found
