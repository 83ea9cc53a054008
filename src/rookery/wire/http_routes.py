"""Routes: which function answers which request, with what arguments, and what it may answer.

A handler is a plain function of a call. Its other parameters are filled in by name and type: those named in the path's
template from the path, `body` from the body (`bytes` as it is, anything else from JSON), the rest from the query, with
their defaults. It returns a value that becomes JSON, an `Answer` with a status of its own, or `LATER`. Raising an error
of `rookery.errors` answers with that error. The same signatures make `/openapi.json` (`http_openapi`).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, get_type_hints
from urllib.parse import unquote

import msgspec

from rookery.errors import (
    AccessRefused,
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    MethodNotAllowed,
    PathNotFound,
    RookeryError,
    StoreError,
    Unauthenticated,
    UnsupportedMedia,
)
from rookery.wire.http_call import JSON, Call, HttpFault

LATER: Final = object()
"""Returned by a handler that has suspended its call, or answered it by itself."""

TARGETS_MAX: Final = 10_000
REQUEST_ID_MAX: Final = 128
RETRY_AFTER_SEC: Final = 1
DEPTH_TEXT: Final = "the JSON is nested too deeply"

_encode = msgspec.json.Encoder().encode
_NO_BODY: Final = object()


class Answer(NamedTuple):
    """A value with a status of its own, and headers."""

    status: int
    value: object = None
    headers: Mapping[str, str] = {}


class Content(NamedTuple):
    """Bytes that are no JSON."""

    data: bytes
    content_type: bytes


class Error(msgspec.Struct, omit_defaults=True):
    """What went wrong: `code` is for programs, `message` for people, `argument` names the part that was wrong."""

    code: str
    message: str
    request_id: str
    argument: str | None = None


class Authenticator(Protocol):
    """Says who makes a call; the principal of the call is None when no credential was shown."""

    def identify(self, call: Call, go_on: Callable[[Call], None]) -> bool:
        """False when that takes a while: then `go_on` is called later, or the call is answered."""


@dataclass
class Parameter:
    """One argument of a handler, and where it comes from."""

    name: str
    place: str
    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass
class Route:
    """One method of one path. `open` needs no credential; `errors` words errors in a way of its own."""

    method: str
    template: str
    handler: Callable[..., object]
    answers: Mapping[int, Any]
    open: bool = False
    tag: str = ""
    errors: Callable[[Call, RookeryError], tuple[int, object]] | None = None
    hidden: bool = False
    parameters: list[Parameter] = field(default_factory=list)
    body: Parameter | None = None
    decode: Callable[[bytes], Any] | None = None

    def __post_init__(self) -> None:
        names = path_names(self.template)
        self._path: list[tuple[int, Parameter]] = []
        self._query: list[Parameter] = []
        hints = get_type_hints(self.handler)
        for name, parameter in list(inspect.signature(self.handler).parameters.items())[1:]:
            place = "body" if name == "body" else "path" if name in names else "query"
            found = Parameter(name, place, hints[name], parameter.default)
            if place == "body":
                self.body = found
                if found.type is not bytes:
                    self.decode = msgspec.json.Decoder(found.type).decode
                continue
            self.parameters.append(found)
            if place == "path":
                self._path.append((names.index(name), found))
            else:
                self._query.append(found)

    @property
    def status(self) -> int:
        first: int = next(iter(self.answers))
        return first

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").split("\n\n")[0].replace("\n", " ")

    def arguments(self, call: Call) -> dict[str, Any]:
        """What the handler is called with."""
        found: dict[str, Any] = {}
        for index, parameter in self._path:
            found[parameter.name] = call.path[index]
        if self._query:
            query = parse_query(call.query)
            for parameter in self._query:
                text = query.get(parameter.name)
                if text is not None:
                    found[parameter.name] = text if parameter.type is str else _convert(parameter, text)
                elif parameter.required:
                    raise InvalidArgument(f"the parameter {parameter.name} is missing", argument=parameter.name)
        if self.body is not None:
            value = self._read_body(call)
            if value is not _NO_BODY:
                found["body"] = value
        return found

    def _read_body(self, call: Call) -> Any:
        encoding = call.header(b"content-encoding")
        if encoding not in ("", "identity"):
            raise UnsupportedMedia(f"a body with content encoding {encoding!r} is not understood")
        if self.decode is None:
            return call.body
        assert self.body is not None
        if not call.body and not self.body.required:
            return _NO_BODY
        return decode_json(self.decode, call.body)


def path_names(template: str) -> list[str]:
    return [part[1:-1] for part in template.split("/") if part.startswith("{")]


def decode_json(decode: Callable[[bytes], Any], body: bytes) -> Any:
    """A JSON body as a value, or an error that names the part of it which is wrong."""
    try:
        if not body.isascii():
            body.decode()
        return decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        raise InvalidArgument(text, argument=path.rstrip("`").removeprefix("$.") or "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", argument="body") from None
    except RecursionError:
        raise InvalidArgument(DEPTH_TEXT, argument="body") from None


def _convert(parameter: Parameter, text: str) -> Any:
    try:
        return msgspec.convert(text, parameter.type, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the parameter {parameter.name}: {error}", argument=parameter.name) from None


def parse_query(raw: bytes) -> dict[str, str]:
    """Names and values of a query; of a repeated name the first counts."""
    found: dict[str, str] = {}
    if not raw:
        return found
    for pair in raw.decode("latin-1").split("&"):
        name, _, value = pair.partition("=")
        if name and name not in found:
            found[_unquote(name.replace("+", " "))] = _unquote(value.replace("+", " "))
    return found


def _unquote(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    try:
        return unquote(text.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument("the URL is not UTF-8", argument="url") from None


class _Node:
    """One step of a path."""

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """All routes of a server. `add` them, then `handle` calls."""

    def __init__(self, authenticator: Authenticator, report: Callable[[BaseException, Call | None], None]) -> None:
        self.routes: list[Route] = []
        self._authenticator = authenticator
        self._report = report
        self._root = _Node()
        self._targets: dict[tuple[str, bytes], tuple[Route, tuple[str, ...]]] = {}

    def add(
        self, methods: str, template: str, handler: Callable[..., object], answers: Mapping[int, Any], **more: Any
    ) -> None:
        """Let `handler` answer the method of a path such as `/queues/{name}`; of several methods, divided by spaces,
        the first is the documented one. The first of `answers` is the status of a plain value.
        """
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.children.setdefault(part, _Node())
        for index, method in enumerate(methods.split()):
            route = Route(method, template, handler, answers, **{**more, "hidden": more.get("hidden") or index > 0})
            assert method not in node.routes, f"{method} {template} is there already"
            node.routes[method] = route
            self.routes.append(route)

    # Finding

    def find(self, method: str, url: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route of a request and the values in its path."""
        path = _path_of(url)
        key = (method, path)
        found = self._targets.get(key)
        if found is None:
            found = self._find(method, path)
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[key] = found
        return found

    def _find(self, method: str, path: bytes) -> tuple[Route, tuple[str, ...]]:
        values: list[str] = []
        node = self._node(path, values)
        if node is None or not node.routes:
            shown = path.decode("latin-1")
            raise PathNotFound(f"there is nothing at {shown[:200]}")
        route = node.routes.get(method) or (node.routes.get("GET") if method == "HEAD" else None)
        if route is None:
            raise MethodNotAllowed(f"{method} is not for this path, but {', '.join(_allowed(node))}")
        return route, tuple(values)

    def _node(self, path: bytes, values: list[str]) -> _Node | None:
        node: _Node | None = self._root
        for part in path.decode("latin-1").split("/")[1:]:
            assert node is not None
            following = node.children.get(part)
            if following is None:
                following = node.any
                if following is None or not part:
                    return None
                values.append(_unquote(part))
            node = following
        return node

    def allowed(self, url: bytes) -> list[str]:
        """The methods that a path has."""
        node = self._node(_path_of(url), [])
        return _allowed(node) if node is not None and node.routes else []

    # Answering

    def handle(self, call: Call) -> None:
        """Answer a call, now or later."""
        self._name(call)
        try:
            if call.method == "OPTIONS":
                self._options(call)
                return
            call.route, call.path = self.find(call.method, call.url)
            if self._authenticator.identify(call, self._run):
                self._run(call)
        except RookeryError as error:
            self.fail(call, error)
        except Exception as error:  # noqa: BLE001 - a defect met by one request must not reach the others
            self._defect(call, error)

    def _run(self, call: Call) -> None:
        route: Route = call.route
        try:
            if call.principal is None and not route.open:
                raise Unauthenticated("missing api key")
            self._deliver(call, route.handler(call, **route.arguments(call)))
        except RookeryError as error:
            self.fail(call, error)
        except Exception as error:  # noqa: BLE001 - as above
            self._defect(call, error)

    def resume(self, call: Call, event: object) -> None:
        """Go on with a call that waited for the journal, or end it with what went wrong."""
        if isinstance(event, HttpFault) or call.refusal is not None:
            self._name(call)
            fault = event if isinstance(event, HttpFault) else call.refusal
            assert fault is not None
            error = Error(fault.code, str(fault), call.request_id)
            call.batch = 0
            call.then = None
            call.answer(fault.status, _encode(error), JSON)
        elif isinstance(event, RookeryError):
            self.fail(call, event)
        else:
            self._deliver_from(call, event)

    def _deliver_from(self, call: Call, work: Any) -> None:
        """Answer with what `work` gives."""
        try:
            self._deliver(call, work())
        except RookeryError as error:
            self.fail(call, error)
        except Exception as error:  # noqa: BLE001 - as above
            self._defect(call, error)

    def complete(self, call: Call, work: Callable[[], object]) -> None:
        """Answer a suspended call with what `work` gives or raises."""
        call.undo = None
        self._deliver_from(call, work)

    def _deliver(self, call: Call, value: object) -> None:
        if value is LATER:
            return
        status = call.route.status
        if isinstance(value, Answer):
            status = value.status
            for name, text in value.headers.items():
                call.add_header(name, text)
            value = value.value
        if isinstance(value, Content):
            call.answer(status, value.data, value.content_type)
        else:
            call.answer(status, b"" if status == 204 else _encode(value), JSON)

    def fail(self, call: Call, error: RookeryError) -> None:
        """Answer with an error."""
        status = error.http
        if status == 401:
            call.add_header("WWW-Authenticate", 'Bearer realm="rookery"')
        elif status == 405:
            call.add_header("Allow", ", ".join(self.allowed(call.url)))
        elif status == 503 or (status == 429 and isinstance(error, LimitExceeded)):
            call.add_header("Retry-After", str(RETRY_AFTER_SEC))
        worded: object = Error(error.code, str(error), call.request_id, error.argument)
        if call.route is not None and call.route.errors is not None:
            status, worded = call.route.errors(call, error)
        if isinstance(error, StoreError | MessageTooLarge | AccessRefused):
            call.tag = error.code
        call.batch = 0
        call.then = None
        if isinstance(worded, Content):
            call.answer(status, worded.data, worded.content_type)
        else:
            call.answer(status, _encode(worded), JSON)

    def _defect(self, call: Call, error: Exception) -> None:
        self._report(error, call)
        self.fail(call, RookeryError("the server met a defect of its own; the log has it under this request id"))

    def _name(self, call: Call) -> None:
        """Give the call the id it came with, or a new one."""
        if call.request_id or call.connection is None:
            return
        given = call.headers.get(b"x-request-id")
        if given and len(given) <= REQUEST_ID_MAX and given.isascii() and given.decode().isprintable():
            call.request_id = given.decode()
        else:
            call.request_id = call.connection.face.next_id()

    def _options(self, call: Call) -> None:
        methods = self.allowed(call.url)
        if not methods and call.url != b"*":
            raise PathNotFound(f"there is nothing at {_path_of(call.url).decode('latin-1')[:200]}")
        call.add_header("Allow", ", ".join(methods or ["GET", "HEAD", "OPTIONS"]))
        connection = call.connection
        origin = call.headers.get(b"origin")
        if origin is not None and connection is not None and b"access-control-request-method" in call.headers:
            origins = connection.face.origins
            if origin in origins or b"*" in origins:
                wanted = call.header(b"access-control-request-headers")
                call.add_header("Access-Control-Allow-Methods", ", ".join(methods))
                call.add_header("Access-Control-Allow-Headers", wanted or "Authorization, Content-Type, X-Request-ID")
                call.add_header("Access-Control-Max-Age", "600")
        call.answer(204, b"", b"")


def _allowed(node: _Node) -> list[str]:
    methods = [*node.routes, "OPTIONS"]
    if "GET" in node.routes and "HEAD" not in node.routes:
        methods.insert(1, "HEAD")
    return methods


def _path_of(url: bytes) -> bytes:
    path = url.partition(b"?")[0].partition(b"#")[0]
    if not path.startswith(b"/") and b"://" in path:
        # what a client says to a proxy
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return path


def trace(error: BaseException) -> str:
    """A defect for the log."""
    return "".join(traceback.format_exception(error))
