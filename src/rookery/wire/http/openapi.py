"""The OpenAPI 3.1 document of a router's routes, made from their handlers' signatures, and the page that shows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import util
from pathlib import Path
from typing import Any, Final

import msgspec

from rookery.errors import PathNotFound
from rookery.wire.http.call import Call
from rookery.wire.http.errors import Error
from rookery.wire.http.routes import Answer, Content, Parameter, Route, Router

TEMPLATE: Final = "#/components/schemas/{name}"
ASSETS: Final = {
    "swagger-ui.css": b"text/css",
    "swagger-ui-bundle.js": b"text/javascript",
    "favicon-32x32.png": b"image/png",
}

_SCHEMES: Final = {
    "ApiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`ApiKey <kid.secret>`",
    },
    "Bearer": {"type": "http", "scheme": "bearer", "description": "an API key or a JWT"},
    "Basic": {"type": "http", "scheme": "basic"},
}

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rookery API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css"><link rel="icon" href="/docs/favicon-32x32.png"></head>
<body><div id="ui"></div><script src="/docs/swagger-ui-bundle.js"></script><script src="/docs/start.js"></script>
</body></html>
"""

_START: Final = b'SwaggerUIBundle({url: "/openapi.json", dom_id: "#ui", deepLinking: true});\n'

_WITHOUT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rookery API</title></head>
<body><h1>Rookery API</h1>
<p>The API is described at <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p>
<p>To read it here, offline too, install Swagger UI beside the server and start it again:</p>
<pre>pip install 'rookery[ui]'</pre>
</body></html>
"""


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The whole document."""
    shown = [route for route in routes if not route.hidden]
    schemas, components = _schemas(shown)
    paths: dict[str, Any] = {}
    for route in shown:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rookery",
            "version": version,
            "description": "A message broker: queues, topics, keys. Every error carries a request id.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "tags": [{"name": name} for name in sorted({route.tag for route in shown if route.tag})],
    }


def _types(route: Route) -> list[Any]:
    types = [parameter.type for parameter in route.parameters]
    if route.body is not None and route.body.type is not bytes:
        types.append(route.body.type)
    types += (route.accepts or {}).values()
    for answered in route.answers.values():
        types += list(answered) if isinstance(answered, tuple) else [answered]
    return [each for each in types if each not in (None, bytes)]


def _schemas(routes: list[Route]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type that a route mentions, and the named ones among them."""
    types: list[Any] = [Error]
    for route in routes:
        types += [each for each in _types(route) if each not in types]
    found, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    return {repr(each): schema for each, schema in zip(types, found, strict=True)}, components


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    full = inspect.getdoc(route.handler) or ""
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": full,
        "responses": {str(status): _response(answered, schemas) for status, answered in route.answers.items()},
    }
    if route.tag:
        operation["tags"] = [route.tag]
    if not route.public:
        either: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES]
        operation["security"] = [{}, *either] if route.open else either
    if route.parameters:
        operation["parameters"] = [_parameter(each, schemas) for each in route.parameters]
    if route.body is not None:
        operation["requestBody"] = _body(route, route.body, schemas)
    operation["responses"]["default"] = {
        "description": "what went wrong",
        "content": {"application/json": {"schema": {} if route.errors else schemas[repr(Error)]}},
    }
    return operation


def _operation_id(route: Route) -> str:
    words = [part.strip("{}") for part in route.template.replace(".", "_").split("/") if part]
    return "_".join([route.method.lower(), *words])


def _parameter(parameter: Parameter, schemas: dict[Any, Any]) -> dict[str, Any]:
    schema = dict(schemas[repr(parameter.type)])
    if not parameter.needed and parameter.default not in (None, ""):
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": parameter.place, "required": parameter.needed, "schema": schema}


def _body(route: Route, body: Parameter, schemas: dict[Any, Any]) -> dict[str, Any]:
    if route.accepts is not None:
        some = {"type": "string", "format": "binary", "minLength": 1}
        kinds = {kind: some if each is bytes else schemas[repr(each)] for kind, each in route.accepts.items()}
        return {"required": True, "content": {kind: {"schema": schema} for kind, schema in kinds.items()}}
    if body.type is bytes:
        some = {"type": "string", "format": "binary", "minLength": 1}
        return {"required": True, "content": {"application/octet-stream": {"schema": some}}}
    return {"required": body.required, "content": {"application/json": {"schema": schemas[repr(body.type)]}}}


def _response(answered: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    headers = {"X-Request-ID": {"schema": {"type": "string"}}}
    if answered is None:
        return {"description": "nothing to say", "headers": headers}
    types = answered if isinstance(answered, tuple) else (answered,)
    found = [schemas[repr(each)] for each in types if each is not bytes]
    content: dict[str, Any] = {"*/*": {"schema": {}}} if bytes in types else {}
    if found:
        content["application/json"] = {"schema": found[0] if len(found) == 1 else {"anyOf": found}}
    return {"description": "as asked", "headers": headers, "content": content}


def static_folder() -> Path | None:
    """Where the installed Swagger UI keeps its files, None when it is not installed."""
    found = util.find_spec("swagger_ui")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "static"
    return folder if all((folder / name).is_file() for name in ASSETS) else None


class Docs:
    """`/openapi.json` and `/docs`."""

    def __init__(self, router: Router, version: str) -> None:
        self._router = router
        self._version = version
        self._document = b""
        self._files: dict[str, bytes] = {}

    def openapi(self, call: Call) -> Content:
        """This document."""
        if not self._document:
            self._document = msgspec.json.encode(document(self._router.routes, self._version))
        return Content(self._document, b"application/json")

    def page(self, call: Call) -> Content:
        """The document to read and to try, in a browser."""
        there = static_folder() is not None
        return Content((_PAGE if there else _WITHOUT).encode(), b"text/html; charset=utf-8")

    def asset(self, call: Call, file: str) -> object:
        """What the page is made of."""
        if file == "start.js":
            return Content(_START, b"text/javascript")
        folder = static_folder()
        if folder is None or file not in ASSETS:
            raise PathNotFound(f"there is nothing at /docs/{file}")
        if file not in self._files:
            self._files[file] = (folder / file).read_bytes()
        return Answer(200, Content(self._files[file], ASSETS[file]), {"Cache-Control": "max-age=86400"})


def add_routes(router: Router, version: str) -> None:
    docs = Docs(router, version)
    router.add("GET", "/openapi.json", docs.openapi, {200: bytes}, "server.document", tag="operations")
    router.add("GET", "/docs", docs.page, {200: bytes}, "server.document", hidden=True)
    router.add("GET", "/docs/{file}", docs.asset, {200: bytes}, "server.document", hidden=True)
