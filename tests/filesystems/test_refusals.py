"""What YARN, HDFS and Spark refuse, in the words that they have on real daemons."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from cmsspark.base import errors
from cmsspark.engines.session import unwrap_cause, why_not_started
from cmsspark.filesystems.hadoop import _hadoop_errors
from cmsspark.filesystems.hdfs import hdfs_damage
from cmsspark.filesystems.refusals import refusal, start_error

PY4J = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
ID = "application_1795806003404_0002"
#: Text → (code, words of the problem, words of the next step).
TEXTS = {
    f"{PY4J}org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit {ID} to YARN : Application {ID} "
    "submitted by user root to unknown queue: nope\n\tat org.apache": (
        78,
        "no queue nope",
        "--queue",
    ),
    "AccessControlException: User me does not have permission to submit application_1_2 to queue root.top": (
        77,
        "me may not use the queue root.top",
        "--queue",
    ),
    "SparkException: \nError from python worker:\n  ./environment/bin/python: 1: ELF: not found\nPYTHONPATH was:\n  /x": (
        78,
        "Python of the nodes does not start",
        "--env",
    ),
    "SparkException: \nError from python worker:\n  Traceback\n  OSError: [Errno 12] Cannot allocate memory\n"
    "PYTHONPATH was:\n  /x": (75, "no room for a Python worker", "memoryOverhead"),
    f"Application {ID} failed 1 times due to AM Container for appattempt_1_2_000001 exited with  exitCode: -104\n"
    "Failing this attempt.Diagnostics: [2026-11-29 02:44:21.713]Container [pid=7189,containerID=container_1] is "
    "running 4108288B beyond the 'PHYSICAL' memory limit. Current usage: 1.0 GB of 1 GB physical memory used; 4.0 GB "
    "of 2.1 GB virtual memory used. Killing container.": (
        78,
        "the driver took more memory",
        "spark.driver.memoryOverhead",
    ),
    "java.io.InvalidClassException: org.apache.spark.resource.ResourceProfile; local class incompatible: stream "
    "classdesc serialVersionUID = -18, local class serialVersionUID = -25": (
        78,
        "another Spark than this host",
        "spark.yarn.archive",
    ),
    "Unable to create executor due to Unable to register with external shuffle server due to : "
    "java.lang.IllegalArgumentException: Unknown message type: -22": (
        78,
        "differ in spark.authenticate",
        "spark.shuffle.service.enabled=false",
    ),
    f"Failed to submit {ID} to YARN : Application {ID} submitted by user me to non-leaf queue : cms": (
        78,
        "the queue cms of YARN has queues below it",
        "--queue",
    ),
    'AccessControlException: Permission denied: user=me, access=READ, inode="/spark/env.tar.gz":hdfs:hdfs:-rw-------': (
        77,
        "refuses me the right to READ",
        "hdfs dfs -ls -d /spark/env.tar.gz",
    ),
    "Diagnostics: [2026-11-28 14:16:15.789]Failed to download resource { { hdfs://nn:8020/spark/env.tar.gz, "
    "1795875357201, ARCHIVE, null },pending,[(container_1_2_01_000001)],28766428489515,DOWNLOADING} "
    "org.apache.hadoop.yarn.exceptions.YarnException: Download and unpack failed": (
        78,
        "could not unpack",
        "tar tzf",
    ),
    "java.io.IOException: Resource hdfs://nn:8020/spark/env.tar.gz changed on src filesystem - expected: 17, was: 18": (
        75,
        "was replaced",
        "run it again",
    ),
    "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException: The NameSpace quota (directories and files) of directory "
    "/user/me is exceeded: quota=1 file count=16": (
        73,
        "the quota of a folder",
        "-count -q -h /user/me",
    ),
    'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /cms/x is exceeded: '
    "quota = 1000 B = 1000 B but diskspace consumed = 29982841 B = 28.59 MB": (
        73,
        "the quota of a folder",
        "-count -q -h /cms/x",
    ),
    "QuotaByStorageTypeExceededException: Quota by storage type : DISK on path : /cms is exceeded. quota = 1 GB": (
        73,
        "the quota of a folder",
        "-count -q -h /cms",
    ),
    'Exception in thread "main" org.apache.hadoop.ipc.RpcException: RPC response has a length of 1213486160 exceeds '
    "maximum data length": (78, "is that of another server", "fs.defaultFS"),
    'Exception in thread "main" org.apache.hadoop.ipc.RpcNoSuchProtocolException: Unknown protocol: org.apache.hadoop.'
    "yarn.api.ApplicationClientProtocolPB": (
        78,
        "is that of another server",
        "yarn.resourcemanager.address",
    ),
    # The ResourceManager's port for application masters.
    "AccessControlException: SIMPLE authentication is not enabled.  Available:[TOKEN]": (
        78,
        "is that of another server",
        "8032",
    ),
    "SparkException: Job aborted due to stage failure: Total size of serialized results of 9 tasks (1030.8 MiB) is "
    "bigger than spark.driver.maxResultSize (1024.0 MiB)": (78, "may not take", "maxResultSize"),
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "0.0 (TID 3) (localhost executor 1): TaskResultLost (result lost from block manager)": (
        75,
        "was lost",
        "maxResultSize",
    ),
    "12:00:00 ERROR DiskBlockManager: Failed to create local dir in /proc/nope. Ignoring this directory.\n"
    "12:00:00 ERROR DiskBlockManager: Failed to create any local dir.\n": (
        78,
        "cannot make a folder",
        "spark.local.dir",
    ),
    "java.io.IOException: Incomplete HDFS URI, no host: hdfs:///spark/environment.tar.gz": (
        78,
        "names no HDFS",
        "fs.defaultFS",
    ),
    "java.lang.IllegalArgumentException: java.net.UnknownHostException: analytix": (
        78,
        "not known here: analytix",
        "hdfs-site.xml",
    ),
    "Last 4096 bytes of stderr :\n/bin/bash: line 1: /no/java/bin/java: No such file or directory\n": (
        78,
        "no Java of that name",
        "spark.executorEnv.JAVA_HOME",
    ),
    "java.lang.UnsupportedClassVersionError: org/apache/spark/deploy/yarn/ExecutorLauncher has been compiled by a more "
    "recent version of the Java Runtime (class file version 61.0)": (
        78,
        "Java is too old",
        "spark.yarn.appMasterEnv.JAVA_HOME",
    ),
    "Unrecognized option: --add-modules=jdk.incubator.vector\nError: Could not create the Java Virtual Machine.": (
        78,
        "Java is too old",
        "spark.yarn.appMasterEnv.JAVA_HOME",
    ),
    "InvalidLabelResourceRequestException: Invalid resource request, node label not enabled but request contains label "
    "expression": (78, "no such node label", "nodeLabelExpression"),
    "RemoteException(java.io.IOException): File /user/me/.sparkStaging/a/pyspark.zip could only be written to 0 of the 1 "
    "minReplication nodes. There are 1 datanode(s) running and 1 node(s) are excluded in this operation.": (
        75,
        "no DataNode of HDFS takes data",
        "dfsadmin -report",
    ),
    "RemoteException(org.apache.hadoop.ipc.StandbyException): Operation category READ is not supported in state "
    "standby. Visit https://s.apache.org/sbnn-error": (
        75,
        "is not the active one",
        "name service",
    ),
    "org.apache.hadoop.security.authorize.AuthorizationException: User: me is not allowed to impersonate alice": (
        77,
        "does not let me run anything as alice",
        "--proxy-user",
    ),
    "AuthorizationException: User me (auth:SIMPLE) is not authorized for protocol interface org.apache.hadoop.hdfs."
    "protocol.ClientProtocol": (77, "me may not use this server", "permission"),
    "javax.security.auth.login.LoginException: Cannot locate default realm": (
        78,
        "not configured on this host",
        "krb5.conf",
    ),
    "java.io.IOException: Server asks us to fall back to SIMPLE auth, but this client is configured to only allow "
    "secure connections.": (78, "wants Kerberos, and the server has none", "core-site.xml"),
    'Exception in thread "main" org.apache.hadoop.security.AccessControlException: SIMPLE authentication is not '
    "enabled.  Available:[TOKEN, KERBEROS]": (77, "Kerberos ticket", "kinit"),
    "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException: The maximum path component name "
    "limit of nnn in directory /cms is exceeded: limit=255 length=300": (78, "longer", "shorter"),
    "FSLimitException$MaxDirectoryItemsExceededException: The directory item limit of /cms/runs is exceeded: "
    "limit=1048576 items=1048576": (73, "as many entries", "another folder"),
    "org.apache.hadoop.fs.ParentNotDirectoryException: /cms/afile (is not a directory)": (
        78,
        "a file where it needs a folder",
        "move the file",
    ),
    "org.apache.hadoop.fs.FileAlreadyExistsException: Path is not a directory: /cms/afile": (
        78,
        "a file where it needs a folder",
        "move the file",
    ),
    f"ApplicationNotFoundException: Application with id '{ID}' doesn't exist in RM. Please check that the job "
    "submission was successful.": (75, "was started anew", "run it again"),
    "Queue root.night is STOPPED. Cannot accept submission of application: application_1_2": (
        75,
        "takes no more",
        "--queue",
    ),
    f"{PY4J}java.lang.IllegalArgumentException: Required executor memory (204800 MB), offHeap memory (0) MB, "
    "overhead (400 MB), and PySpark memory (0 MB) is above the max threshold (6144 MB) of this cluster! Please check "
    "the values of 'yarn.scheduler.maximum-allocation-mb'": (
        78,
        "6144 MB",
        "spark.executor.memory",
    ),
    'Exception in thread "main" java.lang.IllegalArgumentException: Required AM memory (204800+400 MB) is above the '
    "max threshold (6144 MB) of this cluster!": (
        78,
        "the driver is larger",
        "spark.driver.memory",
    ),
    "InvalidResourceRequestException: Invalid resource request! Cannot allocate containers as requested resource is "
    "greater than maximum allowed allocation. Requested resource type=[vcores]": (
        78,
        "larger",
        "cores",
    ),
    "Caused by: org.apache.hadoop.yarn.exceptions.InvalidAuxServiceException: The auxService:spark_shuffle does not "
    "exist": (78, "no shuffle service", "shuffleTracking.enabled=true"),
    "ERROR BlockManager: Failed to connect to external shuffle server\nUnable to register with external shuffle "
    "server due to : Failed to connect to node/10.0.0.1:9": (
        78,
        "do not reach",
        "spark.shuffle.service.port",
    ),
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create directory /user/me/.sparkStaging. Name "
    "node is in safe mode.": (75, "safe mode", "safemode get"),
    'AccessControlException: Permission denied: user=me, access=WRITE, inode="/user":hdfs:hdfs:drwxr-xr-x': (
        77,
        "refuses me the right to WRITE",
        "/user/me",
    ),
    'Exception in thread "main" java.io.FileNotFoundException: File file:/nope/env.tar.gz#environment does not exist': (
        78,
        "is not there",
        "--env",
    ),
    "java.io.FileNotFoundException: File does not exist: hdfs://nn/spark/environment.tar.gz": (
        78,
        "is not there",
        "--env",
    ),
    'java.io.IOException: Cannot run program "/nope/python": error=2, No such file or directory': (
        78,
        "no Python",
        "PYSPARK_PYTHON",
    ),
    'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "x", line 1\n'
    "ModuleNotFoundError: No module named 'numpy'\n": (78, "lacks the module numpy", "--env"),
    'Exception in thread "main" java.net.ConnectException: Call From vm/127.0.0.1 to localhost:8020 '
    "failed on connection exception: java.net.ConnectException: Connection refused; For more details "
    "see:  http://wiki.apache.org/hadoop/ConnectionRefused\n\tat java.base/jdk.internal.reflect.X(Y)\n": (
        75,
        "server of Hadoop does not answer",
        "NameNode",
    ),
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.io.FileNotFoundException: File does not exist: hdfs:/nolog\n"
    "\tat org.apache.hadoop.hdfs.DistributedFileSystem$29.doCall(DistributedFileSystem.java:1848)\n"
    "\tat org.apache.spark.deploy.history.EventLogFileWriter.requireLogBaseDirAsDirectory(E.scala:77)\n": (
        78,
        "event logs of Spark is not there",
        "spark.eventLog.dir",
    ),
    "An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    "  File \"serializers.py\", line 20, in <module>\nModuleNotFoundError: No module named 'numpy'\n": (
        78,
        "lacks the module numpy",
        "--env",
    ),
    "ModuleNotFoundError: No module named 'numpy'": (78, "lacks the module numpy", "--env"),
    "PySparkImportError: [PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed; however, it was not found.": (
        78,
        "lacks Pandas",
        "--env",
    ),
    f"Application {ID} was killed by user root at 10.0.0.1": (
        75,
        "ended the application",
        "run it again",
    ),
    "org.apache.hadoop.fs.ChecksumException: Checksum error: /cms/day/part-0.gz at 512 exp: 1 got: 2": (
        65,
        "damaged",
        "hdfs fsck /cms/day/part-0.gz",
    ),
    "Queue root.closed already has 0 applications, cannot accept submission of application: application_1_9": (
        78,
        "root.closed of YARN never takes",
        "--queue",
    ),
    "Container exited with a non-zero exit code 1. Error file: prelaunch.err.\nUnrecognized VM option 'NoSuch'\n"
    "Error: Could not create the Java Virtual Machine.": (
        78,
        "Java does not start",
        "extraJavaOptions",
    ),
    "Error: Could not find or load main class org.apache.spark.deploy.yarn.ApplicationMaster\nCaused by: ": (
        78,
        "has no Spark in it",
        "$SPARK_HOME/jars",
    ),
    "org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block: BP-1:blk_2_3 file=/cms/day/part-0.gz No "
    "live nodes contain current block": (65, "damaged", "hdfs fsck /cms/day/part-0.gz"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_refusal_has_its_code_its_words_and_a_step_that_helps(text: str) -> None:
    code, problem, step = TEXTS[text]
    error = refusal(text)
    assert error is not None
    assert (error.exit_code, problem in error.problem) == (code, True), error
    assert step in str(error.next_step)
    assert "calling None" not in str(error)


@pytest.mark.parametrize("text", TEXTS)
def test_in_client_mode_a_refusal_is_no_bug_wherever_it_shows(text: str) -> None:
    code = TEXTS[text][0]
    started, at_work = why_not_started(text), unwrap_cause(RuntimeError(text))
    assert started is not None and started.exit_code == code
    assert isinstance(at_work, errors.CmssparkError) and at_work.exit_code == code


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.NullPointerException",
        "cryptography.fernet.InvalidToken",
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'mine'",
        "Could not obtain block: file=/x: java.net.ConnectException: Connection refused",
        "All DataNodes failed: Timed out connecting to DataNode 10.0.0.1",
    ],
)
def test_other_words_are_no_refusal(text: str) -> None:
    assert refusal(text) is None


def test_only_what_is_waited_for_in_vain_ends_a_running_application() -> None:
    lasting = [text for text in TEXTS if refusal(text, only_lasting=True) is not None]
    words = ("huffle", "vcores", "Virtual Machine", "ClassVersion", "InvalidClass")
    assert [text for text in lasting if any(word in text for word in words)] == lasting
    assert len(lasting) == 8


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("java.lang.IllegalArgumentException: spark.executor.cores should be int", 78),
        ("java.net.UnknownHostException: analytix", 78),
        ("java.net.NoRouteToHostException: No route to host", 75),
        ("java.net.BindException: Address already in use: bind", 75),
    ],
)
def test_what_no_rule_knows_of_a_start_is_a_setting_unless_a_connection_failed(
    reason: str, code: int
) -> None:
    assert start_error(reason).exit_code == code and start_error(reason).found == reason


class FromJava(Py4JJavaError):  # type: ignore[misc]
    """An exception of Hadoop's client, without a JVM."""

    def __init__(self, text: str) -> None:
        name, _, message = text.partition(": ")
        self.text, kind = text, SimpleNamespace(getName=lambda: name)
        self.java_exception = SimpleNamespace(getClass=lambda: kind, getMessage=lambda: message)

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("text", "code", "step"),
    [
        (
            "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException: The NameSpace quota (directories and files) "
            "of directory /cms/nq is exceeded: quota=1 file count=2",
            73,
            "-count -q -h /cms/nq",
        ),
        (
            "org.apache.hadoop.fs.ParentNotDirectoryException: /cms/afile (is not a directory)",
            78,
            "move the file",
        ),
        (
            "java.net.ConnectException: Call From vm/127.0.0.1 to localhost:8020 failed on connection exception: "
            "java.net.ConnectException: Connection refused",
            75,
            "check that it runs",
        ),
        (
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create /x",
            75,
            "-safemode get",
        ),
        (
            "org.apache.hadoop.ipc.RemoteException: The maximum path component name limit of nnn in directory /cms is "
            "exceeded: limit=255 length=300",
            78,
            "a shorter one",
        ),
        ("java.io.IOException: something else", 73, "check that its server runs"),
    ],
)
def test_what_hdfs_refuses_while_a_result_is_written_has_the_step_that_helps(
    text: str, code: int, step: str
) -> None:
    with pytest.raises(errors.CmssparkError) as raised, _hadoop_errors("hdfs:///x", writing=True):
        raise FromJava(text)
    assert (raised.value.exit_code, raised.value.where) == (code, "hdfs:///x")
    assert step in str(raised.value.next_step)


def test_the_file_of_a_damaged_block_is_the_one_that_was_read() -> None:
    error = hdfs_damage("ChecksumError", "hdfs://nn:8020/cms/a day/part")
    assert error is not None and error.where == "hdfs://nn:8020/cms/a day/part"
    assert "hdfs fsck '/cms/a day/part' -files" in str(error.next_step)


def test_of_a_trace_the_line_that_tells_of_the_damage_is_shown() -> None:
    reason = "org.apache.hadoop.fs.ChecksumException: Checksum error: /cms/part at 0 exp: 1 got: 2"
    text = (
        f"{PY4J}org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error "
        f"while reading file hdfs://nn/cms/part.\n\tat a.b(C.java:1)\nCaused by: {reason}\n\t... 9 more\n"
    )
    error = hdfs_damage(text, "hdfs://nn/cms/part")
    assert error is not None and error.found == reason
    error = hdfs_damage(f"{PY4J}{reason}\n\tat a.b(C.java:1)\n")
    assert error is not None and error.found == reason
