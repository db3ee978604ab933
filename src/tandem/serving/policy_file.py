"""The file that ``tandem export`` writes: everything that is needed to decide, in one safetensors file.

Arrays are documented in docs/serving.md, by the names they have in the file. The metadata are one JSON document under
the key ``tandem``. Reading needs NumPy and safetensors only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

FORMAT = 1  # of the file; a reader refuses files of another format
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PolicyFile:
    """The content of an export file, checked: shapes belong together and every number is finite."""

    arrays: Arrays  # by name
    metadata: dict[str, Any]
    source: str  # path of the file or the run, for messages

    @property
    def version(self) -> str:
        """The fingerprint of the content, 16 hexadecimal digits: equal for equal policies of equal runs."""
        raise NotImplementedError

    @property
    def device_names(self) -> list[str]:
        """The names of the devices that the policy was trained for."""
        raise NotImplementedError


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read and check an export file. Raises InputError with the file, the field and the fix if it cannot be used."""
    raise NotImplementedError


def write_policy_file(path: str | Path, policy_file: PolicyFile) -> None:
    """Write an export file atomically; equal content gives equal bytes."""
    raise NotImplementedError
