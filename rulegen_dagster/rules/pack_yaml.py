"""YAML as packs hold it: plain values, and no key twice in one mapping."""

from collections.abc import Hashable
from typing import Any

import yaml


class PackYamlError(ValueError):
    """The text is no such YAML; the message says what is wrong and where, and goes on after the name of a file."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises `PackYamlError`."""
    try:
        # A subclass of SafeLoader: it builds plain values only.
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise PackYamlError(f"is not valid YAML{where}: {problem}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; YAML libraries keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)
