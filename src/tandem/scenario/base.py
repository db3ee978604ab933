"""Base classes of a scenario's parts: immutable fields, and plugins that come in kinds."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandem.errors import did_you_mean, field_error, short_repr

Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]  # names appear in messages and tables: one line


class ConfigModel(BaseModel):
    """A part of a scenario: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if isinstance(value, dict):
            cls.check_keys(value)
        return value

    @classmethod
    def check_keys(cls, fields: dict[Any, Any], *location: str | int) -> None:
        """Raise an error for a key that is not a field; ``location`` is the place of ``fields`` in the caller's."""
        known = [name for name in cls.model_fields if name != "kind"]
        of_kind = f" of the kind {fields.get('kind')!r}" if "kind" in cls.model_fields else ""
        for key in fields:
            fix = did_you_mean(key, known) if known else "remove it, or write the kind alone"
            if not isinstance(key, str):
                raise field_error(*location, said=f"has the key {short_repr(key)}, which is not a name; {fix}")
            if key not in cls.model_fields:
                raise field_error(*location, key, said=f"is not a field{of_kind}; {fix}")


class PluginConfig(ConfigModel):
    """A part that comes in kinds. Defining a subclass with its own ``kind`` registers it."""

    kind: str
    choices: ClassVar[dict[str, type[PluginConfig]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if PluginConfig in cls.__bases__:
            cls.choices = {}
        else:
            cls.choices[cls.model_fields["kind"].default] = cls

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Validate with the subclass that ``kind`` names; a bare word is the kind with its defaults."""
        if isinstance(value, PluginConfig):
            return value
        fields = {"kind": value} if isinstance(value, str) else value
        if not isinstance(fields, dict) or "kind" not in fields:
            raise ValueError(f"is {short_repr(value)}; write {{kind: ...}} with one of {', '.join(cls.choices)}")
        kind = fields["kind"]
        if not isinstance(kind, str) or kind not in cls.choices:
            raise ValueError(f"has the kind {short_repr(kind)}, which is not known; {did_you_mean(kind, cls.choices)}")
        return cls.choices[kind].model_validate(fields)

    @classmethod
    def parse_or_none(cls, value: Any) -> Any:
        """Validate like ``parse``; None stays None."""
        return None if value is None else cls.parse(value)
