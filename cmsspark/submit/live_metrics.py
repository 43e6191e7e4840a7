"""Spark's options for live metrics: the Graphite sink, and Prometheus on Spark's pages. Off unless the settings say so.

A Graphite port asks for no password: whoever reaches it can write. The default address is this host's loopback.
"""

from __future__ import annotations

from typing import Final

from cmsspark.settings.settings import MetricsSettings, Settings
from cmsspark.submit.spark_options import Options

_PREFIX: Final = "spark.metrics.conf.*."
_SINK: Final = f"{_PREFIX}sink.graphite."


def add_metrics(options: Options, settings: Settings) -> None:
    """Lay the options of the settings' ``metrics``."""
    where = settings.where("metrics")
    for name, (value, reason) in metrics_options(settings.metrics).items():
        options.set_option(name, value, where, reason)


def metrics_options(metrics: MetricsSettings) -> dict[str, tuple[str, str]]:
    """Option → (value, why)."""
    options: dict[str, tuple[str, str]] = {}
    if metrics.host is not None:
        options |= {
            f"{_SINK}class": ("org.apache.spark.metrics.sink.GraphiteSink", "driver and executors send their metrics"),
            f"{_SINK}host": (metrics.host, "the receiver; executors on other hosts must reach it, too"),
            f"{_SINK}port": (str(metrics.port), "it asks for no password: keep it on loopback or behind a firewall"),
            f"{_SINK}period": (str(metrics.period_seconds), "seconds between two reports"),
            f"{_SINK}unit": ("seconds", "of the period"),
            f"{_SINK}prefix": (metrics.prefix, "the first part of each name"),
        }
    if metrics.prometheus:
        options |= {
            f"{_PREFIX}sink.prometheusServlet.class": (
                "org.apache.spark.metrics.sink.PrometheusServlet",
                "the driver's metrics at /metrics/prometheus of Spark's page",
            ),
            f"{_PREFIX}sink.prometheusServlet.path": ("/metrics/prometheus", "where Prometheus reads them"),
            "spark.ui.prometheus.enabled": ("true", "the executors' metrics at /metrics/executors/prometheus"),
            "spark.ui.enabled": ("true", "both are parts of Spark's page"),
        }
    if options:
        options[f"{_PREFIX}source.jvm.class"] = ("org.apache.spark.metrics.source.JvmSource", "pools and collections")
    return options
