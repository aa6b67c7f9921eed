"""A server on the loopback that speaks the protocol of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import urllib.parse
from typing import Any

COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Repositories: the bytes of files by their names, by the repositories' names."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Requests(http.server.BaseHTTPRequestHandler):
    """``GET /OWNER/NAME/resolve/REVISION/FILE``, and HEAD of the same, with the headers that the hub gives.

    Names of data sets begin with ``datasets/``; their revisions and files are listed below ``/api/``.
    """

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub: Any = self.server
        hub.requests.append(f"{self.command} {self.path}")
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path.startswith("/api/"):
            self.list(path)
            return
        match = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        files = hub.repositories.get(match[1]) if match else None
        if match is None or files is None:
            self.answer(404, code="RepoNotFound")
        elif files.get("gated"):
            self.answer(403, code="GatedRepo")
        elif match[2] not in ("main", COMMIT):
            self.answer(404, code="RevisionNotFound")
        elif match[3] not in files:
            self.answer(404, code="EntryNotFound")
        else:
            self.answer(200, files[match[3]])

    def list(self, path: str) -> None:
        hub: Any = self.server
        match = re.fullmatch(r"/api/(datasets/[^/]+/[^/]+)/(revision|tree)/(.+)", path)
        files = hub.repositories.get(match[1]) if match else None
        if match is None or files is None:
            self.answer(404, code="RepoNotFound")
        elif match[3] not in ("main", COMMIT):
            self.answer(404, code="RevisionNotFound")
        else:
            tree = [{"type": "file", "path": name, "size": len(own), "oid": "0" * 40} for name, own in files.items()]
            info = {"id": match[1].removeprefix("datasets/"), "sha": COMMIT, "siblings": []}
            self.answer(200, json.dumps(info if match[2] == "revision" else tree).encode(), kind="application/json")

    def answer(self, status: int, body: bytes = b"", code: str | None = None, kind: str = "") -> None:
        self.send_response(status)
        headers = {"Content-Length": len(body), "X-Repo-Commit": COMMIT} | ({"Content-Type": kind} if kind else {})
        headers |= {"X-Error-Code": code} if code else {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
