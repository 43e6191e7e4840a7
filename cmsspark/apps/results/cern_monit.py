"""``run_spark cern_monit``: publish a stored result, also from a store on HDFS. ``cmsspark publish`` does the same."""

from __future__ import annotations

import click

from cmsspark.publish.command import PUBLISH_HELP, PublishAction, publish, publish_options
from cmsspark.publish.publication import PublishRequest


@click.command("cern_monit", help=PUBLISH_HELP)
@publish_options
def command(request: PublishRequest, action: PublishAction) -> None:
    publish(request, action)
