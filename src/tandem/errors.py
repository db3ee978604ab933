"""The one error a user of the command line ever sees: a sentence that names the place and the fix."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is a complete sentence: what is wrong, in which file and field, and what to write instead.
    The command line prints it and exits with code 2; nothing has been written by then.
    """


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

# What to write instead, by pydantic's type of error; the braces are filled from its context.
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
    "model_type": "write its fields below it, each as 'field: value'",
}


def short_repr(value: Any) -> str:
    """What the user wrote, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python declines to print integers of thousands of digits
        return "a number of too many digits"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """'write X' if one of the known words is close, else the list of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"write {close[0]!r}" if close else f"use one of {', '.join(known)}"


def one_line(text: str) -> str:
    """The text without line breaks or anything else a terminal could not print."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def field_error(*location: str | int, said: str) -> ValidationError:
    """An error for a validator to raise about a field below its own: ``problem("defaults", "size", said="is ...")``."""
    kind = PydanticCustomError("said", "{said}", {"said": said})
    return ValidationError.from_exception_data("scenario", [InitErrorDetails(type=kind, loc=location, input=None)])


def describe_error(error: ErrorDetails) -> str:
    """What is wrong with a field and what to write instead, to follow the field's name."""
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
