"""Which services there are: the settings that ask for one, the package it needs, and its module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters.base import Service


class Known(NamedTuple):
    """One service."""

    title: str
    package: str  # that it imports
    requirement: str  # what to install
    place: str  # module:class


SERVICES = {
    "tensorboard": Known(
        "TensorBoard",
        "tensorboard",
        "tensorboard",
        "aligner_lib.run_folder.exporters.tensorboard:TensorBoard",
    ),
    "wandb": Known("Weights & Biases", "wandb", "wandb", "aligner_lib.run_folder.exporters.wandb:Wandb"),
    "mlflow": Known("MLflow", "mlflow", "mlflow-skinny", "aligner_lib.run_folder.exporters.mlflow:MLflow"),
    "trackio": Known("trackio", "trackio", "trackio", "aligner_lib.run_folder.exporters.trackio:Trackio"),
}


def asked_for(exp_manager: Mapping) -> list[str]:
    """The services that a run's settings ask for: exp_manager.create_*_logger."""
    return [name for name in SERVICES if exp_manager[f"create_{name}_logger"]]


def options(config: Mapping, name: str) -> dict:
    """A service's own settings in run.json's `config`; empty in a run of before there were any."""
    return (config.get("exp_manager") or {}).get(f"{name}_logger_kwargs") or {}


def known(name: str) -> Known:
    """A service by its name. Raises UserError, which names those there are."""
    if name not in SERVICES:
        raise UserError(f"no exporter sends to {name!r}; there are {', '.join(SERVICES)}")
    return SERVICES[name]


def lacking(name: str) -> str | None:
    """A sentence when a service's package is not installed; imports nothing."""
    service = known(name)
    if find_spec(service.package) is not None:
        return None
    return (
        f"{service.title} needs the package {service.package}, which is not installed "
        f"(`pip install {service.requirement}`)"
    )


def make(name: str) -> Service:
    """A service, with its package imported. Raises UserError when the package is missing."""
    if sentence := lacking(name):
        raise UserError(sentence)
    module, _, attribute = known(name).place.partition(":")
    return getattr(import_module(module), attribute)()
