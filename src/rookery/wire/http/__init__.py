"""HTTP/1.1 without I/O: connections, calls and their answers, routes, who calls.

The server makes the face, as the API is served over it.
"""

from __future__ import annotations

from typing import Final

from rookery.wire.face import WireProtocol

PROTOCOL: Final = WireProtocol(name="http", title="HTTP", make=None, port=8080, port_variable="APP_PORT")
