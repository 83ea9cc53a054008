"""Handlers: functions that are called for each message of a queue, with the body as the type they ask for.

The handler returns: the message is acked (and answered, when it asked for a reply). It raises: the message is retried
by the queue's rule, or rejected when it raised `Reject` or the body is not what it asks for. Deliveries are those of
an embedded broker or of a client.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rookery.embed.aio.deliveries import AsyncDelivery
from rookery.embed.messages import Message
from rookery.engine.workers import AsyncWorkers
from rookery.errors import BrokerClosed, InvalidType, LeaseLost, Reject


class AsyncHandler:
    """One registered function and the queue it serves."""

    def __init__(
        self,
        workers: AsyncWorkers,
        queue: str,
        function: Callable[..., Any],
        concurrency: int,
        settings: Mapping[str, object],
        names: Mapping[str, Any],
        note_panic: Callable[[BaseException], None],
        kinds: tuple[type, ...] = (AsyncDelivery,),
    ) -> None:
        workers.check_handler(function)
        self.queue = queue
        self.function = function
        self.concurrency = concurrency
        self.settings = settings
        self.started = False
        self._workers = workers
        self._note_panic = note_panic
        self._argument = argument_of(wanted_type(function, names), kinds)

    async def run(self, subscription: Any) -> None:
        """Handle one delivery after the other until the subscription ends."""
        async for delivery in subscription:
            try:
                await self.handle(delivery)
            except (LeaseLost, BrokerClosed):
                continue

    async def handle(self, delivery: Any) -> None:
        """Call the function for a delivery, and settle it by what comes of that."""
        try:
            argument = self._argument(delivery)
        except (ValueError, TypeError) as error:
            await delivery.reject(f"{type(error).__name__}: {error}")
            return
        try:
            result = await self._workers.call(self.function, argument)
        except Reject as unfit:
            await delivery.reject(str(unfit))
        except Exception as error:  # noqa: BLE001 (whatever a handler raises means: try again)
            await self._fail(delivery, error)
        except BaseException:
            # interrupted, by no fault of the message
            await delivery.release()
            raise
        else:
            await self._finish(delivery, result)

    async def _finish(self, delivery: Any, result: object) -> None:
        if not delivery.live:
            return
        try:
            if delivery.reply_to:
                await delivery.reply(result)
            else:
                await delivery.ack()
        except (LeaseLost, BrokerClosed):
            raise
        except Exception as error:  # noqa: BLE001 (the result cannot be sent: the handler has failed)
            await self._fail(delivery, error)

    async def _fail(self, delivery: Any, error: Exception) -> None:
        self._note_panic(error)
        await delivery.retry(reason=f"{type(error).__name__}: {error}")


def argument_of(wanted: Any, kinds: tuple[type, ...] = (AsyncDelivery,)) -> Callable[[Any], Any]:
    """What a handler whose parameter has this type is called with; None stands for no type, `kinds` are deliveries."""
    if wanted is None or wanted is Any:
        return lambda delivery: delivery.data
    if any(wanted is kind for kind in kinds):
        return lambda delivery: delivery
    if wanted is Message:
        return lambda delivery: delivery.message
    if wanted is bytes:
        return lambda delivery: delivery.body
    if wanted is str:
        return lambda delivery: delivery.body.decode()
    if str(getattr(wanted, "__module__", "")).startswith("rookery."):
        raise InvalidType(
            f"a handler of this broker can take AsyncDelivery or Message, not {wanted.__name__}", argument="handler"
        )
    try:
        decoder = msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise InvalidType(f"a handler cannot take this type: {error}", argument="handler") from None
    return lambda delivery: decoder.decode(delivery.body)


def wanted_type(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """The type that the handler's first parameter asks for, None when it says nothing.

    `names` are those visible where the handler is registered, for handlers and types that are local to a function.
    """
    try:
        signature = inspect.signature(function)
        signature.bind(object())
    except TypeError:
        raise InvalidType("a handler is called with one argument", argument="handler") from None
    except ValueError:
        return None
    wanted = next(iter(signature.parameters.values())).annotation
    if not isinstance(wanted, str):
        return None if wanted is inspect.Parameter.empty else wanted
    inner = inspect.unwrap(function)
    around = dict(names) if "<locals>" in getattr(inner, "__qualname__", "") else {}
    try:
        return typing.get_type_hints(_Annotated(wanted), getattr(inner, "__globals__", {}), around)["wanted"]
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidType(f"the handler's type {wanted} is not known: {error}", argument="handler") from None


class _Annotated:
    """Something with one annotation, as `get_type_hints` takes it."""

    def __init__(self, wanted: str) -> None:
        self.__annotations__ = {"wanted": wanted}
