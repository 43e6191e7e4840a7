"""``cmsspark lab train run``: check a script, say what would start, and start it on workers."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import Choice, FloatRange, IntRange, option
from click.core import ParameterSource

from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, NotReady, OutputError, UsageError
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.options import CommandGroup
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.training.launch import Backend, RunFolder
    from cmsspark.apps.training.script_check import TrainingRun


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
settings_option = option("--settings", "settings_file", metavar="FILE", help="Settings file.")


@click.command("run")
@click.argument("script", type=click.Path(path_type=Path), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@option("--workers", type=IntRange(1, 1000), default=1, help="Number of workers.")
@option("--on", "backend", type=Choice(_BACKENDS), default="local", help="Back end.")
@option(
    "--secret", "secrets", multiple=True, metavar="NAME[=FOLDER]", help="Credentials; repeatable."
)
@option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable of the workers; repeatable.",
)
@option("--cpus", type=IntRange(1, 512), default=1, help="Cores of a worker.")
@option(
    "--memory",
    default="2Gi",
    help="Memory of a worker (Spark, Kubernetes; not enforced on this host).",
)
@option("--retries", type=IntRange(0, 20), default=0, help="Attempts after a failed one.")
@option("--name", help="Name of the run. [default: the script's, with a random end]")
@option("--master", help="Spark: master. [default: local, with as many cores as the workers need]")
@option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Spark: option; repeatable.")
@option(
    "--image", help="Kubernetes: image of the workers, with Python and what the script imports."
)
@option("--namespace", help="Kubernetes: namespace. [default: that of the context]")
@option(
    "--context",
    "kube_context",
    help="Kubernetes: context of the kubeconfig. [default: the current one]",
)
@option("--claim", help="Kubernetes: PersistentVolumeClaim for the output, so that retries go on.")
@option(
    "--files",
    type=click.Path(path_type=Path),
    help="Folder that travels with the script: modules and small files.",
)
@option("--gpus", type=IntRange(0, 64), default=0, help="GPUs of a worker.")
@option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="CLAIM:/FOLDER[:ro]",
    help="Kubernetes: a claim to mount.",
)
@option(
    "--node-selector",
    "selectors",
    multiple=True,
    metavar="KEY=VALUE",
    help="Kubernetes: nodes to run on.",
)
@option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Kubernetes: Secret of the registry.",
)
@option(
    "--pod-template",
    type=click.Path(path_type=Path),
    help="Kubernetes: a Pod that workers' pods begin with.",
)
@option("--max-hours", type=FloatRange(0.01, 720), default=24.0, help="Kubernetes: limit.")
@option(
    "--resume",
    metavar="NAME",
    help="Start a run again that was lost, stopped or failed, with what its workers left. Stands alone.",
)
@option(
    "--dry-run",
    is_flag=True,
    help="Check the script, print what would start (Kubernetes: YAML), start nothing.",
)
@settings_option
def run_command(
    script: Path | None,
    arguments: tuple[str, ...],
    resume: str | None,
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
    from cmsspark.apps.training.launch import (
        RunFolder,
        brought_back,
        check,
        described_files,
        launch,
    )

    state_dir = load_settings(settings_file).state_dir
    resumed = None
    if resume is not None:
        resumed = _find(resume, settings_file)
        script, arguments, options = _typed_before(resumed, resume)
    if script is None:
        raise UsageError("name a script, or a run with --resume", next_step="train run SCRIPT")
    run = _make_run(script, arguments, state_dir, options)
    backend = _build_backend(run, options)
    source = check(run, backend)
    if dry_run:
        _show_plan(run, backend, source)
        return
    namespace = context = None
    if isinstance(backend, K8sBackend):
        backend.connect()
        namespace, context = backend.namespace, backend.context
    first = 1
    if resumed is None:
        typed = _to_type_again(script, arguments, options)
        folder = RunFolder.create(state_dir / "training", run, namespace, context, typed)
    else:
        folder = resumed
        if isinstance(backend, K8sBackend) and folder.state().state == "lost":
            _remove_lost(folder)
        first = folder.take_over()
    click.echo(
        f"{run.name}: {pluralize(run.workers, 'worker')} on {run.backend}; logs in {folder.path / 'logs'}",
        err=True,
    )
    _note_memory(run)
    launch(run, backend, folder, click.echo, first)
    click.echo(f"{run.name}: done; in {folder.output}: {described_files(folder)}", err=True)
    if brought_back(folder):
        click.echo(f"  next: cmsspark lab train fetch {run.name} --to FOLDER", err=True)


def _to_type_again(
    script: Path, arguments: tuple[str, ...], options: dict[str, Any]
) -> dict[str, Any] | None:
    """Return what ``--resume`` starts again; None if a word of it may be a secret."""
    from cmsspark.settings.redaction import redacted_words

    words = [*arguments, *options["variables"], *options["confs"]]
    if redacted_words(words) != words:
        return None
    paths = {"files", "pod_template"}
    folder = os.getcwd()
    # Paths are those of the folder that the command was typed in.
    stored = {
        name: str(Path(folder, value)) if name in paths and value is not None else value
        for name, value in options.items()
        if name != "name"
    }
    return {"script": str(script.absolute()), "arguments": arguments, "folder": folder, **stored}


def _typed_before(folder: RunFolder, name: str) -> tuple[Path, tuple[str, ...], dict[str, Any]]:
    """Return script, arguments and options of a run that is resumed.

    Raises NotReady (75) if it is running, UsageError (2) if it cannot be resumed.
    """
    context = click.get_current_context()
    if further_options := [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("resume", "dry_run", "settings_file")
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        and context.params[str(parameter.name)] != ()
    ]:
        raise UsageError("--resume stands alone", found=", ".join(further_options))
    state, typed = folder.state(), folder.record.typed
    if state.state == "running":
        raise NotReady(f"{name} is running", next_step=f"cmsspark lab train stop {name}")
    if state.state == "done":
        raise UsageError(
            f"{name} has ended well: there is nothing to resume",
            next_step=f"cmsspark lab train fetch {name} --to FOLDER",
        )
    if typed is None:
        raise UsageError(
            f"{name} was started with what may be a secret, which is stored nowhere",
            where=folder.path,
            next_step=f"start it under another --name; what it left: cmsspark lab train fetch {name} --to FOLDER",
        )
    script, arguments = Path(typed.pop("script")), tuple(typed.pop("arguments"))
    # Secrets are named relative to it.
    os.chdir(typed.pop("folder"))
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in typed.items()
    }
    for key in ("files", "pod_template"):
        options[key] = None if options[key] is None else Path(options[key])
    return script, arguments, {**options, "name": folder.record.name}


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
    from cmsspark.apps.training.script_check import (
        TrainingRun,
        parse_memory,
        parse_secret,
        run_name,
    )
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


# ``cmsspark lab train``: start a training script on several workers, look at its runs,
# and bring back what it made.

#: Seconds that `train stop` waits for the launcher.
_STOP_SECONDS: Final = 60


@click.group("train", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Start a training script on several workers of this host, of Spark or of Kubernetes.

    Each worker gets its rank and the addresses of all: TF_CONFIG for TensorFlow,
    JAX_COORDINATOR_ADDRESS … for JAX, MASTER_ADDR, RANK … for PyTorch. What it leaves
    in CMSSPARK_TRAIN_OUTPUT is brought back.
    """


command.add_command(run_command)


def _find(name: str, settings_file: str | None) -> RunFolder:
    """Return the folder of a run. Raises InputMissing (66) where there is none of that name."""
    from cmsspark.apps.training.launch import RunFolder

    return RunFolder.find(load_settings(settings_file).state_dir / "training", name)


@command.command("status")
@click.argument("name", required=False)
@settings_option
def status_command(name: str | None, settings_file: str | None) -> None:
    """List runs, or show one with its workers."""
    from cmsspark.apps.training.launch import runs

    if name is None:
        rows = []
        for folder in runs(load_settings(settings_file).state_dir / "training"):
            record, state = folder.record, folder.state()
            began = dates.to_second(record.began_ms)
            rows.append(
                (
                    record.name,
                    state.state,
                    record.backend,
                    record.workers,
                    state.attempt,
                    began,
                    state.reason,
                )
            )
        echo_table(
            ("run", "state", "on", "workers", "attempt", "began (UTC)", "reason"),
            rows,
            texts=(0, 1, 2, 5, 6),
            optional=(6, 5, 4),
        )
        return
    folder = _find(name, settings_file)
    record, state = folder.record, folder.state()
    click.echo(f"{name}: {state.state}" + (f": {state.reason}" if state.reason else ""))
    click.echo(
        f"  script: {record.script}\n  on: {record.backend}, attempt {state.attempt}\n  folder: {folder.path}"
    )
    echo_table(
        ("worker", "state"),
        [(f"worker {i}", now) for i, now in enumerate(state.workers)],
        texts=(0, 1),
        indent="  ",
    )


@command.command("logs")
@click.argument("name")
@option("--worker", type=IntRange(0), help="Only this worker's lines.")
@option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@settings_option
def logs_command(name: str, worker: int | None, follow: bool, settings_file: str | None) -> None:
    """Print the lines of all workers, each with the worker's name."""
    from cmsspark.apps.training.launch import ENDED

    folder = _find(name, settings_file)
    if worker is not None and worker >= folder.record.workers:
        raise UsageError(
            f"workers of {name} are 0 to {folder.record.workers - 1}", found=str(worker)
        )
    path = folder.merged_log if worker is None else folder.worker_log(worker)
    position = 0
    while True:
        is_over = folder.state().state in ENDED
        if path.exists():
            with open(path, "rb") as stream:
                stream.seek(position)
                click.echo(stream.read().decode("utf-8", "replace"), nl=False)
                position = stream.tell()
        if is_over or not follow:
            return
        time.sleep(0.3)


@command.command("stop")
@click.argument("name")
@settings_option
def stop_command(name: str, settings_file: str | None) -> None:
    """Stop a run: its workers end, and what was made for it is removed."""
    folder = _find(name, settings_file)
    state = folder.state()
    if state.state == "lost" and folder.record.backend == "k8s":
        _remove_lost(folder)
        return
    if state.state != "running":
        click.echo(f"{name}: {state.state}; nothing to stop")
        return
    with suppress(ProcessLookupError):
        os.kill(folder.record.process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while folder.is_launcher_alive():
        if time.monotonic() > deadline:
            raise NotReady(
                f"the launcher of {name} has not ended yet",
                next_step=f"cmsspark lab train status {name}",
            )
        time.sleep(0.1)
    click.echo(f"{name}: {folder.state().state}")


def _remove_lost(folder: RunFolder) -> None:
    """Delete what a launcher that is gone left in its cluster: its Jobs, which own all else."""
    from cmsspark.apps.training.k8s_backend import K8sBackend

    record, state = folder.record, folder.state()
    names = [record.name, *(f"{record.name}-r{number}" for number in range(2, state.attempt + 1))]
    K8sBackend("", record.namespace, context=record.context).remove(names)
    state.state, state.reason = "stopped", "its launcher was gone"
    folder.write_state(state)
    click.echo(f"{record.name}: stopped; removed from {record.namespace}: {', '.join(names)}")


@command.command("fetch")
@click.argument("name")
@option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to copy into; it is made.",
)
@settings_option
def fetch_command(name: str, target: Path, settings_file: str | None) -> None:
    """Copy what the workers left: worker 0's files into the folder, those of others
    into worker-N below it.
    """
    from cmsspark.apps.training.launch import brought_back

    folder = _find(name, settings_file)
    files = brought_back(folder)
    if not files:
        raise InputMissing(
            f"{name} left no files",
            where=folder.output,
            found=f"it is {folder.state().state}",
            next_step="a script writes into the folder CMSSPARK_TRAIN_OUTPUT",
        )
    copies = {
        file: target / (Path(*file.parts[1:]) if file.parts[0] == "worker-0" else file)
        for file in files
    }
    if existing := [to for to in copies.values() if to.exists()]:
        raise OutputError(
            "a file is there already", where=existing[0], next_step="give --to another folder"
        )
    for file, to in copies.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder.output / file, to)
    click.echo(f"{pluralize(len(files), 'file')} in {target}")


@command.command("forget")
@click.argument("name")
@settings_option
def forget_command(name: str, settings_file: str | None) -> None:
    """Remove the folder of a run that has ended: its logs and what its workers left."""
    folder = _find(name, settings_file)
    if folder.state().state == "running":
        raise NotReady(f"{name} is running", next_step=f"cmsspark lab train stop {name}")
    folder.remove()
    click.echo(f"{name}: removed")
