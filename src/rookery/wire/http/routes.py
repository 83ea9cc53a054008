"""Routes: which function answers which request, with what arguments, and what it may answer.

A handler is a plain function of a call. Its other parameters are filled in by name and type: those named in the path's
template from the path, `body` from the body (`bytes` as it is, anything else from JSON), the rest from the query, with
their defaults. It returns a value that becomes JSON, an `Answer` with a status of its own, or `LATER`. Raising an error
of `rookery.errors` answers with that error. The same signatures make `/openapi.json` (`openapi`).

Each route names its operation in the table of rights (`rookery.core.rights`). What that says of who may ask, and of the
queue, topic, exchange or stream in the path, is checked before the handler is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, final, get_type_hints
from urllib.parse import unquote

import msgspec

from rookery.core import rights
from rookery.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    MethodNotAllowed,
    PathNotFound,
    RateLimited,
    RookeryError,
    Unauthenticated,
    UnsupportedMedia,
)
from rookery.format.rendering import plain
from rookery.wire.http.call import JSON, Call, HttpFault
from rookery.wire.http.errors import Error

LATER: Final = object()
"""Returned by a handler that has suspended its call, or answered it by itself."""

REQUEST_ID_MAX: Final = 128
RETRY_AFTER_SEC: Final = 1
DEPTH_TEXT: Final = "the JSON is nested too deeply"

SMALL_BODIES: Final = frozenset(
    (
        "binding.change",
        "exchange.declare",
        "key.create",
        "policy.change",
        "queue.declare",
        "queue.webhook",
        "stream.change",
        "stream.declare",
        "stream.webhook",
        "tenant.change",
        "topic.declare",
        "topic.keep",
        "topic.subscribe",
        "user.change",
        "webhook.change",
    )
)
"""Operations on one thing, whose arguments would fit a frame of AMQP."""
SMALL_BODY_MAX_BYTES: Final = 131_072

NEEDED: Final = "needed"
"""In an annotation: the document says that the parameter must be given, though its handler has words of its own for
that.
"""

CHECKED: Final = "checked"
"""In an annotation: the text is checked as it is read, because nobody looks it up."""

_ROLES: Final = {"queues": "queue", "topics": "topic", "exchanges": "exchange", "streams": "stream"}
"""What a `{name}` is behind this part of a path."""

_encode: Any = msgspec.json.Encoder().encode
_EMPTY: Final = inspect.Parameter.empty


@final
class Answer:
    """A value with a status of its own, and headers."""

    def __init__(self, status: int, value: object = None, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.value = value
        self.headers = headers


@final
class Content:
    """Bytes that are an answer as they are."""

    def __init__(self, data: bytes, content_type: bytes) -> None:
        self.data = data
        self.content_type = content_type


@final
class Parameter:
    """One argument of a handler, and where it comes from."""

    def __init__(self, argument: str, place: str, type: Any, default: Any) -> None:
        self.argument = argument
        # a word that Python keeps for itself is spelled with an underscore behind it
        self.name = argument.rstrip("_")
        self.place = place
        self.type = type
        self.default = default
        self.required = default is _EMPTY
        extras = getattr(type, "__metadata__", ())
        self.needed = self.required or NEEDED in extras
        # names are checked by who looks them up
        is_text = type is str or getattr(type, "__origin__", None) is str
        self.plain = is_text and CHECKED not in extras


@final
class Route:
    """One method of one path, and the operation that it is. `open` needs no credential, `public` does not even look at
    one, `changes` says that it is not only a look; `errors` words errors in a way of its own.
    """

    def __init__(
        self,
        method: str,
        template: str,
        handler: Any,
        answers: Mapping[int, Any],
        operation: str,
        tag: str,
        errors: Any,
        hidden: bool,
        accepts: Mapping[str, Any] | None,
    ) -> None:
        entry = rights.OPERATIONS[operation]
        self.method = method
        self.template = template
        self.handler = handler
        self.answers = answers
        self.operation = operation
        self.public = entry.who == "public"
        self.open = self.public or entry.who == "open"
        self.changes = entry.changes
        self.who = "" if entry.who == "credential" else entry.who
        # where in the path a name stands, what it is, and the rights that are needed on it
        self.checks: list[tuple[int, str, tuple[str, ...]]] = []
        self.tag = tag
        self.errors = errors
        self.hidden = hidden
        self.accepts = accepts
        self.body_max = SMALL_BODY_MAX_BYTES if operation in SMALL_BODIES else 0
        self.parameters: list[Parameter] = []
        self.body: Parameter | None = None
        self.status: int = next(iter(answers))
        self._decode: Any = None
        # the arguments as they are when a request says nothing, and where those that it says stand among them
        self._unsaid: list[Any] = [None]
        self._path: list[tuple[int, int, Parameter]] = []
        self._query: list[tuple[int, Parameter]] = []
        self._body_at = 0
        self._read_signature()
        self._read_rights(entry)

    def _read_signature(self) -> None:
        names = path_names(self.template)
        hints = get_type_hints(self.handler, include_extras=True)
        for name, parameter in list(inspect.signature(self.handler).parameters.items())[1:]:
            at = len(self._unsaid)
            self._unsaid.append(parameter.default)
            if name == "body":
                self._body_at = at
                self.body = Parameter(name, "body", hints[name], parameter.default)
                if self.body.type is not bytes:
                    self._decode = msgspec.json.Decoder(hints[name]).decode
                continue
            found = Parameter(name, "path" if name in names else "query", hints[name], parameter.default)
            self.parameters.append(found)
            if found.place == "path":
                self._path.append((at, names.index(name), found))
            else:
                self._query.append((at, found))

    def _read_rights(self, entry: rights.Operation) -> None:
        parts = self.template.split("/")
        if "{name}" in parts:
            role = _ROLES.get(parts[parts.index("{name}") - 1], "")
            if role in entry.needs:
                self.checks.append((path_names(self.template).index("name"), role, entry.needs[role]))

    def check(self, call: Call) -> None:
        """Refuse a caller who lacks a right that can be told from the path."""
        principal = call.principal
        if self.who:
            rights.require_who(principal, self.who)
        for at, role, needed in self.checks:
            name = call.path[at]
            if role == "stream" and name == rights.EVENTS:
                # who looks it up knows that it is for admins
                continue
            granted = principal.rights
            for right in needed:
                if getattr(granted, right) != ".*":
                    principal.require(right, name, kind=role)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").split("\n\n")[0].replace("\n", " ")

    def call(self, call: Call) -> object:
        """What the handler answers, called with what it asks for."""
        arguments = self._unsaid.copy()
        arguments[0] = call
        for at, index, parameter in self._path:
            value = call.path[index]
            arguments[at] = value if parameter.plain else _convert(parameter, value)
        if self._query:
            query = parse_query(call.query)
            for at, parameter in self._query:
                text = query.get(parameter.name)
                if text is not None:
                    arguments[at] = text if parameter.plain else _convert(parameter, text)
                elif parameter.required:
                    raise InvalidArgument(f"the parameter {parameter.name} is missing", argument=parameter.name)
        if self.body is not None:
            self._read_body(call, self.body, arguments)
        return self.handler(*arguments)

    def _read_body(self, call: Call, body: Parameter, arguments: list[Any]) -> None:
        encoding = call.headers.get(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            raise UnsupportedMedia(f"a body with content encoding {encoding.decode('latin-1')!r} is not understood")
        if self.body_max and len(call.body) > self.body_max:
            raise MessageTooLarge(f"the body is larger than {self.body_max} bytes", argument="body")
        if self._decode is None:
            arguments[self._body_at] = call.body
        elif call.body or body.required:
            arguments[self._body_at] = decode_json(self._decode, call.body)


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
        raise InvalidArgument(text, argument=path.rstrip("`").removeprefix("$").removeprefix(".") or "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", argument="body") from None
    except RecursionError:
        raise InvalidArgument(DEPTH_TEXT, argument="body") from None


def encode_json(value: object) -> bytes:
    """A value as JSON. Names that came over AMQP need not be UTF-8: of those, what is not becomes a question mark."""
    encoded: bytes
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        encoded = _encode(plain(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,), str_keys=True)))
    return encoded


def rendered(value: object) -> object:
    """The same answer with its content made: after this nothing can go wrong with it any more."""
    if isinstance(value, Answer):
        if value.status != 204:
            value.value = rendered(value.value)
        return value
    return value if isinstance(value, Content) else Content(encode_json(value), JSON)


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


@final
class _Node:
    """One step of a path."""

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, Route] = {}


@final
class Router:
    """All routes of a server. `add` them, then `handle` calls.

    `authenticator.identify(call, go_on)` says who makes a call: its principal is None when no credential was shown. It
    returns False when that takes a while; then `go_on(call)` is called later, or the call is answered.
    """

    def __init__(self, authenticator: Any, report: Callable[[BaseException, Call | None], None]) -> None:
        self.routes: list[Route] = []
        # records a span of each call, where anybody wants that
        self.spans: Any = None
        # gives an internal error in one line and in full for its answer, where callers may see that
        self.explain: Any = None
        self._authenticator = authenticator
        self._report = report
        self._root = _Node()

    def add(
        self,
        methods: str,
        template: str,
        handler: Any,
        answers: Mapping[int, Any],
        operation: str,
        tag: str = "",
        errors: Any = None,
        hidden: bool = False,
        accepts: Mapping[str, Any] | None = None,
    ) -> None:
        """Let `handler` answer a method, or several divided by spaces, of a path such as `/queues/{name}`. The first of
        `answers` is the status of a plain value. `operation` is the line in the table of rights that says who may.
        `accepts` says by content type what a body of bytes may be.
        """
        assert operation in rights.OPERATIONS, f"{methods} {template}: rookery.core.rights has no {operation!r}"
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.children.setdefault(part, _Node())
        for method in methods.split():
            assert method not in node.routes, f"{method} {template} is there already"
            route = Route(method, template, handler, answers, operation, tag, errors, hidden, accepts)
            node.routes[method] = route
            self.routes.append(route)

    # Finding

    def find(self, method: str, url: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route of a request and the values in its path. Nothing is kept: that would tell who asked for what."""
        path = _path_of(url)
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

    def count(self, call: Call) -> None:
        """Count one more request of whoever makes the call, which goes on for long, or refuse it."""
        self._authenticator.limit(call)

    def handle(self, call: Call) -> None:
        """Answer a call, now or later."""
        self._name(call)
        try:
            if call.method == "OPTIONS":
                self._options(call)
                return
            head = call.head
            if head is None:
                route, call.path = self.find(call.method, call.url)
            else:
                if head.route is None:
                    head.route, head.path = self.find(call.method, call.url)
                route = head.route
                call.path = head.path
            call.route = route
            if self.spans is not None:
                self.spans.begin(call)
            if route.public or self._authenticator.identify(call, self._run):
                self._run(call)
        except RookeryError as error:
            self.fail(call, error)
        except Exception as error:  # noqa: BLE001 - a defect met by one request must not reach the others
            self._defect(call, error)

    def vet(self, call: Call) -> str:
        """On whose account the body of a call is that is still arriving; nothing if that is not known yet.

        A call that would be refused for its path or its credential is refused now, before its body is read.
        """
        route, _ = self.find(call.method, call.url)
        call.route = route
        if route.public:
            return ""
        owner: str = self._authenticator.vet(call)
        return owner

    def _run(self, call: Call) -> None:
        route: Route = call.route
        try:
            if not route.open:
                if call.principal is None:
                    raise Unauthenticated("missing api key")
                if route.who or route.checks:
                    route.check(call)
            self._deliver(call, route.call(call))
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
            if fault.cause is not None:
                self.fail(call, fault.cause)
                return
            if fault.status == 503:
                call.add_header("Retry-After", str(RETRY_AFTER_SEC))
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
        route: Route = call.route
        status = route.status
        if isinstance(value, Answer):
            status = value.status
            if value.headers:
                for name, text in value.headers.items():
                    call.add_header(name, text)
            value = value.value
        if isinstance(value, Content):
            call.answer(status, value.data, value.content_type)
        else:
            call.answer(status, b"" if status == 204 else encode_json(value), JSON)

    def fail(self, call: Call, error: RookeryError, detail: str = "") -> None:
        """Answer with an error."""
        status = error.http
        if status == 401:
            call.add_header("WWW-Authenticate", 'Bearer realm="rookery"')
        elif status == 405:
            call.add_header("Allow", ", ".join(self.allowed(call.url)))
        elif status == 503 or (status == 429 and isinstance(error, LimitExceeded)):
            later = error.retry_after_sec if isinstance(error, RateLimited) else RETRY_AFTER_SEC
            call.add_header("Retry-After", str(later))
        worded: object = Error(error.code, str(error), call.request_id, error.argument, detail)
        if call.route is not None and call.route.errors is not None:
            status, worded = call.route.errors(call, error)
        call.batch = 0
        call.then = None
        if isinstance(worded, Content):
            call.answer(status, worded.data, worded.content_type)
        else:
            call.answer(status, encode_json(worded), JSON)

    def report(self, error: Exception, call: Call) -> None:
        """Have a defect logged."""
        self._report(error, call)

    def _defect(self, call: Call, error: Exception) -> None:
        self._report(error, call)
        text = "the server met a defect of its own; the log has it under this request id"
        if self.explain is None:
            self.fail(call, RookeryError(text))
        else:
            line, full = self.explain(error)
            self.fail(call, RookeryError(f"{text}: {line}"), full)

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
