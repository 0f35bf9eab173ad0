"""The text that Prometheus reads, by its library, which escapes the text of peers in labels. Only a broker with an HTTP port imports it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from halfmq.broker.metrics.counts import MS, US, Histogram
from halfmq.broker.metrics.families import COUNTER, NODE_LABELS, ROCKETMQ, Family

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
#: Series that are written at once: they take one millisecond, and three on a busy machine.
_ROWS: Final = 32
_BOUNDS: Final = {scale: tuple(map(floatToGoString, scale.bounds_s)) for scale in (US, MS)}

#: Values by the values of the labels.
Rows = Mapping[tuple[str, ...], float | Histogram]


class _One:
    """What the library writes, in place of its registry: one family."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        """The families."""
        return self._metrics


def written(family: Family, node: tuple[str, ...], rows: Rows) -> Iterator[bytes]:
    """The family's text in parts, each of which takes little time. ``node``: values of ``NODE_LABELS``."""
    is_theirs = family.name.startswith(ROCKETMQ)
    names = (*(NODE_LABELS if is_theirs else ()), *family.labels)
    name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
    left = iter(rows.items())
    is_first = True
    while (part := list(islice(left, _ROWS))) or is_first:
        metric = Metric(name, family.help, family.kind)
        for values, value in part:
            labels = dict(zip(names, (*(node if is_theirs else ()), *values), strict=True))
            if isinstance(value, Histogram):
                _add(metric, labels, value)
            else:
                metric.add_sample(family.name, labels, value)
        text = _text([metric])
        yield text if is_first else text.split(b"\n", 2)[2]  # HELP and TYPE once
        is_first = False


def _add(metric: Metric, labels: dict[str, str], histogram: Histogram) -> None:
    within, count = histogram.cumulative()
    for bound, number in zip(_BOUNDS[histogram.scale], within, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, number)
    metric.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum_s)


class ProcessFigures:
    """Memory, descriptors and processor time of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()  # its own: that of the library belongs to whoever imports this package
        ProcessCollector(registry=self._registry)

    def written(self) -> bytes:
        """The text of all of them."""
        return generate_latest(self._registry)


def _text(metrics: Sequence[Metric]) -> bytes:
    return generate_latest(cast(Any, _One(metrics)))
