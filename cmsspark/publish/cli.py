"""``cmsspark publish``: a stored day or period as documents, to MONIT or to files, each document confirmed."""

from __future__ import annotations

import click

from cmsspark.publish.command import PUBLISH_HELP, PublishAction, publish, publish_options
from cmsspark.publish.publication import PublishRequest


@click.command("publish", help=PUBLISH_HELP)
@publish_options
def command(request: PublishRequest, action: PublishAction) -> None:
    publish(request, action)
