"""The error that users see, a sentence with the place, the value and the fix; and helpers that write such sentences."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError


class InputError(ValueError):
    """An input of the user that cannot be used: a value, a file or a place to write to.

    The message is one sentence: what is wrong, in which file and field, and what to do instead. The command line prints
    it and exits with code 2. No file of the user has been changed, and no incomplete file is left.
    """


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

# What to write instead, by pydantic's type of error; braces are filled from the context of the error.
_FIXES = {
    "greater_than": "write a number > {gt}",
    "greater_than_equal": "write a number >= {ge}",
    "less_than": "write a number < {lt}",
    "less_than_equal": "write a number <= {le}",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "finite_number": "write a finite number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "string_type": "write text, in quotes if it looks like something else",
    "string_unicode": "write text in UTF-8",
    "string_pattern_mismatch": "write a name on one line",
    "literal_error": "write {expected}",
    "path_type": "write the path of a file",
    "tuple_type": "write a list: [..., ...]",
    "too_short": "the list needs at least {min_length}",
    "too_long": "the list takes at most {max_length}",
    "dict_type": "write its fields below it, each as 'field: value'",
    "model_type": "write its fields below it, each as 'field: value'",
}


def short_repr(value: Any) -> str:
    """Return what the user wrote, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of too many digits"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint to follow a semicolon: 'write X' if one of the known words is similar, else the list of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"write {close[0]!r}" if close else f"use one of {', '.join(known)}"


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return a sentence about an unknown name, such as "unknown algorithm 'cmoppo'; did you mean 'c-moppo'?"."""
    known = list(known)
    similar = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"did you mean {similar[0]!r}?" if similar else f"choose one of {', '.join(known)}."
    return f"unknown {kind} {short_repr(name)}; {hint}"


def one_line(text: str) -> str:
    """Return the text without line breaks and other characters that a terminal cannot print."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def field_error(*location: str | int, said: str) -> ValidationError:
    """Return an error for a validator to raise about a nested field: ``field_error("size", said="is ...")``."""
    kind = PydanticCustomError("said", "{said}", {"said": said})
    return ValidationError.from_exception_data("scenario", [InitErrorDetails(type=kind, loc=location, input=None)])


def describe_error(error: ErrorDetails) -> str:
    """Return what is wrong with a field and what to write instead, to follow the name of the field."""
    match error["type"]:
        case "said":
            return error["msg"]
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing":
            return "is missing; give it a value"
        case kind if kind in _FIXES:
            bounds = {name: f"{v:g}" if isinstance(v, float) else v for name, v in error.get("ctx", {}).items()}
            return f"is {short_repr(error['input'])}; {_FIXES[kind].format(**bounds)}"
        case _:
            return f"is {short_repr(error['input'])}; {error['msg'][0].lower()}{error['msg'][1:]}"
