"""Definitions in the journal: each change as a small document, and all of them as one, for the head of a segment.

Only what outlives a restart is written: durable queues that are nobody's own, durable exchanges, the bindings between
those, policies, limits, keys and users. Queues have numbers here, which are never used twice, so that a message never
lands in a queue that merely has the same name.
"""

from __future__ import annotations

from typing import Any

from rookery._version import __version__
from rookery.core import definitions, streams
from rookery.core.access import Access
from rookery.core.dedup import Dedup
from rookery.core.groups import group_of
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.stream import Partition, SealedFile, Stream
from rookery.core.topology import Exchange, Tenant

STREAMS = frozenset(
    {"stream", "alter-stream", "drop-stream", "trim", "sealed", "commit-group", "reset-group", "drop-group"}
)
STAGING = frozenset({"chunk", "drop-chunk", "commit-staged", "spool"})
CUTS = frozenset({"cut", "ack-cuts", "drop-cuts"})
WEBHOOKS = frozenset({"webhook", "drop-webhook"})
ACCESS = frozenset({"key", "drop-key", "user", "drop-user", "drop-access", "access"})


def document(operation: str, tenant: str, details: dict[str, Any]) -> dict[str, Any]:
    """One change as it is written."""
    row = dict(details)
    if "arguments" in row:
        row["arguments"] = definitions.plain_table(row["arguments"])
    return {**row, "op": operation, "tenant": tenant}


def state(shard: Shard, access: Access | None) -> dict[str, Any]:
    """All definitions and counters, as they are now."""
    whole = definitions.export(shard, access)
    for row in whole["tenants"]:
        tenant = shard.tenants[row["name"]]
        lasting = {name for name, queue in tenant.queues.items() if queue.number}
        exchanges = {name for name, exchange in tenant.exchanges.items() if exchange.durable}
        row["queues"] = [queue for queue in row["queues"] if queue["name"] in lasting]
        row["exchanges"] = [exchange for exchange in row["exchanges"] if exchange["durable"]]
        of_kind = {"queue": lasting, "exchange": exchanges, "stream": set(tenant.streams)}
        row["bindings"] = [
            b for b in row["bindings"] if b["source"] in exchanges and b["target"] in of_kind[b["target_kind"]]
        ]
    numbers = [
        [tenant.name, queue.name, int(queue.number), int(queue.seq)]
        for tenant in shard.tenants.values()
        for queue in tenant.queues.values()
        if queue.number
    ]
    return {
        "written_by": __version__,
        "definitions": whole,
        "numbers": numbers,
        "condemned": {path: due for path, (due, _) in shard.condemned.items()},
        "staging": shard.staging.state(),
        "cuts": shard.cuts.state(),
        "streams": [_stream_state(s) for tenant in shard.tenants.values() for s in tenant.streams.values()],
        "queue_numbers": int(shard.queue_numbers),
        "last_id": int(shard.last_id),
        "secret": shard.ids.secret.hex(),
    }


def _stream_state(stream: Stream) -> dict[str, Any]:
    return {
        "tenant": stream.tenant.name,
        "name": stream.name,
        "made_ms": int(stream.made_ms),
        "groups": [group.as_dict() for group in stream.groups.values()],
        "partitions": [
            {
                "number": int(partition.number),
                "first": int(partition.first),
                "tail": int(partition.tail),
                "end": int(partition.last_written()),
                "last_ms": int(partition.last_ms),
                "files": [file.as_dict() for file in partition.files],
            }
            for partition in stream.partitions
        ],
    }


def _restore_streams(shard: Shard, rows: list[dict[str, Any]]) -> None:
    # loading gave the partitions numbers of its own, which may be those of others
    shard.partitions.clear()
    for row in rows:
        stream = shard.tenants[row["tenant"]].streams[row["name"]]
        stream.made_ms = row.get("made_ms", 0)
        for partition, known in zip(stream.partitions, row["partitions"], strict=True):
            partition.number = known["number"]
            shard.partitions[known["number"]] = partition
            partition.files = [SealedFile(file) for file in known["files"]]
            partition.begin_at(known["first"], known["tail"], known["end"], known["last_ms"])
        for saved in row["groups"]:
            group = group_of(stream, saved["name"])
            group.restore(dict(enumerate(saved["offsets"])))
            group.used_ms = saved["used_ms"]


def restore(shard: Shard, document: dict[str, Any], access: Access | None) -> None:
    """Let exactly what a state says exist: what came before it in the journal is replaced, all but dedup keys."""
    keys = {name: tenant.dedup for name, tenant in shard.tenants.items()}
    for name in keys:
        shard.tenants[name].dedup = Dedup()
        shard.delete_tenant(name)
    definitions.restore(shard, document["definitions"], access)
    for name, made in shard.tenants.items():
        made.dedup = keys.get(name, made.dedup)
        made.heed_limits()
        # loading gave them numbers of its own, which may be those of others
        for unnumbered in made.queues.values():
            unnumbered.number = 0
    shard.numbered.clear()
    for tenant, queue, number, seq in document["numbers"]:
        place = shard.tenants[tenant].queues[queue]
        shard.number_queue(place, number)
        place.seq = max(int(place.seq), seq)
    shard.condemned = {path: (due, 0) for path, due in document.get("condemned", {}).items()}
    _restore_streams(shard, document.get("streams", []))
    shard.cuts.restore(document.get("cuts", []))
    if "staging" in document:
        shard.staging.restore(document["staging"])
    shard.queue_numbers = max(int(shard.queue_numbers), document["queue_numbers"])
    shard.last_id = max(int(shard.last_id), document["last_id"])
    shard.ids.renew(bytes.fromhex(document["secret"]))


def replay(shard: Shard, row: dict[str, Any], access: Access | None) -> None:
    """Make one change again."""
    operation = row["op"]
    if operation == "tenant":
        if row["tenant"] not in shard.tenants:
            shard.create_tenant(row["tenant"], row["limits"])
        return
    if operation in ACCESS:
        if access is not None:
            access.put(operation, row)
        return
    if operation == "unlinked":
        for path in row["paths"]:
            shard.condemned.pop(path, None)
        return
    tenant = shard.tenants.get(row["tenant"])
    if tenant is None:
        return
    if operation == "drop-tenant":
        shard.delete_tenant(tenant.name)
    elif operation == "limits":
        tenant.set_limits({k: v for k, v in row.items() if k not in ("op", "tenant")})
    elif operation == "face":
        tenant.set_face_defaults(row["face"], row["defaults"])
    elif operation == "policy":
        tenant.set_policy(Policy(row["name"], row["pattern"], row["settings"], row["priority"], stored=True))
    elif operation in STAGING:
        shard.staging.replay(operation, tenant, row)
    elif operation in CUTS:
        shard.cuts.replay(operation, tenant.name, row)
    elif operation in WEBHOOKS:
        shard.webhooks.replay(row)
    elif operation in STREAMS:
        _replay_stream(shard, tenant, row)
    elif operation == "drop-policy":
        if row["name"] in tenant.policies:
            tenant.delete_policy(row["name"])
    else:
        _replay_topology(shard, tenant, row)


def _replay_topology(shard: Shard, tenant: Tenant, row: dict[str, Any]) -> None:
    operation = row["op"]
    if operation == "queue":
        queue, _ = tenant.declare_queue(row["name"], row["settings"], row["face"])
        shard.number_queue(queue, row["number"])
    elif operation == "drop-queue":
        old = tenant.queues.get(row["name"])
        if old is not None and old.number == row["number"]:
            tenant.delete(old, "deleted")
    elif operation == "exchange":
        tenant.declare_exchange(
            row["name"],
            row["kind"],
            row["durable"],
            row["auto_delete"],
            row["internal"],
            row["alternate"] or "",
            definitions.table_of(row["arguments"]),
        )
    elif operation == "drop-exchange":
        if row["name"] in tenant.exchanges:
            tenant.delete_exchange(row["name"])
    else:
        target = _target(tenant, row)
        if row["source"] in tenant.exchanges and target is not None:
            change = tenant.bind if operation == "bind" else tenant.unbind
            change(row["source"], target, row["key"], definitions.table_of(row["arguments"]))


def _replay_stream(shard: Shard, tenant: Tenant, row: dict[str, Any]) -> None:
    operation = row["op"]
    for path in row.get("files", ()):
        shard.condemned[path] = (row["due_ms"], 0)
    if operation == "stream":
        if row["name"] not in tenant.streams:
            streams.make(tenant, row["name"], row["settings"], row["numbers"], row.get("made_ms", 0))
    elif operation == "alter-stream":
        if row["name"] in tenant.streams:
            streams.alter(tenant, row["name"], row["settings"])
    elif operation == "drop-stream":
        old = tenant.streams.get(row["name"])
        if old is not None and old.partitions[0].number == row["number"]:
            streams.delete(tenant, old.name)
    elif operation in ("trim", "sealed"):
        partition = shard.partitions.get(row["partition"])
        if partition is not None:
            _replay_files(partition, row)
    else:
        stream = tenant.streams.get(row["stream"])
        if stream is None:
            return
        if operation == "drop-group":
            if stream.groups.pop(row["group"], None) is not None:
                tenant.groups -= 1
        else:
            group = group_of(stream, row["group"])
            group.restore(dict(row["offsets"]))
            group.used_ms = row["used_ms"]


def _replay_files(partition: Partition, row: dict[str, Any]) -> None:
    """Records were sealed or let go of: the tail begins later."""
    gone = set(row["files"])
    partition.files = [file for file in partition.files if file.path not in gone]
    first, tail = int(partition.first), int(partition.tail)
    if row["op"] == "trim":
        first = row["first"]
        tail = max(tail, first) if not partition.files else tail
    else:
        partition.files.append(SealedFile(row["file"]))
        partition.files.sort(key=lambda file: int(file.first))
        tail = max(tail, row["file"]["last"] + 1)
    partition.begin_at(first, tail, max(int(partition.end), tail), int(partition.last_ms))


def _target(tenant: Tenant, row: dict[str, Any]) -> Queue | Stream | Exchange | None:
    if row["target_kind"] == "queue":
        return tenant.queues.get(row["target"])
    if row["target_kind"] == "stream":
        return tenant.streams.get(row["target"])
    return tenant.exchanges.get(row["target"])
