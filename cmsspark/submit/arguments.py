"""The command line of ``run_spark``: which words are the wrapper's and which are the job's.

The rule, told in ``docs/submitting.md``: before JOB everything is the wrapper's. After
it a built-in job's own options are the job's, then the wrapper takes those that it
knows; the job gets all others as they are, and everything after the first ``--``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cmsspark.base.errors import UsageError
from cmsspark.base.text.spelling import suggestion


class Option(msgspec.Struct, frozen=True):
    """An option of the wrapper. ``metavar`` None: a flag. ``spark``: the Spark option
    that it is short for.
    """

    name: str
    about: str
    metavar: str | None = None
    spark: str | None = None
    many: bool = False
    short: str | None = None


WHERE: Final = "Where it runs"
WHAT: Final = "With what"
SHOW: Final = "Instead of running"

#: Headings of the help and the options below them.
GROUPS: Final[Mapping[str, tuple[Option, ...]]] = {
    WHERE: (
        Option("--local", "on this machine, all cores (the default)"),
        Option("--yarn", "on the YARN cluster that HADOOP_CONF_DIR names"),
        Option("--k8s", "on Kubernetes (needs --master k8s://https://HOST:PORT)"),
        Option("--profile", "a profile: local, yarn, k8s, or your own file", "NAME"),
        Option(
            "--engine",
            "of jobs on logs and dumps: auto, processes (this host, no JVM) or spark",
            "NAME",
        ),
        Option("--deploy-mode", "client: the driver runs here; cluster: on the cluster", "MODE"),
        Option("--wait", "in cluster mode: until it ends, with its exit code (the default)"),
        Option("--no-wait", "in cluster mode: return after the submission"),
        Option(
            "--start-within",
            "give up if YARN has not started the job, or gives it no executor, for SECONDS (default 1800; 0 waits for ever)",
            "SECONDS",
        ),
        Option("--master", "another master than the profile's", "URL", "spark.master"),
        Option("--queue", "YARN queue", "NAME", "spark.yarn.queue"),
        Option("--principal", "Kerberos principal", "NAME", "spark.kerberos.principal"),
        Option("--keytab", "Kerberos keytab file", "FILE", "spark.kerberos.keytab"),
    ),
    WHAT: (
        Option(
            "--conf", "a Spark option; overrides all others", "KEY=VALUE", many=True, short="-c"
        ),
        Option("--settings", "settings file (else CMSSPARK_SETTINGS, ./cmsspark.yaml)", "FILE"),
        Option("--name", "name of the application", "TEXT", "spark.app.name"),
        Option("--driver-memory", "heap of the driver", "SIZE", "spark.driver.memory"),
        Option("--driver-cores", "cores of the driver in cluster mode", "N", "spark.driver.cores"),
        Option("--executor-memory", "heap of an executor", "SIZE", "spark.executor.memory"),
        Option("--executor-cores", "cores of an executor", "N", "spark.executor.cores"),
        Option("--num-executors", "executors to begin with", "N", "spark.executor.instances"),
        Option("--avro", "spark-avro, of the version that fits the running Spark"),
        Option(
            "--packages",
            "Maven coordinates, separated by commas",
            "LIST",
            "spark.jars.packages",
            many=True,
        ),
        Option(
            "--repositories",
            "further Maven repositories",
            "LIST",
            "spark.jars.repositories",
            many=True,
        ),
        Option("--jars", "jars for driver and executors", "LIST", "spark.jars", many=True),
        Option(
            "--py-files",
            "modules and zips for Python, separated by commas",
            "LIST",
            "spark.submit.pyFiles",
            many=True,
        ),
        Option(
            "--files", "files for each executor's working folder", "LIST", "spark.files", many=True
        ),
        Option(
            "--archives",
            "archives unpacked there (FILE#folder)",
            "LIST",
            "spark.archives",
            many=True,
        ),
        Option("--env", "packed Python environment (venv-pack, conda-pack) for executors", "FILE"),
        Option("--no-monitor", "do not watch the processes of the run (cmsspark monitor)"),
        Option("--debug", "show tracebacks and Spark's own messages"),
        Option("--verbose", "print more messages"),
        Option("--no-log4j", "as in CMSSpark; Spark is quiet anyway"),
        Option("--yes-log4j", "as in CMSSpark; --debug shows Spark's messages"),
    ),
    SHOW: (
        Option("--dry-run", "print the exact command, quoted for a shell"),
        Option("--explain", "print each Spark option and where it comes from"),
        Option("--list", "print the built-in jobs"),
        Option("--help", "print this, and the job's own options", short="-h"),
        Option("--version", "print the version"),
    ),
}

OPTIONS: Final = tuple(option for group in GROUPS.values() for option in group)
_BY_NAME: Final = {
    name: option for option in OPTIONS for name in (option.name, option.short) if name
}


def option_named(name: str) -> Option | None:
    """Return the wrapper's option of that name."""
    return _BY_NAME.get(name)


#: Options that a built-in job hears as well as the wrapper.
SHARED: Final = ("--settings", "--debug", "--verbose")
#: After the name of one's own script these are the script's alone.
OF_A_SCRIPT: Final = ("--debug", "--verbose", "--version", "--list", "--no-log4j", "--yes-log4j")

#: A job's options: each spelling and whether it takes a value.
Signature = Mapping[str, bool]


class Request(msgspec.Struct):
    """What a command line asks for: the wrapper's options (values in the order given),
    the job and its arguments.
    """

    job: str | None = None
    arguments: list[str] = msgspec.field(default_factory=list)
    values: dict[str, list[str]] = msgspec.field(default_factory=dict)
    #: The whole line, without the program's name.
    argv: list[str] = msgspec.field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return whether the flag or option was given."""
        return name in self.values

    def last(self, name: str) -> str | None:
        """Return the value given last, or None."""
        values = self.values.get(name)
        return values[-1] if values else None

    def every(self, name: str) -> list[str]:
        """Return all values, in the order given."""
        return self.values.get(name, [])


def split(words: Sequence[str], load_signature: Callable[[str], Signature | None]) -> Request:
    """Return the request that ``words`` (without the program's name) make.

    ``load_signature(job)`` gives a built-in job's own options and None for a user's script. Raises
    UsageError (2) for unknown options before the job and for missing values.
    """
    request = Request()
    signature: Signature | None = None
    following = list(words)
    while following:
        word = following.pop(0)
        if request.job is not None and word == "--":
            request.arguments += following
            break
        if request.job is None and not word.startswith("-"):
            request.job = word
            signature = load_signature(word)
        elif _take(word, following, request, signature):
            continue
        elif request.job is None:
            name = word.split("=")[0]
            raise UsageError(
                f"run_spark has no option {name!r}",
                # `--date` of a job is not like `--master`.
                found=suggestion(name, _BY_NAME, cutoff=0.7) or None,
                next_step="a job's own options come after its name: run_spark JOB …; run_spark --help lists ours",
            )
        else:
            _to_job(word, following, request, signature)
    return request


def _take(word: str, following: list[str], request: Request, signature: Signature | None) -> bool:
    """Take ``word`` (and its value) as an option of the wrapper; False when it is none."""
    name, equals, value = word.partition("=")
    option = _BY_NAME.get(name)
    if option is None or (request.job is not None and _is_the_jobs(option, signature)):
        return False
    if option.metavar is None:
        if equals:
            raise UsageError(f"{name} takes no value", found=word, next_step=f"type {name} alone")
        request.values.setdefault(option.name, [])
    else:
        if not equals:
            if not following:
                raise UsageError(f"{name} needs a value: {name} {option.metavar}")
            value = following.pop(0)
        values = request.values.setdefault(option.name, [])
        values[:] = [*values, value] if option.many else [value]
    if signature is not None and option.name in SHARED and option.name in signature:
        request.arguments += [option.name] if option.metavar is None else [option.name, value]
    return True


def _is_the_jobs(option: Option, signature: Signature | None) -> bool:
    """Return whether an option after the job's name is the job's own, not ours
    (``--dry-run`` of ``cern_monit``).
    """
    if signature is None:
        return option.name in OF_A_SCRIPT
    return option.name in signature and option.name not in (*SHARED, "--help")


def _to_job(
    word: str, following: list[str], request: Request, signature: Signature | None
) -> None:
    """Hand ``word`` to the job, with the value that a built-in job's option takes,
    whatever it looks like.
    """
    request.arguments.append(word)
    if signature is not None and signature.get(word) and following:
        request.arguments.append(following.pop(0))
