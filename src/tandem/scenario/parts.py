"""What every part of a scenario is made of: immutable fields, and plugs that come in kinds."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a scenario: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Plug(Part):
    """A part that comes in kinds. A subclass with a ``kind`` of its own is registered by being defined."""

    kind: str
    choices: ClassVar[dict[str, type[Plug]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if Plug in cls.__bases__:
            cls.choices = {}
        else:
            cls.choices[cls.model_fields["kind"].default] = cls

    @classmethod
    def choose(cls, value: Any) -> Any:
        """Validate with the subclass that ``kind`` names; a bare word is the kind with its defaults."""
        if isinstance(value, Plug):
            return value
        fields = {"kind": value} if isinstance(value, str) else value
        if not isinstance(fields, dict) or "kind" not in fields:
            raise ValueError(f"is {value!r}; write {{kind: ...}} with one of {', '.join(cls.choices)}")
        kind = fields["kind"]
        if kind not in cls.choices:
            raise ValueError(f"has the kind {kind!r}, which is not known; {did_you_mean(str(kind), cls.choices)}")
        return cls.choices[kind].model_validate(fields)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'write X' if one of the known words is close, else the list of them."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"write {close[0]!r}" if close else f"use one of {', '.join(map(str, known))}"
