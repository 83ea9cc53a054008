"""A topic's messages are POSTed to an endpoint, which checks that they come from the broker.

The broker is a server in this process; against `rookery serve` only the address and the key differ.

Prints:

    order.made, attempt 1: {"order": 1}
    order.paid, attempt 1: {"order": 1}
    refused: the signature does not fit the body
"""

import asyncio
import json
import os
import tempfile
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from rookery import webhooks
from rookery.config.settings import Settings
from rookery.server.process import Server

KEY = "an-admin-key"
secret = ""


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        webhooks.verify(secret, self.headers, body)
        print(f"{self.headers['x-rookery-routing-key']}, attempt {self.headers['x-rookery-attempt']}: {body.decode()}")
        try:
            webhooks.verify(secret, self.headers, body + b" ")
        except webhooks.BadSignature as error:
            if self.headers["x-rookery-routing-key"] == "order.paid":
                print("refused:", error)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def post(url: str, body: object) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        found: dict[str, str] = json.load(answer)
        return found


async def main() -> None:
    global secret
    with tempfile.TemporaryDirectory() as folder, HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        flags = {"http_port": 0, "amqp_port": None, "line_port": None, "api_key": KEY, "log_level": "error"}
        server = Server(Settings.load({**flags, "store_backend": "memory"}, {}, Path(folder)))
        await server.start()
        topic = f"http://{server.addresses['http']}/api/v1/topics/shop"
        endpoint = f"http://127.0.0.1:{receiver.server_port}/hook"
        wanted = {"endpoint": endpoint, "routing_key": "order.*", "concurrency": 1}
        secret = (await asyncio.to_thread(post, f"{topic}/subscriptions", wanted))["secret"]
        for key in ("order.made", "invoice.sent", "order.paid"):
            await asyncio.to_thread(post, f"{topic}/publish", {"message": {"order": 1}, "routing_key": key})
        thread = Thread(target=lambda: [receiver.handle_request() for _ in range(2)])
        thread.start()
        await asyncio.to_thread(thread.join)
        await server.stop()


os.environ.pop("API_KEY", None)
asyncio.run(main())
