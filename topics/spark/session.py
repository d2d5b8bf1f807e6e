"""The common part of all jobs: where the daemon is, which Spark does the work, how quiet it is, and how it ends.

Responsible for the session of a job that was not handed one. It sets the master, logs at WARN, uses the loopback
address if no other is given, and ships this package to the workers of another machine. The job decides how it uses the
session; `topics.spark.needs` checks that there is a Spark.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

import topics
from topics.cli.failures import UsageRefusal
from topics.spark import needs
from topics.spark.secrets import MissingSecret, Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:4000"
DEFAULT_MASTER: Final = "local[*]"
TOKEN_VARIABLE: Final = "TOPICS_TOKEN"
LOOPBACK: Final = "127.0.0.1"

_QUIET: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} spark %p %c{{1}}: %m%n%ex
{}
"""
_CHATTER: Final = (
    "org.apache.hadoop.util.NativeCodeLoader",  # there is no native Hadoop library: nowhere
    "org.apache.spark.sql.execution.datasources.DataSourceManager",  # what is registered has the name of what it is
    "org.apache.spark.sql.execution.streaming",  # streams are planned anew for each batch, and have state
    "org.apache.spark.util.SparkStringUtils",  # a plan is long
    "org.apache.spark.scheduler.DAGScheduler",  # a stream that has ended has no jobs to be cancelled
    # Executors that leave while it stops.
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend$StandaloneDriverEndpoint",
)
"""Loggers that warn in every run without a cause. Their errors are logged."""


def _log_settings() -> str:
    """Spark's log at WARN from its first line on, for which `spark.log.level` comes too late."""
    pairs = "".join(f"logger.{n}.name = {name}\nlogger.{n}.level = error\n" for n, name in enumerate(_CHATTER))
    return _QUIET.format(pairs)


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where the daemon is, and where its key is to be found."""

    url: str = DEFAULT_URL
    secret: Secret = field(default_factory=Secret)

    def options(self) -> dict[str, str]:
        """The options of the data source that say the same."""
        option = {"env": "tokenEnv", "file": "tokenFile", "literal": "token"}.get(self.secret.kind)
        return {"url": self.url} | ({option: self.secret.where} if option else {})

    def client(self) -> Client:
        """A client of the daemon; use it as a context manager. Raises MissingSecret."""
        from topics.client import Client  # noqa: PLC0415

        return Client(self.url, self.secret.resolve())


@dataclass(slots=True)
class JobOptions:
    """The options that jobs share: the object of every click context."""

    url: str | None = None
    token_env: str | None = None
    token_file: str | None = None
    master: str = DEFAULT_MASTER
    conf: dict[str, str] = field(default_factory=dict)

    def address(self) -> DaemonAddress:
        """The daemon that is meant, which answers. Raises Refused for a url that is none or a key that is not there,
        ConnectionFailed: better before Spark is started than from within a task."""
        url = self.url or os.environ.get("TOPICS_URL") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageRefusal(f"{'--url' if self.url else 'TOPICS_URL'} must be like {DEFAULT_URL}")
        if "@" in parts.netloc:
            raise UsageRefusal("the url must not hold a password: a key is taken from --token-env or --token-file")
        address = DaemonAddress(url, self._secret())
        try:
            client = address.client()
        except MissingSecret as error:
            raise UsageRefusal(str(error)) from None
        with client:
            client.ready()  # which waits for one that is starting
        return address

    def _secret(self) -> Secret:
        if self.token_env is not None and self.token_file is not None:
            raise UsageRefusal("--token-env and --token-file exclude each other")
        if self.token_file is not None:
            return Secret("file", str(Path(self.token_file).absolute()))  # executors work in other directories
        if self.token_env is not None:
            return Secret("env", self.token_env)
        return Secret("env", TOKEN_VARIABLE) if os.environ.get(TOKEN_VARIABLE) else Secret()

    def session(self, job: str) -> AbstractContextManager[SparkSession]:
        """The session that `--master` and `--conf` ask for, see `spark_session`."""
        return spark_session(f"topics {job}", master=self.master, conf=self.conf)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        options = ctx.ensure_object(JobOptions)
        if value is not None:
            setattr(options, name, value)

    return callback


def _keep_conf(ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> None:
    options = ctx.ensure_object(JobOptions)
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not like spark.executor.memory=4g")
        options.conf[name.strip()] = text


def spark_options(command: Command) -> Command:
    """`--master` and `--conf`, of every job. The function takes a JobOptions (`@click.pass_obj`)."""
    for decorate in (
        click.option(
            "--conf",
            multiple=True,
            expose_value=False,
            callback=_keep_conf,
            metavar="NAME=VALUE",
            help="A setting of Spark; repeatable. Anybody who sees Spark's UI sees it.",
        ),
        click.option(
            "--master",
            expose_value=False,
            callback=_keep("master"),
            metavar="URL",
            help=f"Where Spark runs: local[N], or spark://host:7077.  [{DEFAULT_MASTER}]",
        ),
    ):
        command = decorate(command)
    return command


def daemon_options(command: Command) -> Command:
    """`--url`, `--token-env` and `--token-file`, of every job that talks to a daemon, and `spark_options`."""
    command = spark_options(command)
    for decorate in (
        click.option(
            "--token-file",
            type=click.Path(dir_okay=False),
            expose_value=False,
            callback=_keep("token_file"),
            metavar="FILE",
            help="A file with the key, there for every executor.",
        ),
        click.option(
            "--token-env",
            expose_value=False,
            callback=_keep("token_env"),
            metavar="NAME",
            help=f"The variable that holds the key, here and in executors.  [{TOKEN_VARIABLE}, if set]",
        ),
        click.option(
            "--url",
            expose_value=False,
            callback=_keep("url"),
            metavar="URL",
            help=f"The daemon; without it TOPICS_URL, else {DEFAULT_URL}.",
        ),
    ):
        command = decorate(command)
    return command


# ----------------------------------------------------------------- the session


def is_local(master: str) -> bool:
    """Return True if Spark runs on this machine only."""
    host = urlsplit(master).hostname if "://" in master else None
    return master.startswith("local") or host in {LOOPBACK, "localhost"}


def register(spark: SparkSession) -> None:
    """Make `format("topics")` known to a session."""
    from topics.spark.source import TopicsDataSource  # noqa: PLC0415

    spark.dataSource.register(TopicsDataSource)


@contextmanager
def spark_session(
    name: str, *, master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for one job, with the data source registered, stopped at the end.

    Raises `needs.MissingRequirement` where pyspark, pyarrow or a Java that runs it is not there. `conf` wins over what
    is set here. Unless they are set or the master is on another machine, SPARK_LOCAL_IP becomes 127.0.0.1 and
    PYSPARK_PYTHON this interpreter.
    """
    needs.check_packages()
    needs.check_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    conf = dict(conf or {})
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark takes the first python3 in PATH
    with tempfile.TemporaryDirectory(prefix="topics-spark-") as scratch:
        log = Path(scratch, "log4j2.properties")
        log.write_text(_log_settings(), encoding="utf-8")
        java = f"-Dlog4j2.configurationFile={log.as_uri()}"
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
        }
        if master.startswith("local"):
            # Spark's 200 are for clusters; a stream has a file of state for each of them in every batch.
            settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
        settings |= conf
        options = f"{java} {settings.pop('spark.driver.extraJavaOptions', '')}".strip()
        builder = SparkSession.builder.appName(name).master(master).config("spark.driver.extraJavaOptions", options)
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            if not master.startswith("local"):
                spark.sparkContext.addPyFile(str(package_archive(Path(scratch))))
            register(spark)
            yield spark
        finally:
            spark.stop()


def package_archive(directory: Path) -> Path:
    """This package as `topics.zip` in `directory`, as `spark.submit.pyFiles` and `addPyFile` want it: the code only,
    not what it depends on."""
    package = Path(topics.__file__).parent
    entry = package.with_name("pyspark_topics.py")
    path = directory / "topics.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, source.relative_to(package.parent))
        if entry.exists():
            archive.write(entry, entry.name)
    return path
