"""A strict reader of Prometheus' text format 0.0.4, written from its grammar."""

import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{(?P<labels>[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
    r'(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*")*)\})?'
    r" (?P<value>-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = tuple[tuple[str, str], ...]


@dataclass
class ReadMetric:
    """One metric as it was read."""

    help: str
    kind: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)


def read_exposition(text: str) -> dict[str, ReadMetric]:
    """Read a whole text; an AssertionError tells the line that breaks the grammar, or says something twice."""
    assert text.endswith("\n")
    read: dict[str, ReadMetric] = {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, said = line[7:].partition(" ")
            assert name not in read, line
            read[name] = ReadMetric(help=_unescaped(said))
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            assert read[name].kind == "", line
            assert kind in {"counter", "gauge"}, line
            read[name].kind = kind
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            metric = read[found["name"]]
            # All lines of a metric stand together, behind its type.
            assert metric is list(read.values())[-1], line
            assert metric.kind, line
            labels = tuple(sorted((name, _unescaped(value)) for name, value in _LABEL.findall(found["labels"] or "")))
            assert labels not in metric.samples, line
            assert len({name for name, _ in labels}) == len(labels), line
            metric.samples[labels] = float(found["value"])
    return read


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\n"]', lambda found: _UNESCAPED[found[0]], text)
