"""The table of services: the settings that request a service, and the service's package and module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters.base import Service


class ServiceEntry(NamedTuple):
    """An entry of the table of services."""

    title: str
    package: str
    """The package imported by the module."""
    requirement: str
    """The name of the package to install."""
    place: str
    """module:class."""


SERVICES = {
    "tensorboard": ServiceEntry(
        "TensorBoard",
        "tensorboard",
        "tensorboard",
        "aligner_lib.run_folder.exporters.tensorboard:TensorBoard",
    ),
    "wandb": ServiceEntry(
        "Weights & Biases", "wandb", "wandb", "aligner_lib.run_folder.exporters.wandb:Wandb"
    ),
    "mlflow": ServiceEntry(
        "MLflow", "mlflow", "mlflow-skinny", "aligner_lib.run_folder.exporters.mlflow:MLflow"
    ),
    "trackio": ServiceEntry(
        "trackio", "trackio", "trackio", "aligner_lib.run_folder.exporters.trackio:Trackio"
    ),
}


def requested(exp_manager: Mapping) -> list[str]:
    """The services requested by a run's settings: exp_manager.create_*_logger, where the settings have it."""
    return [name for name in SERVICES if exp_manager.get(f"create_{name}_logger")]


def options(config: Mapping, name: str) -> dict:
    """A service's own settings in run.json's `config`; empty if the run is older than these settings."""
    return (config.get("exp_manager") or {}).get(f"{name}_logger_kwargs") or {}


def known(name: str) -> ServiceEntry:
    """Return the service with this name. Raises UserError, which lists all services, for an unknown name."""
    if name not in SERVICES:
        raise UserError(f"no exporter sends to {name!r}; the services are {', '.join(SERVICES)}")
    return SERVICES[name]


def lacking(name: str) -> str | None:
    """Return a sentence if the service's package is not installed, else None. Imports nothing."""
    service = known(name)
    if find_spec(service.package) is not None:
        return None
    return (
        f"{service.title} needs the package {service.package}, which is not installed "
        f"(`pip install {service.requirement}`)"
    )


def make(name: str) -> Service:
    """Import a service's package and make the service. Raises UserError if the package is missing, and for a place without a
    complete class."""
    if sentence := lacking(name):
        raise UserError(sentence)
    module, _, attribute = known(name).place.partition(":")
    try:
        return getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(
            f"the exporter to {known(name).title} can't be made from {module}:{attribute}, its place in SERVICES "
            f"({type(error).__name__}: {error}): the place is MODULE:CLASS, of a class with all methods of Service"
        ) from error
