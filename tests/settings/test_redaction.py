"""Secrets in command lines, in the forms in which programs take them; what is no secret
stays readable.
"""

from __future__ import annotations

import time

import pytest

from cmsspark.settings.redaction import redacted

SECRET = "Xy7-hunter2"


@pytest.mark.parametrize(
    "words",
    [
        ["job", "--password", SECRET],
        ["job", f"--password={SECRET}"],
        ["java", f"-Djavax.net.ssl.keyStorePassword={SECRET}"],
        ["java", f"-Ddb.password=two words {SECRET}"],
        ["spark-submit", "--conf", f"spark.authenticate.secret={SECRET}"],
        ["spark-submit", "--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}"],
        ["spark-submit", f"--conf=spark.ssl.keyPassword={SECRET}"],
        ["spark-submit", f"--conf spark.ui.token={SECRET}"],
        ["job", "--api-key", SECRET],
        ["job", "--token", f"-{SECRET}"],
        ["curl", "-u", f"me:{SECRET}", "https://host"],
        ["curl", f"--user=me:{SECRET}"],
        ["curl", f"https://me:{SECRET}@host/path"],
        ["curl", f"https://host/x?access_token={SECRET}&y=1"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["curl", "-H", f"X-Auth-Token: {SECRET}"],
        ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "job"],
        ["env", f"PGPASSWORD={SECRET}", "psql"],
        ["mysql", f"-p{SECRET}"],
        ["sshpass", "-p", SECRET, "ssh", "host"],
        ["python", "-c", f"connect(password='{SECRET}')"],
        ["python", "-c", f'd = {{"api_key": "{SECRET}", "n": 1}}'],
        ["python", "-c", f'd = {{"password": "open {SECRET}'],
        ["bash", "-c", f"exec java -Dx.password='a {SECRET}' Main"],
        ["bash", "-c", f"job --passcode {SECRET} && rm x"],
        ["job", f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.sig"],
        ["job", f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"],
        [
            "job",
            f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}\n-----END PGP PRIVATE KEY BLOCK-----",
        ],
        ["sudo", "-E", "mysql", f"-p{SECRET}", "db"],
        ["env", "A=1", "/usr/bin/mysqldump", f"-p{SECRET}"],
        ["bash", "-c", f"mysql -u me -p{SECRET} db"],
        ["bash", "-c", f"cd x; sshpass -p {SECRET} ssh host"],
        ["bash", "-c", f"curl -s -u me:{SECRET} host"],
        ["curl", f"-ume:{SECRET}", "host"],
        ["curl", "-b", f"session={SECRET}", "host"],
        ["smbclient", "-U", f"me%{SECRET}"],
        ["job", "--auth", f"me:{SECRET}"],
        ["redis-cli", "-a", SECRET],
        ["ldapsearch", "-x", "-w", SECRET],
        ["beeline", "-n", "me", "-p", SECRET],
        ["docker", "login", "-u", "me", "-p", SECRET],
        ["aws", "configure", "set", "aws_secret_access_key", SECRET],
        ["job", "password", "=", SECRET],
        ["job", "--password:", SECRET],
        ["job", f"DBPWD={SECRET}"],
        ["job", f"dbPwd={SECRET}"],
        ["plink", "-pw", SECRET],
        ["curl", f"https://host/blob?sv=1&sig={SECRET}"],
        ["rsync", f"me:{SECRET}@host:/path", "."],
        ["job", f"jdbc:oracle:thin:scott/{SECRET}@//host:1521/x"],
        ["job", f"<property><password>{SECRET}</password></property>"],
        ["xrdcp", f"root://host//store/x?authz=Bearer%20{SECRET}&y=1"],
        ["xrdcp", f"davs://host/store/x?authz={SECRET}"],
        ["sqlplus", f"scott/{SECRET}@db"],
        ["sqlplus", f"scott/{SECRET}@//db.example.org:1521/x"],
        ["bash", "-c", f"sqlplus scott/{SECRET}@db @x.sql"],
        ["job", f"oracle://scott/{SECRET}@db"],
        ["job", f"--db=scott/{SECRET}@db"],
        ["mosquitto_pub", "-u", "me", "-P", SECRET],
        ["sqlcmd", f"-P{SECRET}"],
        ["python", "job.py", "-P", SECRET],
        ["job", "-w", SECRET],
        ["bash", "-c", f"mosquitto_pub -u me -P {SECRET} -t x"],
        ["job", "--creds", SECRET],
        ["job", f"--creds={SECRET}"],
        ["job", "--pin", SECRET],
        ["job", "--key-pin", "123456"],
        ["job", "hf_" + "a1B2" * 8],
        ["python", "-c", "login('hf_" + "a1B2" * 8 + "')"],
        ["bash", "-c", rf'curl -d "{{\"password\": \"{SECRET}\"}}"'],
    ],
)
def test_a_secret_is_removed(words: list[str]) -> None:
    assert (
        SECRET not in redacted(words)
        and "a1B2" not in redacted(words)
        and "123456" not in redacted(words)
    )
    assert "***" in redacted(words)


@pytest.mark.parametrize(
    "words",
    [
        [
            "java",
            "-Xmx1g",
            "-cp",
            "/a/b.jar:/c/*",
            "org.apache.spark.deploy.SparkSubmit",
            "--name",
            "x",
        ],
        [
            "job",
            "--token-file",
            "/etc/token",
            "--password-file=/etc/p",
            "--keytab",
            "/etc/me.keytab",
        ],
        [
            "job",
            "spark.ssl.keyStore=/a/b",
            "spark.authenticate=true",
            "tokenizer=punkt",
            "--conf",
            "a.b=c",
        ],
        ["docker", "run", "-p", "8080:80", "repo/image:3.5", "vault", "token", "lookup"],
        [
            "python",
            "-m",
            "my_token",
            "x",
            "a:b",
            "T2_CH_CERN:/store/a@b",
            "-update",
            "primary_key",
            "id",
        ],
        ["scp", "-P", "22", "x", "me@host:y"],
        ["xargs", "-P", "all", "-n", "1", "grep", "-w", "word", "a/b/c@2"],
        ["make", "-w", "8", "-P", "/a/folder"],
        ["kinit", "-kt", "f", "cms/vocms.example.ch@EXAMPLE.CH", "hdfs/_HOST@EXAMPLE.CH"],
        [
            "docker",
            "run",
            "repo/image@sha256:0123abc",
            "/store/user/x@y",
            "pin_memory=1",
            "--pin-memory",
            "spinner=1",
        ],
        ["job", "monkey=3", "https://host/path?page=1", "2026-01-15", "hdfs://namenode:8020/x"],
    ],
)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert redacted(words) == " ".join(words)


def test_a_hostile_command_line_takes_no_time() -> None:
    begun = time.process_time()
    words = [
        "a" * 100_000 + "=1",
        "token=" * 50_000,
        '"' * 100_000,
        "a." * 50_000 + "token",
        "-" * 100_000,
    ]
    for word in (*words, "mysql " * 50_000, "a:" * 50_000, "curl -" * 50_000):
        assert len(redacted([word] * 100)) <= 4_000
    assert time.process_time() - begun < 10
