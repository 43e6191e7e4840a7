"""A command's end: its exit code, its messages, and what a signal does. Small shell
scripts stand for spark-submit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cmsspark.submit.command import Command
from cmsspark.submit.run_command import Watch, descendants, forwarding, run

pytestmark = pytest.mark.smoke


def sh(script: str, mode: str = "client") -> Command:
    return Command(["/bin/sh", "-c", script], {}, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 65, 66, 70, 73, 75, 77, 78])
def test_the_exit_code_is_the_commands_own(code: int) -> None:
    assert run(sh(f"exit {code}"), os.environ) == code


def test_in_cluster_mode_the_code_is_read_from_the_applications_report() -> None:
    report = "diagnostics: User application exited with status 66"
    assert run(sh(f"echo '{report}' >&2; exit 1", "cluster"), os.environ) == 66
    assert run(sh(f"echo '{report}' >&2; exit 0", "cluster"), os.environ) == 0
    assert run(sh("exit 1", "cluster"), os.environ) == 1


def test_a_jar_that_no_repository_has_is_reported_with_the_next_step(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = "java.lang.RuntimeException: [unresolved dependency: org.apache.spark#spark-avro_2.13;4.3.0: not found]"
    assert run(sh(f"echo '{said}' >&2; exit 1"), os.environ) == 78
    assert (
        "no Maven repository gave org.apache.spark#spark-avro_2.13;4.3.0" in capfd.readouterr().err
    )


@pytest.mark.parametrize("script", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
def test_a_driver_killed_from_outside_may_be_tried_again(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(sh(script), os.environ) == 75
    said = capfd.readouterr().err
    assert "the driver was ended from outside" in said and "SIGKILL" in said


def test_messages_pass_as_they_come_without_the_jvms_noise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = "WARNING: Using incubator modules: x\\nW one\\n[==>\\r"
    run(sh(f"printf '{said}' >&2; echo out; printf 'last' >&2"), os.environ)
    captured = capfd.readouterr()
    assert captured.err == "W one\n[==>\rlast"
    assert captured.out == "out\n"


def test_a_jobs_own_stderr_finds_its_way_past_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    run(sh('(echo told >> "$CMSSPARK_STDERR") 2>&1; echo result'), os.environ)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("result\n", "told\n")


def test_noise_that_arrives_in_pieces_is_still_noise() -> None:
    source, sink = os.pipe()
    seen, shown = os.pipe()
    watch = Watch(source, shown)
    for piece in (
        b"WARN",
        b"ING: Using incub",
        b"ator modules: a\nkept\nWARNING: other",
        b"\nWARN",
    ):
        os.write(sink, piece)
        time.sleep(0)
    os.close(sink)
    watch.join(300)
    assert os.read(seen, 1000) == b"kept\nWARNING: other\nWARN"


IVY = b""":: loading settings :: url = jar:file:/ivy.jar!/ivysettings.xml
Ivy Default Cache set to: /root/.ivy2.5.2/cache
org.apache.spark#spark-avro_2.13 added as a dependency
You probably access the destination server through a proxy server that is not well configured.
:: resolution report :: resolve 1021ms :: artifacts dl 0ms
\t|      default     |   1   |   0   |   0   |   0   ||   0   |   0   |
"""
FOUND = b""":: retrieving :: org.apache.spark#spark-submit-parent
\t0 artifacts copied, 1 already retrieved (0kB/5ms)
  said by the script
"""
LACKING = b"""\t\t:: org.apache.spark#spark-avro_2.13;4.3.0: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.apache.spark#spark-avro_2.13;4.3.0: not found]
\tat org.apache.spark.util.MavenUtils$.resolve(MavenUtils.scala:1)
"""
FAILING = b"""Exception in thread "main" java.lang.RuntimeException: [download failed: org.x#y;1.0!y.jar]
"""


def passed(*pieces: bytes, has_ivy: bool = True) -> tuple[bytes, Watch]:
    source, sink = os.pipe()
    seen, shown = os.pipe()
    watch = Watch(source, shown, has_ivy=has_ivy)
    for piece in pieces:
        os.write(sink, piece)
    os.close(sink)
    watch.join(300)
    os.close(shown)
    with os.fdopen(seen, "rb") as stream:
        return stream.read(), watch


def test_the_report_of_ivy_is_left_out_and_what_follows_is_shown() -> None:
    shown, watch = passed(IVY[:7], IVY[7:150], IVY[150:], FOUND)
    assert shown == b"  said by the script\n"
    assert not watch.is_in_ivy and watch.unresolved is None
    assert passed(IVY, FOUND, has_ivy=False)[0] == IVY + FOUND


@pytest.mark.parametrize(
    ("error", "artifact"),
    [(LACKING, "org.apache.spark#spark-avro_2.13;4.3.0"), (FAILING, "org.x#y;1.0")],
)
def test_of_a_package_that_is_not_there_only_the_name_is_told(error: bytes, artifact: str) -> None:
    shown, watch = passed(IVY, error)
    assert (shown, watch.unresolved) == (b"", artifact)


TRACE = b"""Exception in thread "main" java.lang.IllegalArgumentException: a message
of two lines
\tat org.apache.hadoop.X.y(X.java:1)
\tat org.apache.spark.deploy.SparkSubmit$.main(SparkSubmit.scala:1)
Caused by: java.lang.IllegalStateException
\t... 2 more
"""


def test_the_trace_of_spark_submit_is_no_output_and_one_of_a_job_is() -> None:
    shown, watch = passed(b"before\n", TRACE[:60], TRACE[60:], b"after\n\tat the end\n")
    assert shown == b"before\nafter\n\tat the end\n"
    assert "a message\nof two lines" in watch.tail
    of_a_job = TRACE.replace(b"spark.deploy", b"example")
    assert (
        passed(of_a_job)[0] == of_a_job
        and passed(of_a_job, b"after\n")[0] == of_a_job + b"after\n"
    )


CALLER = "import os, signal, sys\nfrom cmsspark.submit.command import Command\nfrom cmsspark.submit.run_command import run\n"
#: As started by nohup.
NOHUP = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_all_below_and_the_run_may_be_tried_again(
    number: int, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    # What lies below is there when it is written: a process that starts while the
    # signal is handed on may miss it.
    script = f"(sleep 600 & echo $$ > {ready}; wait) & wait"
    code = (
        CALLER
        + f"sys.exit(run(Command(['/bin/sh', '-c', {script!r}], {{}}, 'client'), os.environ))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as caller:
        child = int(ready.read_text())
        below = descendants(child)
        assert len(below) == 2
        caller.send_signal(number)
        _, said = caller.communicate(timeout=300)
    assert caller.returncode == 75
    assert "run the same command again" in said
    # Each got the signal; on a busy machine it takes a moment until it is gone.
    end = time.monotonic() + 300
    while left := [pid for pid in (child, *below) if not _is_zombie(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_signal_that_comes_while_the_child_starts_reaches_it() -> None:
    with forwarding() as forward:
        os.kill(os.getpid(), signal.SIGTERM)
        with subprocess.Popen(["sleep", "600"]) as child:
            forward.to(child)
            assert child.wait(300) == -signal.SIGTERM
    assert forward.received == [signal.SIGTERM]


def test_under_nohup_a_hangup_ends_nothing(tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    os.mkfifo(ready)
    os.mkfifo(go)
    script = f"echo > {ready}; read word < {go}; exit 7"
    code = (
        CALLER
        + NOHUP
        + f"sys.exit(run(Command(['/bin/sh', '-c', {script!r}], {{}}, 'client'), os.environ))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as caller:
        ready.read_text()
        caller.send_signal(signal.SIGHUP)
        go.write_text("on\n")
        caller.communicate(timeout=300)
    assert caller.returncode == 7


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended, also where nothing of it is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_job_without_spark_runs_in_this_process_which_a_signal_ends_in_75() -> None:
    code = (
        "import os, signal, sys, time\nfrom cmsspark.submit import launch, run_command, wrapper\n"
        "from cmsspark.submit.command import LAUNCHER, Command\n"
        "def main():\n"
        "    print(os.getpid(), os.environ['NAME'], *sys.argv[1:], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(600)\n"
        "launch.main = main\n"
        "words = [sys.executable, '-m', LAUNCHER, 'dbs_aaa', '--date', 'x']\n"
        "command = Command(words, {'NAME': 'value'}, 'python')\n"
        "wrapper.run_spark = lambda argv, environ: run_command.run(command, environ)\n"
        "wrapper.main()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = started.communicate(timeout=300)
    assert out.split() == [str(started.pid), "value", "dbs_aaa", "--date", "x"]
    assert started.returncode == 75 and "interrupted; run the same command again" in err
