"""Pages in browsers: what another site may not do through its visitors, and what keeps our own pages apart."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.http_world import World, world

GUEST = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
MESSAGES = "/api/v1/queues/q/messages"

CHANGING = [
    "/consume?queue=q",
    "/claim?queue=q",
    "/ack?queue=q&message_id=x",
    "/extend?queue=q&message_id=x&seconds=1",
    "/publish?queue=q",
    "/create_key?tenant=from-a-page",
    "/api/v1/queues/q/stream",
    "/api/v1/topics/t/stream",
    "/api/v1/streams/s/stream",
]
"""GETs that change something."""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("browsers"), auth_mode="none", claim_wait_sec="0.01") as made:
        made.client.put("/api/v1/streams/s")
        made.client.post(MESSAGES, json=[{"message": n} for n in range(3)])
        yield made


def status(web: World, url: str, headers: dict[str, str]) -> int:
    with web.client.stream("GET", url, headers=headers) as answer:
        return answer.status_code


def left(web: World) -> int:
    return int(web.client.get("/api/v1/queues/q").json()["stats"]["ready"])


@pytest.mark.parametrize("url", CHANGING)
@pytest.mark.parametrize(
    "marks",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Referer": "https://evil.example/page"},
        {"Referer": "http://localhost.evil.example/"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
    ids=str,
)
def test_an_image_on_another_site_changes_nothing(web: World, url: str, marks: dict[str, str]) -> None:
    before = left(web)
    assert status(web, url, marks) == 403
    assert left(web) == before


def test_every_get_that_changes_something_is_guarded(web: World) -> None:
    """Those that are not listed above, too."""
    tried = 0
    for route in web.web.router.routes:
        if route.method == "GET" and not route.public:
            url = route.template.replace("{name}", "q").replace("{", "").replace("}", "")
            assert status(web, url, {"Sec-Fetch-Site": "cross-site"}) == 403 or route.open, route.template
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("url", CHANGING)
def test_programs_and_own_pages_are_let_in(web: World, url: str) -> None:
    own = {"Sec-Fetch-Site": "same-origin", "Referer": f"{web.base}/docs"}
    for headers in ({}, own, {"Sec-Fetch-Site": "none"}, {"Host": f"localhost:{web.port}"}):
        assert status(web, url, headers) != 403 or "create_key" in url, headers


def test_a_name_that_is_not_this_machines_needs_post_or_a_credential(tmp_path: Path) -> None:
    """Over plain HTTP, browsers say nothing of where a page comes from but to localhost."""
    with world(tmp_path, auth_mode="none", claim_wait_sec="0.01", proxy_protocol="http") as web:

        def ask(verb: str, path: str, host: str) -> int:
            with web.connect() as raw:
                proxied = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"
                raw.send(proxied + f"{verb} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
                return raw.answer()[0]

        assert ask("GET", "/claim?queue=q", "broker.internal") == 403
        assert ask("GET", "/consume?queue=q", "10.0.0.5:8080") == 403
        assert ask("POST", "/claim?queue=q", "broker.internal") == 404
        assert ask("GET", "/api/v1/queues", "broker.internal") == 200


def test_sites_that_the_settings_name_are_let_in(tmp_path: Path) -> None:
    with world(tmp_path, auth_mode="none", cors_origins="https://app.example") as web:
        page = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        assert status(web, "/api/v1/queues", page) == 200
        assert status(web, "/api/v1/queues", {**page, "Origin": "https://evil.example"}) == 403
        # an image says nothing of its origin
        assert status(web, "/claim?queue=q", {"Sec-Fetch-Site": "cross-site"}) == 403


def test_a_page_that_rebinds_its_name_is_not_the_guest(tmp_path: Path) -> None:
    with world(tmp_path, claim_wait_sec="0.01") as web:
        assert status(web, "/api/v1/queues", GUEST) == 200
        for host in ("evil.example", f"evil.example:{web.port}", "localhost.evil.example", "127.0.0.1.evil.example"):
            for url in ("/claim?queue=q", "/api/v1/queues", "/api/v1/queues/q/stream", "/keys"):
                assert status(web, url, {**GUEST, "Host": host}) == 401, (host, url)
        # nor does such a page lock out the guest of this machine
        assert status(web, "/api/v1/queues", GUEST) == 200


def test_a_foreign_page_opens_no_websocket(web: World) -> None:
    for marks in ("Origin: https://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"):
        with web.connect() as raw:
            head = "GET /api/v1/queues/q/stream HTTP/1.1\r\nHost: localhost\r\n"
            head += "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            raw.send((head + marks + "\r\n").encode())
            assert raw.answer()[0] == 403


def offer(web: World, token: str, marks: str) -> int:
    """Ask for a WebSocket with a credential among the subprotocols, as a page does."""
    with web.connect() as raw:
        head = "GET /api/v1/queues/q/stream HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        raw.send(f"{head}Sec-WebSocket-Protocol: rookery.bearer.{token}\r\n{marks}\r\n".encode())
        return int(raw.answer()[0])


@pytest.mark.parametrize(
    "marks",
    [
        "Host: localhost\r\nOrigin: https://evil.example\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "Host: evil.example\r\nOrigin: http://evil.example\r\n",
    ],
)
def test_a_page_that_guesses_keys_locks_out_no_program_of_this_machine(tmp_path: Path, marks: str) -> None:
    """The third has made its own name lead here, so that to the browser this is the same site."""
    with world(tmp_path, login_failures_max="2") as web:
        key = web.key("shop")
        assert {offer(web, f"guess{n}", marks) for n in range(30)} <= {401, 403, 429}
        answer = web.client.get("/api/v1/queues", headers={"Authorization": f"Bearer {key}", "Connection": "close"})
        assert answer.status_code == 200
        assert status(web, "/api/v1/queues", GUEST) == 200


# Headers


def test_pages_are_kept_apart(web: World) -> None:
    for url in ("/docs", "/docs/start.js", "/openapi.json", "/health", "/metrics", "/nothing", "/api/v1/queues"):
        answer = web.client.get(url)
        assert answer.headers["x-content-type-options"] == "nosniff", url
        if answer.headers["content-type"].startswith("text/html"):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
        else:
            assert "content-security-policy" not in answer.headers
    assert web.client.get("/docs").headers["content-type"].startswith("text/html")
    with web.client.stream("GET", "/api/v1/queues/q/stream") as events:
        assert events.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["127.0.0.1#evil.com", "localhost@evil.com", "127.0.0.1:80:80", "localhost.", "127.1"])
def test_a_host_that_only_looks_like_this_machine_is_not(web: World, host: str) -> None:
    answer = web.client.get("/claim?queue=q", headers={"Host": host})
    assert answer.status_code == 403


def test_a_whole_url_says_whom_it_asks(web: World) -> None:
    with socket.create_connection(("127.0.0.1", web.port), 30) as sock:
        sock.sendall(b"GET http://evil.com/claim?queue=q HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to become another user")
def test_another_user_of_this_machine_is_not_local(tmp_path: Path) -> None:
    """As a proxy is, which adds nothing that tells of it."""
    ask = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "link = socket.socket()\n"
        "link.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "link.sendall(b'GET /create_key?tenant=x HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')\n"
        "print(link.recv(12).decode())"
    )
    with world(tmp_path) as web:
        asked = subprocess.run([sys.executable, "-c", ask, str(web.port)], capture_output=True, text=True, check=True)
        assert asked.stdout.strip() == "HTTP/1.1 403"
        assert web.client.get("/create_key?tenant=x").status_code == 200


# A real proxy


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_nobody_is_local_behind_nginx(tmp_path: Path, version: str) -> None:
    with world(tmp_path) as web, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        # from 1.29.7 on nginx proxies with HTTP/1.1; its workers are another user's, unless it cannot change its user
        known = version == "1.0" or (sys.platform == "linux" and os.geteuid() == 0)
        more = "" if known else "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p;\n"
            f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_http_version {version}; {more}\n"
            f"proxy_pass http://127.0.0.1:{web.port}; }} }} }}\n"
        )
        proxy = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
        try:
            until = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.05)
            url = f"http://127.0.0.1:{port}"
            assert web.client.get(f"{url}/health").status_code == 200
            assert web.client.get(f"{url}/create_key?tenant=x").status_code == 403
            assert web.client.get(f"{url}/api/v1/queues", headers=GUEST).status_code == 401
        finally:
            proxy.terminate()
            proxy.wait(30)
