"""YAML as scenarios use it: plain data, each key once."""

from __future__ import annotations

from typing import Any

import yaml

_DEEPEST = 30  # levels of nesting; a scenario has six


def read_yaml(text: str) -> Any:
    """Like ``yaml.safe_load``, but whatever cannot be read is a ``yaml.YAMLError``, and so is a key given twice."""
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        # A few lines of aliases to aliases stand for billions of values, and an alias may hold itself.
        if self.check_event(yaml.AliasEvent):
            raise _problem("aliases are not supported, write the values out or share them by fleet.defaults", mark)
        if self._depth == _DEEPEST:
            raise _problem(f"it is nested more than {_DEEPEST} levels deep", mark)
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
        except Exception:  # PyYAML lets through what int(), date() and the like raise
            kind = node.tag.rpartition(":")[2]
            raise _problem(f"there is a value that is not a valid {kind}, put it in quotes", node.start_mark) from None


def _problem(said: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=said, problem_mark=mark)
