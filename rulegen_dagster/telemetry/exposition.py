"""Prometheus' text format 0.0.4: metrics as values, and the text in which they are scraped."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class MetricKind(StrEnum):
    """How a metric moves: a closed set."""

    #: It only grows.
    COUNTER = "counter"
    #: It goes up and down.
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric; `samples` has a value for each set of label values, in the order of `labels`.

    Raises `ValueError` for names that the format does not allow, and for samples with another number of labels.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    samples: Mapping[tuple[str, ...], int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the names: they are written by this project alone."""
        wrong = [name for name in (self.name, *self.labels) if not _NAME.fullmatch(name)]
        if wrong or (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name} has a name, or a label, that breaks the rules: {', '.join(wrong)}")
        if any(len(values) != len(self.labels) for values in self.samples):
            raise ValueError(f"a sample of {self.name} has other labels than {', '.join(self.labels)}")


def exposition(metrics: Iterable[Metric]) -> str:
    """Return the text of metrics; each is told with its help and type, also where it has no sample."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind.value}")
        for values, number in sorted(metric.samples.items()):
            pairs = ",".join(f'{label}="{_quoted(value)}"' for label, value in zip(metric.labels, values, strict=True))
            lines.append(f"{metric.name}{{{pairs}}} {number}" if pairs else f"{metric.name} {number}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
