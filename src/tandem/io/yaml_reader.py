"""YAML as scenarios use it: plain data, each key once, and numbers as in YAML 1.2."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tandem.errors import InputError

MAX_DEPTH = 30  # levels of nesting; a scenario has six

# PyYAML follows YAML 1.1, where 010 is 8, 1:30 is 90 and 1e9 is text. As in YAML 1.2, 010 is 10, 1:30 is text and 1e9
# is a number; underscores between digits are allowed, as in 1.1.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_INT = re.compile(rf"^(?:[-+]?{_DIGITS}|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    rf"^(?:[-+]?(?:\.[0-9]+|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


def read_yaml(text: str) -> Any:
    """Read like ``yaml.safe_load``, with numbers as in YAML 1.2.

    Raises ``yaml.YAMLError`` for text that cannot be read, and for a key that is given twice.
    """
    return yaml.load(text, _Loader)


def dump_yaml(data: Any) -> str:
    """Write plain data so that ``read_yaml`` reads the same data back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_assignment(text: str, option: str, example: str) -> tuple[str, Any]:
    """Split ``name=value`` and read the value as YAML; ``option`` and ``example`` are for the error messages."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"{option} {text}: is not name=value; write one such as {option} {example}.")
    try:
        return name.strip(), read_yaml(value)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it does not parse"
        raise InputError(
            f"{option} {text}: cannot be read as YAML ({problem}); quote it or fix its brackets."
        ) from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def construct_yaml_int(self, node: Any) -> int:
        digits = self.construct_scalar(node).replace("_", "")
        return int(digits, 8 if digits.startswith("0o") else 16 if digits.startswith("0x") else 10)

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        # A few lines of nested aliases can expand to billions of values, and an alias may contain itself.
        if self.check_event(yaml.AliasEvent):
            raise _problem("aliases are not supported, write the values out or share them by fleet.defaults", mark)
        if self._depth == MAX_DEPTH:
            raise _problem(f"it is nested more than {MAX_DEPTH} levels deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        for key in keys:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _problem(f"the key {key.value!r} is given twice, remove one", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception:  # PyYAML does not catch the exceptions of int(), date() and similar functions
            kind = node.tag.rpartition(":")[2]
            raise _problem(f"there is a value that is not a valid {kind}, put it in quotes", node.start_mark) from None


def _problem(said: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=said, problem_mark=mark)


class _Dumper(yaml.SafeDumper):
    pass


def _use_yaml_1_2_numbers(kind: Any) -> None:
    numbers = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    kept = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in numbers]
        for first, resolvers in kind.yaml_implicit_resolvers.items()
    }
    kind.yaml_implicit_resolvers = kept
    kind.add_implicit_resolver(numbers[0], _INT, list("-+0123456789"))
    kind.add_implicit_resolver(numbers[1], _FLOAT, list("-+0123456789."))


_use_yaml_1_2_numbers(_Loader)
_use_yaml_1_2_numbers(_Dumper)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
