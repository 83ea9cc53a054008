"""A worker takes jobs over a WebSocket, acks them there, and goes on where it was when its connection breaks.

The broker is a server in this process; against `rookery serve` only the address and the key differ. The client is the
package `websockets`; every other one will do, that of a browser too.

Prints:

    sent: 3
    job 1, attempt 1
    job 2, attempt 1
    back again
    job 2, attempt 1
    job 3, attempt 1
    acked: 2
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from rookery.config.settings import Settings
from rookery.server.process import Server

KEY = "an-admin-key"


class Worker:
    """Reads frames; messages that come before an answer are kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._frames: list[dict[str, Any]] = []

    async def jobs(self) -> dict[str, Any]:
        """The next frame of messages."""
        if not self._frames:
            self._frames.append(json.loads(await self._socket.recv()))
        frame = self._frames.pop(0)
        for message in frame["messages"]:
            print(f"job {message['message']['job']}, attempt {message['attempt']}")
        return frame

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Ask for something, and wait until it is done."""
        await self._socket.send(json.dumps({"ref": 1, **request}))
        while True:
            frame = json.loads(await self._socket.recv())
            if frame["type"] == "done":
                found: dict[str, Any] = frame["result"]
                return found
            self._frames.append(frame)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = {"http_port": 0, "amqp_port": None, "line_port": None, "api_key": KEY, "log_level": "error"}
        server = Server(Settings.load({**flags, "store_backend": "memory"}, {}, Path(folder)))
        await server.start()
        queue = f"ws://{server.addresses['http']}/api/v1/queues/jobs/stream"
        headers = {"Authorization": f"Bearer {KEY}"}

        async with connect(f"{queue}?ack=explicit&credit=2", additional_headers=headers, proxy=None) as socket:
            worker = Worker(socket)
            done = await worker.ask(op="publish", messages=[{"message": {"job": n}} for n in (1, 2, 3)])
            print("sent:", done["count"])
            frame = await worker.jobs()
            # the first is done with; the connection breaks before the second is
            await worker.ask(op="settle", leases=[frame["messages"][0]["lease"]])
            seen = frame["id"].rpartition(":")[0] + ":1"

        print("back again")
        address = f"{queue}?ack=explicit&credit=2&after={seen}"
        async with connect(address, additional_headers=headers, proxy=None) as socket:
            worker = Worker(socket)
            frame = await worker.jobs()
            done = await worker.ask(op="ack", through=frame["id"])
            print("acked:", done["acked"])
        await server.stop()


asyncio.run(main())
