"""The one rule for the network: it is asked for what a user names with ``hf:``, and for nothing else.

Data sets (``--data hf:NAME``) and checkpoints (``hf:OWNER/NAME``) go through the hub's own libraries, which are
imported only then, keep what they fetch in the hub's own cache, and stay off the network where ``HF_HUB_OFFLINE`` is
set.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import ModuleType

from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import cut

PREFIX = "hf:"


def is_named(text: str | Path) -> bool:
    """Return whether a text names something on the hub."""
    return str(text).startswith(PREFIX)


def library(module: str, extra: str, reference: str, description: str) -> ModuleType:
    """Import the library that fetches a reference.

    Args:
        module: to import.
        extra: of this package that brings it.
        reference: what was named.
        description: of the reference, as in "a Hugging Face data set".

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{reference} is {description}: pip install 'bornbiased-jax[{extra}]' to read it") from error


@contextlib.contextmanager
def asking(reference: str) -> Iterator[None]:
    """Turn whatever goes wrong while the hub is asked into one sentence with a remedy.

    Raises:
        InputError: the block raised anything but that.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the libraries raise their own, the system's and their HTTP client's errors
        raise InputError(f"{reference} cannot be loaded: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    if "GatedRepoError" in kinds:
        return "its owner asks for consent: give it on the hub's page, then `hf auth login`"
    if "RevisionNotFoundError" in kinds:
        return "the hub has no such revision: name a branch, a tag or a commit"
    if "RepositoryNotFoundError" in kinds:
        return "the hub has none of this name, or only for those who are logged in: check it, or `hf auth login`"
    if any(
        getattr(getattr(cause, "response", None), "status_code", None) == HTTPStatus.UNAUTHORIZED
        for cause in _causes(error)
    ):
        return "the hub does not take your token: `hf auth login` with a new one, or change or unset HF_TOKEN"
    if "OfflineModeIsEnabled" in kinds:
        return "it is not in the cache, and HF_HUB_OFFLINE is set: unset that"
    text = str(error).strip()
    message = cut(text.splitlines()[0]) if text else repr(error)
    if message.startswith("Consistency check failed"):
        return "the transfer broke off (call again: whole files are kept)"
    if "HTTPError" in kinds or "ConnectionError" in kinds or "LocalEntryNotFoundError" in kinds:
        return f"{message.rstrip('. ')} (check the connection, then call again: whole files are kept)"
    return message


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
