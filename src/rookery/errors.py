"""Every error a caller can meet: one hierarchy, each class with a stable code and its number in each protocol.

`code` is what programs match on; `http` and `amqp` are the numbers that these faces answer with, `mqtt` those of a face
that is planned. An error about an argument names it in `argument`. Raising one of these promises that nothing was
changed.
"""

from __future__ import annotations

from typing import ClassVar


class RookeryError(Exception):
    """The root. `str(error)` is a sentence for a person; `error.code` is for programs."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500
    amqp: ClassVar[int] = 541
    mqtt: ClassVar[int] = 0x80

    def __init__(self, message: str = "", *, argument: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().rstrip("."))
        self.argument = argument

    @property
    def message(self) -> str:
        return str(self)


# Bad input


class InvalidArgument(RookeryError, ValueError):
    """An argument is out of its range; `argument` names it."""

    code = "invalid_argument"
    http = 400
    amqp = 406
    mqtt = 0x83


class InvalidName(InvalidArgument):
    """A name is empty, too long, or holds a character that names may not hold."""

    code = "invalid_name"


class InvalidTopic(InvalidName):
    """A topic is blank or longer than 1,024 characters."""

    code = "invalid_topic"
    mqtt = 0x90


class InvalidType(InvalidArgument, TypeError):
    """An argument has the wrong type; `argument` names it."""

    code = "invalid_type"


class InvalidConfig(InvalidArgument):
    """A setting is out of its range, or two settings contradict each other."""

    code = "invalid_config"


class InvalidPipeline(InvalidConfig):
    """The file of a pipeline has a mistake; the message says in which line, and what to do."""

    code = "invalid_pipeline"


class NilMessage(InvalidArgument):
    """The message is missing, or has an empty id."""

    code = "nil_message"


class EmptyBody(InvalidArgument):
    """body cannot be empty."""

    code = "empty_body"


class BadSignature(InvalidArgument):
    """A webhook's call was not signed with the secret, or too long ago."""

    code = "bad_signature"
    http = 401


# Things that are not there, or are there already


class NotFound(RookeryError, LookupError):
    """No such thing."""

    code = "not_found"
    http = 404
    amqp = 404
    mqtt = 0x8F


class QueueNotFound(NotFound):
    """No such queue."""

    code = "queue_not_found"


class ExchangeNotFound(NotFound):
    """No such exchange."""

    code = "exchange_not_found"


class StreamNotFound(NotFound):
    """No such stream."""

    code = "stream_not_found"


class GroupNotFound(NotFound):
    """No such consumer group."""

    code = "group_not_found"


class ChunkNotFound(NotFound):
    """No such staged chunk: it was committed, dropped, or waited too long."""

    code = "chunk_not_found"


class StaleEpoch(RookeryError):
    """The producer has committed a later epoch already."""

    code = "stale_epoch"
    http = 409
    amqp = 406
    mqtt = 0x8E


class GroupFenced(RookeryError):
    """The member's share of the group has changed, or the member is not one any more."""

    code = "group_fenced"
    http = 409
    amqp = 406
    mqtt = 0x8E


class OffsetOutOfRange(RookeryError):
    """The records asked for are not kept any more, or are not there yet."""

    code = "offset_out_of_range"
    http = 416
    amqp = 406
    mqtt = 0x90


class TenantNotFound(NotFound):
    """No such tenant."""

    code = "tenant_not_found"
    amqp = 530


class NodeNotFound(NotFound):
    """No such node in the cluster."""

    code = "node_not_found"


class TaskNotFound(NotFound):
    """No such task."""

    code = "task_not_found"


class AlreadyExists(RookeryError):
    """A thing of that name already exists."""

    code = "already_exists"
    http = 409
    amqp = 406
    mqtt = 0x80


class Conflict(RookeryError):
    """A thing of that name exists with other settings; `argument` names the first that differs."""

    code = "conflict"
    http = 409
    amqp = 406


class InUse(RookeryError):
    """The queue or exchange is in use."""

    code = "in_use"
    http = 409
    amqp = 406


class NotEmpty(RookeryError):
    """The queue still holds messages."""

    code = "not_empty"
    http = 409
    amqp = 406


class Locked(RookeryError):
    """The queue is exclusive to another owner."""

    code = "locked"
    http = 423
    amqp = 405


class ReplyTimeout(RookeryError, TimeoutError):
    """No reply came in time."""

    code = "reply_timeout"
    http = 504
    amqp = 320


class Unroutable(RookeryError):
    """No queue took the message."""

    code = "unroutable"
    http = 422
    amqp = 312
    mqtt = 0x10


# Leases and messages


class LeaseLost(RookeryError):
    """The lease has ended: it lapsed, was settled already, or belongs to an earlier owner."""

    code = "lease_lost"
    http = 404
    amqp = 406


class MessageExpired(RookeryError):
    """The message's time had passed before it was published."""

    code = "message_expired"
    http = 410
    amqp = 406


class TaskExpired(MessageExpired):
    """The task outlived its time."""

    code = "task_expired"


class DuplicateTask(AlreadyExists):
    """A task with this dedup key is known already."""

    code = "duplicate_task"


class MessageAcknowledged(RookeryError):
    """A message with this ack id is pending already, or was acknowledged."""

    code = "message_acknowledged"
    http = 409
    amqp = 406


class MessageNotAcked(RookeryError):
    """No message with this ack id waits for an acknowledgement."""

    code = "message_not_acked"
    http = 404
    amqp = 406


# Limits


class LimitExceeded(RookeryError):
    """A limit would be exceeded; the message says which."""

    code = "limit_exceeded"
    http = 429
    amqp = 506
    mqtt = 0x97


class MessageTooLarge(LimitExceeded):
    """The message is larger than allowed."""

    code = "message_too_large"
    http = 413
    amqp = 311
    mqtt = 0x95


class MemoryLimitExceeded(LimitExceeded):
    """The memory limit for messages is reached; try again after some were consumed."""

    code = "memory_limit_exceeded"
    http = 503


class DecodingFailed(RookeryError):
    """The process that decodes a body ended or took too long; nothing was kept of the body."""

    code = "decoding_failed"
    http = 503


class QueueFull(LimitExceeded):
    """A queue that rejects publishes when full is full."""

    code = "queue_full"


# Transactions


class TransactionError(RookeryError):
    """A transaction cannot go on."""

    code = "transaction_error"
    http = 409
    amqp = 406


class TransactionNotFound(TransactionError, LookupError):
    """No transaction of that id."""

    code = "transaction_not_found"
    http = 404


class TransactionTimeout(TransactionError):
    """The transaction outlived its time and was rolled back."""

    code = "transaction_timeout"
    http = 408


class TransactionCommitted(TransactionError):
    """The transaction was committed already."""

    code = "transaction_committed"


class TransactionRolledBack(TransactionError):
    """The transaction was rolled back already."""

    code = "transaction_rolled_back"


class TransactionTooLarge(TransactionError, LimitExceeded):
    """The transaction has too many operations or bytes."""

    code = "transaction_too_large"
    http = 413


class TransactionNotSupported(TransactionError):
    """Transactions are switched off (`enable_transactions`)."""

    code = "transaction_not_supported"
    http = 501
    amqp = 540


# The state of the broker


class BrokerClosed(RookeryError):
    """The broker is closed."""

    code = "broker_closed"
    http = 503
    amqp = 320
    mqtt = 0x8B


class NotInitialized(RookeryError):
    """The broker was not started, or belongs to the process this one was forked from."""

    code = "not_initialized"
    http = 503


class DeadLetterNotSupported(RookeryError):
    """Dead letters are switched off (`enable_dead_letter_queue`)."""

    code = "dead_letter_not_supported"
    http = 501
    amqp = 540


class PersistenceDisabled(RookeryError):
    """This broker keeps no persistent messages (persistence is off)."""

    code = "persistence_disabled"
    http = 501
    amqp = 540


class ClusterDisabled(RookeryError):
    """This broker is not part of a cluster."""

    code = "cluster_disabled"
    http = 501
    amqp = 540


class RecoveredPanic(RookeryError):
    """A handler or an observer failed unexpectedly; the broker went on."""

    code = "recovered_panic"


class Reject(Exception):
    """Raised by a handler: the message is unfit, no retry will help; it goes to the dead letters now."""


# Access


class AccessRefused(RookeryError):
    """The credential does not carry the right for this."""

    code = "access_refused"
    http = 403
    amqp = 403
    mqtt = 0x87


class Unauthenticated(RookeryError):
    """The credential is missing, unknown, revoked or wrong."""

    code = "unauthenticated"
    http = 401
    amqp = 403
    mqtt = 0x86


# Spark


class SparkUnavailable(RookeryError):
    """Spark, or the Java that it needs, is not there; the message says what to install."""

    code = "spark_unavailable"


class EngineLost(RookeryError):
    """The session of Spark that ran a pipeline is gone: another process can have another."""

    code = "engine_lost"


class PipelineRunning(RookeryError):
    """A pipeline is running, here or in another process: stop it first."""

    code = "pipeline_running"
    http = 409
    amqp = 406


class BrokerUnreachable(RookeryError, ConnectionError):
    """No broker answered at the endpoints given, however often it was tried."""

    code = "broker_unreachable"
    http = 503


# Storage


class StoreError(RookeryError):
    """The medium under the journal refused or failed."""

    code = "store_error"
    http = 503
    amqp = 541


class StoreLocked(StoreError):
    """Another process owns this data directory; the message names it."""

    code = "store_locked"


class StoreFailed(StoreError):
    """A write or a sync failed: nothing more is confirmed until the broker is started again."""

    code = "store_failed"


class StoreFull(StoreError):
    """There is no space left for the journal; try again when there is room."""

    code = "store_full"
    mqtt = 0x97


class StoreUnavailable(StoreError):
    """The medium gave no answer, so whether it took the batch is not known; repeat the same append to find out."""

    code = "store_unavailable"


class StoreDamaged(StoreError):
    """What is stored cannot be what was written; `file` and `offset` say where."""

    code = "store_damaged"

    def __init__(self, message: str = "", *, file: str = "", offset: int = 0, argument: str | None = None) -> None:
        super().__init__(message, argument=argument)
        self.file = file
        self.offset = offset


class Fenced(StoreError):
    """The epoch is no longer current: another owner has acquired the shard."""

    code = "fenced"


# HTTP


class PathNotFound(NotFound):
    """There is nothing at this path."""

    code = "path_not_found"


class MethodNotAllowed(RookeryError):
    """The path is there, but not for this method."""

    code = "method_not_allowed"
    http = 405


class UnsupportedMedia(RookeryError):
    """The body is encoded in a way that is not understood."""

    code = "unsupported_media"
    http = 415


class RateLimited(LimitExceeded):
    """There were too many requests with this credential; try again later, after `retry_after_sec`."""

    code = "rate_limited"

    def __init__(self, message: str = "", *, argument: str | None = None, retry_after_sec: int = 1) -> None:
        super().__init__(message, argument=argument)
        self.retry_after_sec = retry_after_sec


class NotReady(RookeryError):
    """The broker is up, but a message did not make its way through it."""

    code = "not_ready"
    http = 503
