"""``cmsspark lab train run``: check a script, say what would start, and start it on workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.training.backend import Backend
    from cmsspark.apps.training.spec import TrainingRun

_BACKENDS: Final = ("local", "spark", "k8s")
#: Options that only one back end has.
_OF_BACKENDS: Final = {
    "spark": ("master", "confs"),
    "k8s": (
        "image",
        "namespace",
        "kube_context",
        "claim",
        "volumes",
        "selectors",
        "pull_secrets",
        "pod_template",
    ),
}
settings_option = click.option(
    "--settings", "settings_file", metavar="FILE", help="Settings file."
)


@click.command("run")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of workers.",
)
@click.option(
    "--on",
    "backend",
    type=click.Choice(_BACKENDS),
    default="local",
    show_default=True,
    help="Back end.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME[=FOLDER]", help="Credentials; repeatable."
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable of the workers; repeatable.",
)
@click.option(
    "--cpus", type=click.IntRange(1, 512), default=1, show_default=True, help="Cores of a worker."
)
@click.option(
    "--memory",
    default="2Gi",
    show_default=True,
    help="Memory of a worker (Spark, Kubernetes; not enforced on this host).",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 20),
    default=0,
    show_default=True,
    help="Attempts after a failed one.",
)
@click.option("--name", help="Name of the run. [default: the script's, with a random end]")
@click.option(
    "--master", help="Spark: master. [default: local, with as many cores as the workers need]"
)
@click.option(
    "--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Spark: option; repeatable."
)
@click.option(
    "--image", help="Kubernetes: image of the workers, with Python and what the script imports."
)
@click.option("--namespace", help="Kubernetes: namespace. [default: that of the context]")
@click.option(
    "--context",
    "kube_context",
    help="Kubernetes: context of the kubeconfig. [default: the current one]",
)
@click.option(
    "--claim", help="Kubernetes: PersistentVolumeClaim for the output, so that retries go on."
)
@click.option(
    "--files",
    type=click.Path(path_type=Path),
    help="Folder that travels with the script: modules and small files.",
)
@click.option(
    "--gpus", type=click.IntRange(0, 64), default=0, show_default=True, help="GPUs of a worker."
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="CLAIM:/FOLDER[:ro]",
    help="Kubernetes: a claim to mount.",
)
@click.option(
    "--node-selector",
    "selectors",
    multiple=True,
    metavar="KEY=VALUE",
    help="Kubernetes: nodes to run on.",
)
@click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Kubernetes: Secret of the registry.",
)
@click.option(
    "--pod-template",
    type=click.Path(path_type=Path),
    help="Kubernetes: a Pod that workers' pods begin with.",
)
@click.option(
    "--max-hours",
    type=click.FloatRange(0.01, 720),
    default=24.0,
    show_default=True,
    help="Kubernetes: limit.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the script, print what would start (Kubernetes: YAML), start nothing.",
)
@settings_option
def run_command(
    script: Path,
    arguments: tuple[str, ...],
    dry_run: bool,
    settings_file: str | None,
    **options: Any,
) -> None:
    """Run SCRIPT on workers. Its own arguments stand behind --: cmsspark lab train run
    fit.py --workers 4 -- --epochs 3

    Ctrl-C stops all workers and removes what was made. Ends with 65 and the last lines
    of a worker that failed.
    """
    from cmsspark.apps.training.k8s_backend import K8sBackend
    from cmsspark.apps.training.launch import brought_back, check, described_files, launch
    from cmsspark.apps.training.run_folder import RunFolder

    state_dir = load_settings(settings_file).state_dir
    run = _make_run(script, arguments, state_dir, options)
    backend = _build_backend(run, options)
    source = check(run, backend)
    if dry_run:
        _show_plan(run, backend, source)
        return
    location: tuple[str | None, ...] = ()
    if isinstance(backend, K8sBackend):
        backend.connect()
        location = (backend.namespace, backend.context)
    folder = RunFolder.create(state_dir / "training", run, *location)
    click.echo(
        f"{run.name}: {pluralize(run.workers, 'worker')} on {run.backend}; logs in {folder.path / 'logs'}",
        err=True,
    )
    _note_memory(run)
    launch(run, backend, folder, click.echo)
    click.echo(f"{run.name}: done; in {folder.output}: {described_files(folder)}", err=True)
    if brought_back(folder):
        click.echo(f"  next: cmsspark lab train fetch {run.name} --to FOLDER", err=True)


def _note_memory(run: TrainingRun) -> None:
    """Say that --memory limits nothing here, to those who typed it."""
    source = click.get_current_context().get_parameter_source("memory")
    if run.backend == "local" and source is not ParameterSource.DEFAULT:
        # Frameworks reserve far more addresses than memory, so limits of a process
        # would stop them at once.
        click.echo(f"{run.name}: --memory is not enforced on this host (--on local)", err=True)


def _make_run(
    script: Path, arguments: tuple[str, ...], state_dir: Path, options: dict[str, Any]
) -> TrainingRun:
    from cmsspark.apps.training.spec import TrainingRun, parse_memory, parse_secret, run_name
    from cmsspark.settings.redaction import redacted_words

    backend = options["backend"]
    for owner, names in _OF_BACKENDS.items():
        used = [name for name in names if options[name]]
        if used and owner != backend:
            parameters = click.get_current_context().command.params
            flag = next(parameter.opts[0] for parameter in parameters if parameter.name == used[0])
            raise UsageError(f"{flag} is for --on {owner}", found=f"--on {backend}")
    secrets = tuple(
        parse_secret(text, state_dir / "secrets", backend) for text in options["secrets"]
    )
    if len({secret.name for secret in secrets}) < len(secrets):
        raise UsageError(
            "each secret must be named once", found=", ".join(secret.name for secret in secrets)
        )
    return TrainingRun(
        name=run_name(script, options["name"]),
        script=script,
        arguments=arguments,
        shown_arguments=tuple(redacted_words(arguments)),
        workers=options["workers"],
        backend=backend,
        secrets=secrets,
        cpus=options["cpus"],
        memory=parse_memory(options["memory"]),
        retries=options["retries"],
        environment=_pairs(options["variables"], "--env"),
        files=options["files"],
        gpus=options["gpus"],
    )


def _pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or "\0" in text:
            raise UsageError(f"{option} has the form NAME=VALUE", found=repr(text))
        if name.startswith("CMSSPARK_TRAIN_"):
            raise UsageError(
                f"{option}: names that begin with CMSSPARK_TRAIN_ are the launcher's",
                found=repr(name),
            )
        pairs[name] = value
    return pairs


def _build_backend(run: TrainingRun, options: dict[str, Any]) -> Backend:
    if run.backend == "local":
        from cmsspark.apps.training.local_backend import LocalBackend

        return LocalBackend()
    if run.backend == "spark":
        from cmsspark.apps.training.spark_backend import SparkBackend

        return SparkBackend(options["master"], _pairs(options["confs"], "--conf"))
    from cmsspark.apps.training.k8s_backend import K8sBackend, parse_volume, read_template

    return K8sBackend(
        options["image"] or "",
        options["namespace"],
        options["claim"],
        int(options["max_hours"] * 3600),
        context=options["kube_context"],
        volumes=tuple(map(parse_volume, options["volumes"])),
        node_selector=_pairs(options["selectors"], "--node-selector"),
        pull_secrets=options["pull_secrets"],
        template=read_template(options["pod_template"]) if options["pod_template"] else {},
    )


def _show_plan(run: TrainingRun, backend: Backend, source: str) -> None:
    """Print what would start: for Kubernetes the manifests, else a worker's command and
    variables without secrets.
    """
    if hasattr(backend, "yaml"):
        click.echo(backend.yaml(run, source), nl=False)
        return
    from cmsspark.apps.training.worker import worker_environment
    from cmsspark.settings.redaction import redacted

    addresses = [f"HOST{rank}:PORT{rank}" for rank in range(run.workers)]
    environment = worker_environment(run.job(0, addresses, "OUTPUT", 1)) | dict(run.environment)
    if run.files is not None:
        environment["CMSSPARK_TRAIN_FILES"] = str(run.files)
    click.echo(
        f"{run.name}: {pluralize(run.workers, 'worker')} on {run.backend}, each with {pluralize(run.cpus, 'core')}"
    )
    _note_memory(run)
    click.echo(f"  python {run.script} {' '.join(run.shown_arguments)}".rstrip())
    click.echo("  variables of worker 0:")
    for name, value in sorted(environment.items()):
        click.echo(f"    {redacted([f'{name}={value}'])}")
    for secret in run.secrets:
        click.echo(f"  secret {secret.name}: {', '.join(secret.values or ())}")
