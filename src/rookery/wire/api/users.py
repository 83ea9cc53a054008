"""Users with their passwords and rights, for admins."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rookery.core.access import PasswordHash, Rights, User, hash_password
from rookery.core.credentials import SALT_BYTES
from rookery.errors import NotFound, TenantNotFound
from rookery.wire.api.broker import Api
from rookery.wire.api.keys import RightsWanted
from rookery.wire.api.shapes import Deleted
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router

Password = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]

UserName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f:]+$")]


class UserWanted(msgspec.Struct, forbid_unknown_fields=True):
    """A new user needs a password; of an existing one, what is not said stays."""

    password: Password | None = None
    tenants: dict[str, RightsWanted] | None = None
    admin: bool | None = None


class UserShown(msgspec.Struct):
    name: str
    admin: bool
    tenants: dict[str, Rights]


class UserList(msgspec.Struct):
    users: list[UserShown]


class Users:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard
        self._access = api.rest.access

    def users(self, call: Call) -> UserList:
        """All users (admin)."""
        return UserList([_user(user) for user in self._access.users()])

    def user(self, call: Call, user: UserName) -> UserShown:
        """A user (admin)."""
        found = next((each for each in self._access.users() if each.name == user), None)
        if found is None:
            raise NotFound(f"no such user: {user}", argument="user")
        return _user(found)

    def set_user(self, call: Call, user: UserName, body: UserWanted) -> object:
        """Make or change a user (admin)."""
        for tenant in body.tenants or ():
            if tenant not in self._shard.tenants:
                raise TenantNotFound(f"no tenant {tenant!r}", argument="tenants")
        if body.password is None:
            return self._put_user(call, user, body, None)
        password, salt = body.password, self._api.random_bytes(SALT_BYTES)
        return self._api.later(
            call, lambda: hash_password(password, salt), lambda hashed: self._put_user(call, user, body, hashed)
        )

    def _put_user(self, call: Call, name: str, wanted: UserWanted, password: PasswordHash | None) -> Answer:
        created = not any(each.name == name for each in self._access.users())
        tenants = wanted.tenants
        rights = None if tenants is None else {t: Rights(r.configure, r.write, r.read) for t, r in tenants.items()}
        made = self._access.set_user(name, password=password, tenants=rights, admin=wanted.admin)
        call.lasting()
        return Answer(201 if created else 200, _user(made))

    def delete_user(self, call: Call, user: UserName) -> Deleted:
        """Delete a user; its connections end (admin)."""
        self._access.delete_user(user)
        call.lasting()
        return Deleted(user)


def _user(user: User) -> UserShown:
    return UserShown(user.name, user.admin, dict(user.tenants))


def add_routes(router: Router, api: Api) -> None:
    routes = Users(api)
    one = "/api/v1/users/{user}"
    router.add("GET", "/api/v1/users", routes.users, {200: UserList}, "user.show", tag="users")
    router.add("GET", one, routes.user, {200: UserShown}, "user.show", tag="users")
    router.add("PUT", one, routes.set_user, {201: UserShown, 200: UserShown}, "user.change", tag="users")
    router.add("DELETE", one, routes.delete_user, {200: Deleted}, "user.change", tag="users")
