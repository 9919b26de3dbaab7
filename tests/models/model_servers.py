"""A Python index and a model hub on this machine, for the real clients (pip, uv, huggingface_hub) to talk to."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Files:
    """What a server gives out, by path; `cut` bytes of a path's first answer stay away, and it may hang there."""

    def __init__(self):
        self.content: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.refused: dict[str, tuple[int, str]] = {}  # by path: status, and the hub's code for it
        self.tokens: list[str] = []  # Authorization headers
        self.cut: dict[str, int] = {}
        self.hang = False  # keep the cut connection open until `release`
        self.release = threading.Event()
        self.requests: list[tuple[str, str, str]] = []  # (method, path, Range header)

    def put(self, path: str, body: bytes | str, **headers: str) -> None:
        body = body.encode() if isinstance(body, str) else body
        self.content[path] = body, {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def serve(files: Files):
    """The address of a server of these files, for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = self.path.partition("?")[0]
            span = self.headers.get("Range", "")
            files.requests.append((self.command, path, span))
            files.tokens.append(self.headers.get("Authorization", ""))
            if path in files.refused:
                status, code = files.refused[path]
                self._begin(status, {"X-Error-Code": code}, 0)
            elif path not in files.content:
                self.send_error(404)
            else:
                body, headers = files.content[path]
                start = int(span.removeprefix("bytes=").split("-")[0]) if span else 0
                place = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if span else {}
                self._begin(
                    206 if span else 200, {"Content-Type": "text/html", **headers, **place}, len(body) - start
                )
                if self.command == "GET":
                    self._send(path, body[start:])

        do_HEAD = do_GET

        def _begin(self, status: int, headers: dict[str, str], length: int):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(length)}.items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, path: str, body: bytes):
            cut = files.cut.pop(path, 0)
            self.wfile.write(body[: len(body) - cut])
            if cut:
                self.wfile.flush()
                if files.hang:
                    files.release.wait(60)
                self.close_connection = True

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        files.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def make_wheel(path: Path, package: str, version: str, member: Path) -> str:
    """A pure-Python wheel that carries one file; returns its SHA-256."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    members = {
        f"{module}/__init__.py": b'raise RuntimeError("the package must not be imported")\n',
        f"{module}/{member.name}": member.read_bytes(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: no-such-package-at-all\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={_record_hash(body)},{len(body)}" for name, body in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    with zipfile.ZipFile(path, "w") as wheel:
        for name, body in members.items():
            wheel.writestr(name, body)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record_hash(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


def put_in_index(files: Files, wheel: Path, package: str) -> str:
    """Give a wheel out in a simple index; returns its path on the server."""
    path = f"/files/{wheel.name}"
    files.put(path, wheel.read_bytes(), Content_Type="application/octet-stream")
    link = f'<a href="{path}">{wheel.name}</a>'
    files.put(f"/simple/{package}/", f"<!DOCTYPE html><html><body>{link}</body></html>")
    return path


def put_on_hub(files: Files, folder: Path, repo: str, revision: str, **card: str) -> None:
    """Give a folder's files out as a model repository of the hub, as its client asks for them; `revision` is its main
    branch. card: what its model card's metadata say."""
    entries, siblings = [], []
    for path in sorted(folder.iterdir()):
        body = path.read_bytes()
        etag = hashlib.sha256(body).hexdigest()
        entries.append({"type": "file", "path": path.name, "size": len(body), "oid": etag[:40]})
        large = path.suffix in (".safetensors", ".bin")
        lfs = {"lfs": {"sha256": etag, "size": len(body), "pointerSize": 134}} if large else {}
        siblings.append({"rfilename": path.name, "size": len(body), **lfs})
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": revision, "Accept_Ranges": "bytes"}
        files.put(f"/{repo}/resolve/{revision}/{path.name}", body, **headers)
    info = {"id": repo, "modelId": repo, "sha": revision, "siblings": siblings, "tags": [], "private": False}
    info["cardData"] = card
    json_type = {"Content_Type": "application/json"}
    for of_revision in ("", f"/revision/{revision}", "/revision/main"):
        files.put(f"/api/models/{repo}{of_revision}", json.dumps(info), **json_type)
    files.put(f"/api/models/{repo}/tree/{revision}", json.dumps(entries), **json_type)
