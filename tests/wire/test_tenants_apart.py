"""What one tenant has, another can neither see, nor guess, nor time.

Every route is asked by a stranger with full rights of its own, once for names that somebody has and once for names that
nobody has, and answers and does the same.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.wire.http_world import World, world
from tests.wire.test_http_auth import _fitting

WITHOUT_END = ("/stream", "/consume")
"""Answers that go on; who may open them is asked for before."""

QUERY = "queue={queue}&message_id={message_id}&seconds=1&source={exchange}&target={queue}&tenant={tenant}"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("apart"), line_port=0, claim_wait_sec="0.01", key_creation="admin") as made:
        made.inside(lambda server: server._turns.stop())
        yield made


@pytest.fixture(scope="module")
def owned(web: World) -> dict[str, str]:
    """What the owner has, by what it is."""
    owner = web.large("owner")
    message = {"message": "theirs"}
    names = {kind: f"{kind}-of-the-owner" for kind in ("queue", "exchange", "stream", "policy", "group", "consumer")}
    names |= {"tenant": "owner", "transaction": "tx-of-the-owner", "producer": "producer-of-the-owner", "cut": "1"}
    names |= {"member": "member-of-the-owner"}
    owner.put(f"/api/v1/queues/{names['queue']}")
    for _ in range(4):
        owner.post(f"/api/v1/queues/{names['queue']}/publish", json=message)
    names["lease"] = owner.post(f"/api/v1/queues/{names['queue']}/pull").json()["delivery_tag"]
    claimed = owner.post(f"/claim?queue={names['queue']}").json()
    names["message_id"] = claimed["message_id"]
    owner.put(f"/api/v1/topics/{names['exchange']}")
    made = owner.post(f"/api/v1/topics/{names['exchange']}/subscriptions", json={"mode": "pull"}).json()
    names["subscription"] = made["subscription_id"]
    owner.put(f"/api/v1/streams/{names['stream']}")
    owner.post(f"/api/v1/streams/{names['stream']}/publish", json=message)
    names["plan"] = owner.post(f"/api/v1/streams/{names['stream']}/plan", json={}).json()["plan"]
    owner.post(f"/api/v1/streams/{names['stream']}/groups/{names['group']}/join", json={"member": names["member"]})
    owner.put(f"/api/v1/policies/{names['policy']}", json={"pattern": "nothing", "settings": {"ttl_ms": 1}})
    owner.put(f"/api/v1/transactions/{names['transaction']}", json={})
    hook = owner.post(
        f"/api/v1/queues/{names['queue']}/webhooks", json={"endpoint": "https://192.0.2.1/hook", "secret": "s" * 20}
    )
    names["webhook"] = hook.json().get("id", "none")
    chunk = f"chunk-of-the-owner?chunk=c-of-the-owner&producer={names['producer']}"
    owner.post(f"/api/v1/streams/{names['stream']}/stage?{chunk.partition('?')[2]}", json=[{"message": 1}])
    names["chunk"] = "c-of-the-owner"
    owner.post(f"/api/v1/queues/{names['queue']}/cuts", json={"consumer": names["consumer"], "max": 1})
    names["key"] = str(owner.get("/keys").json()["keys"][0]["kid"])
    return names


def nobodys(names: dict[str, str]) -> dict[str, str]:
    """Names and ids as long, which nobody has."""
    other = {kind: value.replace("owner", "nobdy") for kind, value in names.items()}
    for kind in ("message_id", "subscription", "plan", "webhook", "key"):
        other[kind] = names[kind][::-1].swapcase()
    other["cut"] = names["cut"]
    return other


PLACES = {
    "/api/v1/queues/": "queue",
    "/api/v1/topics/": "exchange",
    "/api/v1/exchanges/": "exchange",
    "/api/v1/streams/": "stream",
    "/api/v1/policies/": "policy",
    "/api/v1/pipelines/": "policy",
    "/api/v1/webhooks/": "webhook",
    "/api/v1/transactions/": "transaction",
}


FIELDS = {kind: kind for kind in ("lease", "member", "queue", "exchange", "consumer")}
FIELDS |= {"leases": "lease", "delivery_tag": "lease", "source": "exchange", "target": "queue", "to": "queue"}
RANDOM = "delivery_tag|lease|request_id|message_id|api_key|kid|secret|plan|member|id|subscription_id"


def url_of(path: str, names: dict[str, str]) -> str:
    first = next((kind for place, kind in PLACES.items() if path.startswith(place)), "queue")
    filled = path.replace("{name}", names[first])
    if "/subscriptions/" in path:
        filled = filled.replace("{id}", names["subscription"])
    filled = filled.replace("{id}", names[first]).replace("{kid}", names["key"]).replace("{user}", names["policy"])
    return filled.format_map(defaultdict(lambda: "any", names))


def body_of(method: str, path: str, names: dict[str, str]) -> Any:
    body = dict(_fitting(method, path))
    for field, kind in FIELDS.items():
        if field in body:
            body[field] = [names[kind]] if field == "leases" else names[kind]
    return body


def plain(answer: httpx.Response, names: list[str]) -> str:
    """An answer without what differs from call to call, and with the names as one."""
    text = answer.text
    for value in sorted(names, key=len, reverse=True):
        if len(value) > 2:
            text = text.replace(value, "*")
    text = re.sub(rf'"({RANDOM})":"[^"]*"', r'"\1":"*"', text)
    text = re.sub(r'"(\w+_ms|generation|connections|requests)":-?[\d.]+', r'"\1":0', text)
    text = re.sub(r"(sub|webhook)\.[\w-]+", r"\1.*", text)
    text = re.sub(r'"buckets":\[[^"]*\]', '"buckets":[]', text)
    return f"{answer.status_code} {text}"


def test_no_answer_depends_on_what_somebody_else_has(web: World, owned: dict[str, str]) -> None:
    stranger = web.large("stranger")
    before = picture(web)
    nobody = nobodys(owned)
    tried = 0
    for path, operations in web.client.get("/openapi.json").json()["paths"].items():
        if path.endswith(WITHOUT_END) or "metrics" in path or path == "/api/v1/definitions":
            continue
        for method in operations:
            tried += 1
            answers = []
            for names in (owned, nobody):
                url = f"{url_of(path, names)}?{QUERY.format_map(names)}"
                answer = stranger.request(method, url, json=body_of(method, path, names))
                answers.append(plain(answer, [*owned.values(), *nobody.values()]))
                assert answer.status_code < 500, answer.text
            assert answers[0] == answers[1], (method, path)
    assert tried > 100
    assert picture(web) == before
    newcomer = web.large("newcomer")
    for path in ("/metrics", "/api/v1/definitions", "/api/v1/stats", "/stats", "/api/v1/connections", "/keys"):
        assert "of-the-owner" not in newcomer.get(path).text, path


def picture(web: World) -> Any:
    """Everything that the owner has, as the core knows it."""

    def look(server: Any) -> Any:
        tenant = server.engine.shard.tenants["owner"]
        queues = {q.name: (int(q.ready + q.leased), int(q.acked), q.consumers()) for q in tenant.queues.values()}
        ends = {s.name: [int(p.end) for p in s.partitions] for s in tenant.streams.values()}
        groups = {s.name: [(g, m.generation) for g, m in s.groups.items()] for s in tenant.streams.values()}
        keys = [key.kid for key in server.access.keys("owner")]
        return queues, sorted(tenant.exchanges), ends, groups, keys, len(server.engine.shard.transactions)

    return web.inside(look)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/exchanges/{exchange}"),
        ("GET", "/api/v1/streams/{stream}"),
        ("GET", "/api/v1/queues/{queue}"),
        ("GET", "/api/v1/streams/{stream}/groups/{group}"),
        ("DELETE", "/keys/{key}"),
        ("GET", "/api/v1/transactions/{transaction}"),
        ("GET", "/api/v1/webhooks/{webhook}"),
        ("POST", "/api/v1/queues/{queue}/settle"),
    ],
)
def test_the_same_is_done_for_names_that_somebody_has(
    web: World, owned: dict[str, str], method: str, path: str
) -> None:
    """No time can be taken where the very same functions run."""
    stranger = web.large("watched")
    done = []
    third = {kind: value.replace("owner", "third") for kind, value in owned.items()}
    for names in (third, owned, nobodys(owned)):  # the first warms up
        ran: list[str] = []

        def watch(frame: Any, event: str, _: Any, ran: list[str] = ran) -> None:
            file = frame.f_code.co_filename
            if event == "call" and "rookery/wire" in file and not _TRANSPORT.search(file):
                ran.append(frame.f_code.co_qualname)

        web.run(_profile(watch))
        stranger.request(method, path.format_map(names), json={"leases": [names["lease"]]})
        web.run(_profile(None))
        done.append([name for name in ran if "tick" not in name and "profile" not in name])
    assert done[1] == done[2] != []


_TRANSPORT = re.compile(r"/(http/connection|http/heads|http/call|turn)\.py$")
"""What depends on the pieces that a request comes in."""


async def _profile(watch: Any) -> None:
    sys.setprofile(watch)
