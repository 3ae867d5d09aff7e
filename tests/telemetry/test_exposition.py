"""Prometheus' text format, read back by a strict reader of its grammar."""

import pytest

from rulegen_dagster.telemetry.exposition import Metric, MetricKind, exposition
from tests.telemetry.prometheus_text import read_exposition


def test_metrics_are_read_back_as_they_were_told() -> None:
    jobs = Metric(
        name="rulegen_jobs",
        kind=MetricKind.GAUGE,
        help='Jobs: a "state", a back\\slash and a\nnew line.',
        labels=("state", "model"),
        samples={("done", 'a"b\\c\nd'): 3, ("", "é{},="): 0.25},
    )
    calls = Metric(name="rulegen_calls_total", kind=MetricKind.COUNTER, help="Calls.", samples={(): 12})
    empty = Metric(name="rulegen_waits", kind=MetricKind.GAUGE, help="None yet.", labels=("stage",))

    read = read_exposition(exposition([jobs, calls, empty]))

    assert read["rulegen_jobs"].help == jobs.help
    assert {name: metric.kind for name, metric in read.items()} == {
        "rulegen_jobs": "gauge",
        "rulegen_calls_total": "counter",
        "rulegen_waits": "gauge",
    }
    assert read["rulegen_jobs"].samples == {
        (("model", 'a"b\\c\nd'), ("state", "done")): 3,
        (("model", "é{},="), ("state", "")): 0.25,
    }
    assert read["rulegen_calls_total"].samples == {(): 12}
    assert read["rulegen_waits"].samples == {}


@pytest.mark.parametrize(
    ("name", "kind", "labels", "samples"),
    [
        ("rulegen-jobs", MetricKind.GAUGE, (), {}),
        ("rulegen_jobs", MetricKind.COUNTER, (), {}),
        ("rulegen_jobs_total", MetricKind.GAUGE, (), {}),
        ("rulegen_jobs", MetricKind.GAUGE, ("by state",), {}),
        ("rulegen_jobs", MetricKind.GAUGE, ("state",), {(): 1}),
    ],
)
def test_a_metric_that_the_format_does_not_allow_is_refused(
    name: str, kind: MetricKind, labels: tuple[str, ...], samples: dict[tuple[str, ...], int]
) -> None:
    with pytest.raises(ValueError, match=name):
        Metric(name=name, kind=kind, help="", labels=labels, samples=samples)
