"""What YARN, HDFS and Spark refuse, in their own words, as errors of ours: each says what
is wrong, with the code that cron can act on and the step that helps.

The words are those of exceptions in the driver, of YARN's diagnostics and of what
containers wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from cmsspark.base.errors import (
    CmssparkError,
    NotAllowed,
    NotReady,
    OutputError,
    SettingsError,
)
from cmsspark.filesystems.hdfs import hdfs_damage
from cmsspark.settings import kerberos

_Match = re.Match[str]


class _Refusal(msgspec.Struct, frozen=True):
    """How a refusal reads, and what it means. ``where`` and ``next_step`` may name groups
    of ``pattern``; what was found is its group of that name, else the matched text.

    Patterns are compiled when something was refused: all of them take 9 ms, and each run
    imports this.
    """

    pattern: str
    kind: Callable[..., CmssparkError]
    problem: str
    next_step: str
    where: str | None = None
    #: Whether an application that runs waits for ever because of it.
    is_lasting: bool = False


#: The first that fits is told: what names a cause stands before what names its effect.
_REFUSALS: Final = (
    _Refusal(
        r"to unknown queue:? *(?P<queue>[\w.-]+)",
        SettingsError,
        "YARN has no queue {queue}",
        "name one that it has with --queue: `yarn queue -list`, or the page /cluster/scheduler of the ResourceManager",
    ),
    _Refusal(
        r"to non-leaf queue ?: *(?P<queue>[\w.-]+)",
        SettingsError,
        "the queue {queue} of YARN has queues below it, and takes nothing itself",
        "name one of those with --queue: the page /cluster/scheduler of the ResourceManager",
    ),
    _Refusal(
        r"User (?P<user>\S+) (?:cannot|does not have permission to) submit"
        r"(?: applications?| \S+)? to (?:queue )?(?P<queue>[\w.-]+)",
        NotAllowed,
        "{user} may not use the queue {queue} of YARN",
        "name another one with --queue, or ask its administrators for permission",
    ),
    _Refusal(
        r"[Qq]ueue (?P<queue>[\w.-]+) already has 0 applications[^\n]*",
        SettingsError,
        "the queue {queue} of YARN never takes an application: its limit is none",
        "name another one with --queue, or ask its administrators to raise the limit",
    ),
    _Refusal(
        r"[Qq]ueue (?P<queue>[\w.-]+) is (?:STOPPED|DRAINING)[^\n]*"
        r"|[Qq]ueue (?P<full>[\w.-]+) already has \d+ applications[^\n]*",
        NotReady,
        "a queue of YARN takes no more applications",
        "run it again later, or with another --queue",
    ),
    _Refusal(
        r"Required executor memory \((?P<memory>\d+)[^\n]*? is above the max threshold "
        r"\((?P<most>\d+) MB\)[^\n]*",
        SettingsError,
        "an executor is larger than YARN's containers may be ({most} MB)",
        "lower spark.executor.memory or spark.executor.memoryOverhead",
    ),
    _Refusal(
        r"Required (?:AM|driver) memory \(\d+[^\n]*? is above the max threshold \((?P<most>\d+) MB\)[^\n]*",
        SettingsError,
        "the driver is larger than YARN's containers may be ({most} MB)",
        "lower spark.driver.memory or spark.driver.memoryOverhead; in client mode spark.yarn.am.memory",
    ),
    _Refusal(
        r"Cannot allocate containers as requested resource is greater than maximum allowed allocation"
        r"[^\n]*|InvalidResourceRequestException[^\n]*",
        SettingsError,
        "a container is larger than YARN's may be",
        "lower spark.executor.memory, spark.executor.cores, spark.driver.memory or spark.driver.cores",
        is_lasting=True,
    ),
    _Refusal(
        r"(?:The auxService: ?\S+ does not exist|InvalidAuxServiceException)[^\n]*",
        SettingsError,
        "YARN's nodes have no shuffle service of Spark, which the executors need",
        "--conf spark.shuffle.service.enabled=false --conf "
        "spark.dynamicAllocation.shuffleTracking.enabled=true works without it",
        is_lasting=True,
    ),
    _Refusal(
        r"external shuffle[^\n]*(?:Unknown message type: -22|Expected SaslMessage)[^\n]*",
        SettingsError,
        "the executors and the shuffle service of YARN's nodes differ in spark.authenticate",
        "set spark.authenticate as the nodes have it, or go without their service: --conf "
        "spark.shuffle.service.enabled=false --conf spark.dynamicAllocation.shuffleTracking.enabled=true",
        is_lasting=True,
    ),
    _Refusal(
        r"Unable to (?:register|create executor)[^\n]*external shuffle[^\n]*",
        SettingsError,
        "the executors do not reach the shuffle service of Spark on their node",
        "set spark.shuffle.service.port to the port of YARN's nodes, or go without: --conf "
        "spark.shuffle.service.enabled=false --conf spark.dynamicAllocation.shuffleTracking.enabled=true",
        is_lasting=True,
    ),
    _Refusal(
        r"(?:SafeModeException[^\n]*|[Nn]ame ?[Nn]ode is in safe mode[^\n]*)",
        NotReady,
        "HDFS is in safe mode: nothing can be written",
        "run it again when it has left it: hdfs dfsadmin -safemode get",
    ),
    _Refusal(
        r"StandbyException[^\n]*",
        NotReady,
        "the NameNode or ResourceManager that is asked is not the active one",
        "run it again when one is active; if fs.defaultFS names a server and not a name service, correct core-site.xml",
    ),
    _Refusal(
        r"User: (?P<user>\S+) is not allowed to impersonate (?P<other>\S+)",
        NotAllowed,
        "Hadoop does not let {user} run anything as {other}",
        "leave out --proxy-user, or ask its administrators for hadoop.proxyuser.{user}",
    ),
    _Refusal(
        r"AuthorizationException: User (?P<user>\S+)[^\n]*",
        NotAllowed,
        "{user} may not use this server of Hadoop",
        "ask its administrators for permission",
    ),
    _Refusal(
        r"(?:Cannot locate default realm|Can't get Kerberos realm)[^\n]*",
        SettingsError,
        "Kerberos is not configured on this host",
        "fetch /etc/krb5.conf from the cluster, or name it with KRB5_CONFIG and -Djava.security.krb5.conf",
    ),
    _Refusal(
        r"Server asks us to fall ?back to SIMPLE auth[^\n]*",
        SettingsError,
        "Hadoop's configuration wants Kerberos, and the server has none",
        "correct hadoop.security.authentication in core-site.xml: both must be of the same cluster",
    ),
    _Refusal(
        r"(?:PathComponentTooLongException|The maximum path component name limit)[^\n]*",
        SettingsError,
        "a name is longer than HDFS takes",
        "give the location a shorter one",
    ),
    _Refusal(
        r"(?P<found>The directory item limit of (?P<path>/\S*) is exceeded[^\n]*)",
        OutputError,
        "a folder on HDFS has as many entries as it may have",
        "remove what is not needed there, or name another folder",
        where="{path}",
    ),
    _Refusal(
        r"(?:ParentNotDirectoryException|FileAlreadyExistsException: (?:Path|Parent path) is not a directory):?"
        r" (?P<path>(?:\w+:)?/\S*)[^\n]*",
        SettingsError,
        "a location has a file where it needs a folder",
        "name a folder, or move the file away",
        where="{path}",
    ),
    _Refusal(
        r"Application with id '?(?P<id>application_\d+_\d+)'? doesn't exist in RM",
        NotReady,
        "YARN does not know the application any more: its ResourceManager was started anew",
        "run it again",
    ),
    _Refusal(
        r"\w*Quota\w*ExceededException\b[^\n]*? (?:of|of directory|on path :) (?P<path>/\S*) is exceeded[^\n]*",
        OutputError,
        "the quota of a folder on HDFS is used up: nothing more can be written there",
        "remove what is not needed there, or ask for a larger one: hdfs dfs -count -q -h {path}",
        where="{path}",
    ),
    _Refusal(
        r"Permission denied: user=(?P<user>[^,]+), access=(?P<access>READ\w*|EXECUTE), inode=\\?\"(?P<path>[^\"\\]+)",
        NotAllowed,
        "HDFS refuses {user} the right to {access}",
        "ask the owner for that right (hdfs dfs -ls -d {path} names the owner), or name another file or folder",
        where="{path}",
    ),
    _Refusal(
        r"Permission denied: user=(?P<user>[^,]+), access=(?P<access>\w+), inode=\\?\"(?P<path>[^\"\\]+)",
        NotAllowed,
        "HDFS refuses {user} the right to {access}",
        "have the folder made or its permission given (a user needs /user/{user} there, or "
        "spark.yarn.stagingDir names another folder)",
        where="{path}",
    ),
    _Refusal(
        r"Cannot run program \"(?P<path>[^\"]+)\"[^\n]*(?:No such file or directory|Permission denied)[^\n]*"
        r"|(?P<shell>/\S*python\S*): No such file or directory",
        SettingsError,
        "the nodes have no Python of that name",
        "name one that they have with PYSPARK_PYTHON, or send one along: --env hdfs:///…/environment.tar.gz",
        where="{path}",
    ),
    _Refusal(
        r"(?P<path>/\S*bin/java): (?:No such file or directory|Permission denied|not found)",
        SettingsError,
        "the nodes have no Java of that name",
        "name one that they have: --conf spark.yarn.appMasterEnv.JAVA_HOME=DIR --conf spark.executorEnv.JAVA_HOME=DIR",
        where="{path}",
    ),
    _Refusal(
        r"UnsupportedClassVersionError[^\n]*|Unrecognized option: --add-\S+",
        SettingsError,
        "the nodes' Java is too old for this Spark",
        "name another one of theirs (Spark 4: Java 17): --conf spark.yarn.appMasterEnv.JAVA_HOME=DIR "
        "--conf spark.executorEnv.JAVA_HOME=DIR",
        is_lasting=True,
    ),
    _Refusal(
        r"[^\n]*\nError: Could not create the Java Virtual Machine"
        r"|Error occurred during initialization of (?:VM|boot layer)\n[^\n]*",
        SettingsError,
        "Java does not start with these options",
        "correct extraJavaOptions and memory of spark.driver, spark.executor or spark.yarn.am: "
        "--explain shows them",
        is_lasting=True,
    ),
    _Refusal(
        r"Could not find or load main class org\.apache\.spark\.\S+",
        SettingsError,
        "what spark.yarn.archive or spark.yarn.jars names has no Spark in it",
        "zip the jars of $SPARK_HOME/jars, without their folder, or leave the option out",
    ),
    _Refusal(
        r"InvalidClassException: org\.apache\.spark\.[^\n]*local class incompatible[^\n]*",
        SettingsError,
        "the nodes have another Spark than this host",
        "make what spark.yarn.archive or spark.yarn.jars names from the jars of this host's "
        "$SPARK_HOME/jars, or leave the option out",
        is_lasting=True,
    ),
    _Refusal(
        r"InvalidLabelResourceRequestException[^\n]*",
        SettingsError,
        "YARN has no such node label, or the queue may not use it",
        "correct spark.yarn.am.nodeLabelExpression and spark.yarn.executor.nodeLabelExpression, or leave them out",
    ),
    _Refusal(
        r"PYTHON_VERSION_MISMATCH[^\n]*|Python in worker has different version[^\n]*",
        SettingsError,
        "the nodes' Python has another version than the driver's",
        "name one of the same version with PYSPARK_PYTHON, or send one along: --env hdfs:///…/environment.tar.gz",
    ),
    _Refusal(
        r"(?:\A|(?:PythonException|from the Python worker)[\s\S]{0,8000}?)"
        r"(?P<found>ModuleNotFoundError: No module named '(?P<name>[\w.]+)')",
        SettingsError,
        "the Python of the nodes lacks the module {name}",
        "send one with everything along: --env hdfs:///…/environment.tar.gz (docs/operations.md makes it)",
    ),
    _Refusal(
        r"\[PACKAGE_NOT_INSTALLED\] (?P<name>\w+)[^\n]*must be installed[^\n]*",
        SettingsError,
        "the Python of the nodes lacks {name}, or has an older one",
        "send one with everything along: --env hdfs:///…/environment.tar.gz (docs/operations.md makes it)",
    ),
    _Refusal(
        r"(?:FileNotFoundException: File (?:does not exist: )?|Path does not exist: )"
        r"(?P<path>(?:hdfs|file|viewfs):/\S+\.(?:tar\.gz|tgz|zip|jar))(?: does not exist)?",
        SettingsError,
        "what should travel with the job is not there",
        "check --env and `environment`, spark.archives, spark.jars, spark.files and spark.submit.pyFiles",
        where="{path}",
    ),
    _Refusal(
        r"(?P<found>FileNotFoundException: File (?:does not exist: )?(?P<path>\S+)(?: does not exist)?)"
        r"\s[\s\S]{0,2000}?history\.EventLog",
        SettingsError,
        "the folder for event logs of Spark is not there",
        "have it made, or name another one with spark.eventLog.dir; --conf spark.eventLog.enabled=false "
        "goes without",
        where="{path}",
    ),
    _Refusal(
        r"(?P<found>Resource (?P<path>\S+) changed on src filesystem[^\n]*)",
        NotReady,
        "a file that travels with the job was replaced after the job had begun",
        "run it again when nobody writes the file",
        where="{path}",
    ),
    _Refusal(
        r"Failed to download resource \{ \{ (?P<path>[^\s,]+)[^\n]*?(?P<found>\S+: Download and unpack failed)",
        SettingsError,
        "a node could not unpack what travels with the job",
        "check that it is whole (tar tzf, unzip -t) and make it anew; a full disk of the node does the same",
        where="{path}",
    ),
    _Refusal(
        r"Total size of serialized results of [^\n]*? spark\.driver\.maxResultSize[^\n]*",
        SettingsError,
        "the driver may not take as much as the tasks have for it",
        "raise spark.driver.maxResultSize, with spark.driver.memory",
    ),
    _Refusal(
        r"TaskResultLost[^\n]*",
        NotReady,
        "what a task had for the driver was lost",
        "run it again; if it comes again, raise spark.driver.maxResultSize",
    ),
    _Refusal(
        r"Failed to create local dir in (?P<path>\S+?)\. Ignoring[^\n]*\n[^\n]*Failed to create any local dir",
        SettingsError,
        "Spark cannot make a folder for what it keeps on disk",
        "name another one with spark.local.dir, or get permission to write there",
        where="{path}",
    ),
    _Refusal(
        r"(?P<path>/\S+\.(?:tar\.gz|tgz|zip)) \(Permission denied\)",
        NotAllowed,
        "what should travel with the job cannot be read",
        "get permission to read it",
        where="{path}",
    ),
    _Refusal(
        r"AM Container for \S+ exited with\s+exitCode: -10[34]\b[\s\S]{0,600}?"
        r"(?P<found>running [^\n]*?beyond [^\n]*? memory used)",
        SettingsError,
        "the driver took more memory than its container has",
        "raise spark.driver.memoryOverhead, where its Python lives, or spark.driver.memory; "
        "in client mode spark.yarn.am.memoryOverhead",
    ),
    _Refusal(
        r"Application (?P<id>application_\d+_\d+) was killed by user \S+[^\n]*"
        r"|Application killed by (?:user|admin)[^\n]*",
        NotReady,
        "an administrator or user ended the application",
        "ask who ended it and why, then run it again",
    ),
    _Refusal(
        r"RpcException: RPC response (?:has a length of \d+ )?exceeds maximum data length[^\n]*"
        r"|RpcNoSuchProtocolException: Unknown protocol[^\n]*"
        r"|SIMPLE authentication is not enabled\.\s+Available:\[TOKEN\]",
        SettingsError,
        "an address in Hadoop's configuration is that of another server, or of a web page",
        "correct fs.defaultFS in core-site.xml (port 8020, and not 9870) or "
        "yarn.resourcemanager.address in yarn-site.xml (8032, and not 8088)",
    ),
    _Refusal(
        r"Incomplete HDFS URI, no host: (?P<path>\S+)",
        SettingsError,
        "a location without a server is on HDFS, and Hadoop's configuration names no HDFS",
        "set fs.defaultFS in core-site.xml of HADOOP_CONF_DIR, or write hdfs://SERVER/…",
        where="{path}",
    ),
    _Refusal(
        r"IllegalArgumentException: java\.net\.UnknownHostException: (?P<host>[\w.-]+)",
        SettingsError,
        "Hadoop's configuration names a server that is not known here: {host}",
        "if it is a name service, fetch the cluster's hdfs-site.xml into HADOOP_CONF_DIR; else correct the name",
    ),
    _Refusal(
        r"could only be (?:written|replicated) to 0 [^\n]*",
        NotReady,
        "no DataNode of HDFS takes data",
        "run it again later: hdfs dfsadmin -report shows which are away or full",
    ),
    _Refusal(
        r"(?:JavaSparkContext|runExecutorLauncher|ERROR ApplicationMaster|ExecutorBackend)[\s\S]{0,4000}?"
        r"(?P<found>Failed to connect to (?:driver at )?/?(?P<path>[\w.-]+:\d+))",
        SettingsError,
        "the cluster's nodes must reach the driver, which runs on this host in client mode",
        "set spark.driver.host to an address of this host that they reach, open its ports "
        "(spark.driver.port, spark.blockManager.port), or use --deploy-mode cluster",
        where="{path}",
    ),
    _Refusal(
        r"Error from python worker:[\s\S]{0,8000}?(?P<found>[^\n]*(?:Cannot allocate memory|MemoryError"
        r"|Resource temporarily unavailable|No space left on device)[^\n]*)"
        r"|Python worker failed to connect back[^\n]*",
        NotReady,
        "a node has no room for a Python worker",
        "run it again later; if it comes again, raise spark.executor.memoryOverhead",
    ),
    _Refusal(
        r"Error from python worker:[\s\S]{0,8000}?(?P<found>[^\n]*)\n\s*PYTHONPATH was",
        SettingsError,
        "the Python of the nodes does not start",
        "send one along that was packed on a system like theirs: --env hdfs:///…/environment.tar.gz "
        "(docs/operations.md makes it), or name one of theirs with PYSPARK_PYTHON",
    ),
    # Last: a container that is gone leaves these words, too, beside those of its end.
    _Refusal(
        r"Call From \S+ to (?P<path>\S+) failed on (?:connection|socket timeout) exception[^\n]*",
        NotReady,
        "a server of Hadoop does not answer",
        "check that it runs (the NameNode of HDFS, or YARN's ResourceManager), then run it again",
        where="{path}",
    ),
)


def refusal(text: str, *, only_lasting: bool = False) -> CmssparkError | None:
    """Return what a text of Spark, YARN or HDFS says in our words; None where nothing fits.
    ``only_lasting``: only what a running application waits for in vain.

    Example:
        >>> error = refusal("Application application_1_2 submitted by user me to unknown queue: nope")
        >>> error.problem, int(error.exit_code)
        ('YARN has no queue nope', 78)
    """
    if not only_lasting and (error := kerberos.refused(text) or hdfs_damage(text)) is not None:
        return error
    for rule in _REFUSALS:
        if only_lasting and not rule.is_lasting:
            continue
        if (match := re.search(rule.pattern, text)) is not None:
            groups = {name: value for name, value in match.groupdict().items() if value}
            groups.setdefault("path", groups.get("shell", ""))
            where = rule.where.format_map(groups) if rule.where else None
            return rule.kind(
                rule.problem.format_map(groups),
                where=where or None,
                found=" ".join(groups.get("found", match[0]).split())[:300],
                next_step=rule.next_step.format_map(groups),
            )
    return None


#: Exceptions of connections and ports; a host that nobody knows is a setting.
_OF_SERVERS: Final = re.compile(r"java\.net\.(?!UnknownHost)|hadoop\.(?:ipc|net)\.")


def start_error(reason: str, name: str = "Spark") -> CmssparkError:
    """Return the error of an exception that kept Spark, or a part of it, from its start, and
    that no rule knows: NotReady (75) for connections and ports, else SettingsError (78).
    """
    if _OF_SERVERS.search(reason):
        return NotReady(
            f"{name} did not start",
            found=reason,
            next_step="run it again later; --explain shows each address and port that is set",
        )
    return SettingsError(
        f"{name} does not start with these options",
        found=reason,
        next_step="correct what that names: --explain shows each option and where it is set, and "
        "HADOOP_CONF_DIR has the cluster's own",
    )
