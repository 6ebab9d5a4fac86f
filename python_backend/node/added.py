"""Models that were added while the node ran, written down in its run directory: the node that follows a killed one
serves them too. A node that stops in order takes the file along."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from contracts.stack import ServedModel, write_whole

logger = logging.getLogger(__name__)

ADDED_NAME = "added_models.json"


class AddedModel(msgspec.Struct, frozen=True):
    served: ServedModel
    num_spares: int


def write_added(path: Path, added: Sequence[AddedModel]) -> None:
    write_whole(path, msgspec.json.encode(list(added)))


def read_added(path: Path) -> list[AddedModel]:
    """Empty when there is no such file, or it is damaged (which is logged)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[AddedModel])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as exc:
        logger.error("%s is damaged, models added at run time are lost: %s", path, exc)
        return []
