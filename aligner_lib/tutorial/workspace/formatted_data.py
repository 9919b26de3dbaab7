"""The formatted data of a workspace. They are formatted again if the workspace's data set has changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aligner_lib.models.hash import file_hash
from cluster.record import read_json, write_json


@dataclass(frozen=True)
class FormattedData:
    """Files for the trainers, formatted when they are first needed."""

    folder: Path
    dataset: str
    """The data set as in Workspace.dataset, but not `sample`."""

    def sft(self) -> Path:
        """The folder with train.jsonl and validation.jsonl. Formats Dolly (or a sample) if the files are missing."""
        folder = self.folder / "sft"
        if not self._is_complete(folder, "validation.jsonl"):
            from data import format_dolly, resolve

            source = resolve(self.dataset, "dolly")
            print(source.note)
            print(format_dolly(source.paths, folder))
            self._note_source(folder)
        return folder

    def preferences(self) -> Path:
        """The folder with {train,test}_{comparisons,prompts}.jsonl. Formats HH (or a sample) if the files are missing."""
        folder = self.folder / "hh"
        if not self._is_complete(folder, "test_prompts.jsonl"):
            from data import format_hh, resolve

            for split in ("train", "test"):
                source = resolve(self.dataset, "hh", split=split)
                print(source.note)
                print(format_hh(source.paths, folder, split))
            self._note_source(folder)
        return folder

    def path(self, file: str | list[str]) -> Path | list[Path]:
        """The path of a formatted file, such as `sft/train.jsonl`. Formats the data if the file is missing."""
        if isinstance(file, list):
            return [self.path(part) for part in file]
        folder, _, name = file.partition("/")
        return {"sft": self.sft, "hh": self.preferences}[folder]() / name

    def _is_complete(self, folder: Path, last: str) -> bool:
        """Whether the folder has the complete files of this data set, and not of another. last: the file that is written last."""
        noted = read_json(folder / "source.json") or {}
        return (folder / last).exists() and noted | self._source() == noted

    def _note_source(self, folder: Path) -> None:
        write_json(folder / "source.json", self._source())

    def _source(self) -> dict[str, str]:
        """The data set and, if the data set is a file, the hash of the file's present content."""
        file = Path(self.dataset)
        return {"dataset": self.dataset} | ({"hash": file_hash(file)} if file.is_file() else {})
