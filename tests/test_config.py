"""The settings: every kind, every rule, and all mistakes at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.config import GIB, KIB, MIB, SETTINGS, ConfigError, Settings, format_size, is_loopback, load_settings


def mistakes_of(environ: dict[str, str], overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(environ, overrides)
    assert all(line in str(caught.value) for line in caught.value.mistakes)
    return caught.value.mistakes


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.port_file) == ("127.0.0.1", 4000, None)
    assert (settings.data_dir, settings.cold_dir) == (Path("topics-data"), None)
    assert settings.max_batch_records == 10_000
    assert settings.max_record_bytes == MIB
    assert settings.max_body_bytes == 64 * MIB
    assert settings.max_meta_bytes == 16 * KIB
    assert settings.max_inflight_bytes == 256 * MIB
    assert (settings.max_topics, settings.max_routers) == (100_000, 10_000)
    assert settings.recovery == "strict"
    assert settings.warnings == ()


def test_the_stated_default_of_every_setting_is_the_one_it_has() -> None:
    written = {setting.variable: setting.default for setting in SETTINGS.values() if setting.default}
    assert load_settings(written) == load_settings({})


def test_no_number_of_shards_means_one_per_cpu_up_to_eight() -> None:
    assert 1 <= Settings().wal_shards <= 8
    assert load_settings({"TOPICS_WAL_SHARDS": "3"}).wal_shards == 3


def test_the_command_line_wins_over_the_environment() -> None:
    environ = {"TOPICS_PORT": "1", "TOPICS_LOG_LEVEL": "debug"}
    settings = load_settings(environ, {"port": "2"})
    assert (settings.port, settings.log_level) == (2, "debug")


def test_a_mistake_in_a_variable_that_a_flag_overrides_does_not_matter() -> None:
    assert load_settings({"TOPICS_PORT": "x"}, {"port": "2"}).port == 2


@pytest.mark.parametrize(
    ("text", "size"), [("65536", 64 * KIB), ("100KiB", 100 * KIB), ("3MiB", 3 * MIB), ("1GiB", GIB), ("0GiB", 0)]
)
def test_sizes_are_plain_bytes_or_have_a_binary_suffix(text: str, size: int) -> None:
    assert load_settings({"TOPICS_CACHE_BYTES": text}).cache_bytes == size


@given(st.integers(0, 1024 << 40))
def test_a_formatted_size_reads_back(size: int) -> None:
    assert load_settings({"TOPICS_CACHE_BYTES": format_size(size)}).cache_bytes == size


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False)])
def test_booleans_are_written_in_four_ways(text: str, value: bool) -> None:
    assert load_settings({"TOPICS_ALLOW_INSECURE_NO_AUTH": text}).allow_insecure_no_auth is value


def test_paths_are_taken_as_they_are_and_empty_ones_are_not_set() -> None:
    settings = load_settings({"TOPICS_DATA_DIR": "/a/b", "TOPICS_PORT_FILE": "p", "TOPICS_COLD_DIR": ""})
    assert (settings.data_dir, settings.port_file, settings.cold_dir) == (Path("/a/b"), Path("p"), None)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *[("TOPICS_PORT", text) for text in ("", "x", "-1", "+1", "65536", "1.0", " 1", "1_0", "٣", "9" * 5000)],
        *[("TOPICS_CACHE_BYTES", text) for text in ("", "1 MiB", "1MB", "1mib", "MiB", "-1", "9" * 19 + "GiB")],
        *[("TOPICS_ALLOW_INSECURE_NO_AUTH", text) for text in ("", "yes", "True", "2")],
        *[("TOPICS_LOG_LEVEL", text) for text in ("", "INFO", "loud")],
        ("TOPICS_RECOVERY", "hope"),
        *[("TOPICS_BUCKET", text) for text in ("b", "s3://", "http://h/b", "s3://k:s@b/p", "file://x", "s3://b/p?x=1")],
        ("TOPICS_BUCKET_ROUND_MS", "0"),
        ("TOPICS_LOG_FORMAT", "xml"),
        ("TOPICS_DATA_DIR", ""),
        ("TOPICS_DATA_DIR", "a\0b"),
        ("TOPICS_WAL_FILE_BYTES", "65535"),
        ("TOPICS_MAX_TAG_BYTES", "65536"),
        ("TOPICS_MAX_BATCH_RECORDS", "0"),
        *[("TOPICS_MAX_ROUTERS", text) for text in ("", "-1", "many", "1000000001")],
        ("TOPICS_CHECKPOINT_MS", "0"),
        ("TOPICS_DRAIN_MS", "31536000001"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(variable: str, text: str) -> None:
    [mistake] = mistakes_of({variable: text})
    assert mistake.startswith(f"{variable}=")
    assert ": must be " in mistake
    assert "\n" not in mistake
    assert len(mistake) < 300


@pytest.mark.parametrize(
    ("data", "cold"),
    [("/a/data", "/a/data"), ("/a/data", "/a/data/cold"), ("/a/data/hot", "/a/data"), ("data", "./x/../data/cold/")],
)
def test_a_cold_directory_is_outside_of_the_data_directory(data: str, cold: str) -> None:
    [mistake] = mistakes_of({"TOPICS_DATA_DIR": data, "TOPICS_COLD_DIR": cold})
    assert mistake.startswith("TOPICS_COLD_DIR=")
    assert f"TOPICS_DATA_DIR={data} " in mistake


@pytest.mark.parametrize(("data", "cold"), [("/a/data", "/a/data-cold"), ("/a/data", "/a/cold"), ("data", "/data/x")])
def test_a_cold_directory_beside_the_data_directory_is_right(data: str, cold: str) -> None:
    assert load_settings({"TOPICS_DATA_DIR": data, "TOPICS_COLD_DIR": cold}).cold_dir == Path(cold)


@pytest.mark.parametrize("url", ["", "s3://b", "s3://b/p/q", "gs://b/p", "az://c/p", "file:///mnt/b c"])
def test_a_bucket_is_a_url(url: str) -> None:
    assert load_settings({"TOPICS_BUCKET": url}).bucket == url


@pytest.mark.parametrize("name", ["max_topics", "max_routers", "max_watch_sessions", "max_sse_connections"])
def test_a_cap_of_0_is_off(name: str) -> None:
    assert getattr(load_settings({SETTINGS[name].variable: "0"}), name) == 0


def test_all_mistakes_are_in_one_message() -> None:
    mistakes = mistakes_of(
        {"TOPICS_PORT": "70000", "TOPICS_HOST": "0.0.0.0", "TOPICS_API_KEYS": "k:root"},
        {"recovery": "hope", "cache_bytes": "1gb"},
    )
    assert len(mistakes) == 5
    assert [line.split("=")[0].split(":")[0] for line in mistakes] == [
        "TOPICS_PORT",
        "--recovery",
        "--cache-bytes",
        "TOPICS_API_KEYS",
        "TOPICS_HOST",
    ]


@pytest.mark.parametrize("keys", ["s3cr3t:rw:a|", "s3cr3t:root", "s3cr3t,", "", " ", "s3cr3t,s3cr3t:r", "s3cr3t\n::"])
def test_malformed_api_keys_refuse_the_start_and_are_never_printed(keys: str) -> None:
    [mistake] = mistakes_of({"TOPICS_API_KEYS": keys})
    assert mistake.startswith("TOPICS_API_KEYS: ")
    assert "must be KEY[:SCOPES[:PREFIXES]]" in mistake
    assert "s3cr3t" not in mistake


def test_secrets_are_not_in_the_repr_of_the_settings() -> None:
    settings = load_settings({"TOPICS_API_KEYS": "s3cr3t:rw"})
    assert "s3cr3t" not in repr(settings) + repr(settings.api_keys)


OTHERS = ["0.0.0.0", "::", "10.1.2.3", "example.org", "127.0.0.1.example.org"]


@pytest.mark.parametrize("host", OTHERS)
def test_a_bind_that_others_can_reach_is_refused_without_keys(host: str) -> None:
    [mistake] = mistakes_of({"TOPICS_HOST": host})
    assert mistake.startswith(f"TOPICS_HOST={host}: can be reached from other machines")


@pytest.mark.parametrize("host", OTHERS)
@pytest.mark.parametrize(
    "permission", [{"ALLOW_INSECURE_NO_AUTH": "1"}, {"API_KEYS": "k"}, {"API_KEYS_FILE": "keys"}], ids=str
)
def test_a_bind_that_others_can_reach_takes_keys_or_a_word_of_consent(host: str, permission: dict[str, str]) -> None:
    environ = {f"TOPICS_{name}": value for name, value in permission.items()}
    assert load_settings({"TOPICS_HOST": host, **environ}).host == host


@pytest.mark.parametrize(
    ("text", "rate"),
    [("", (0, 0)), ("0", (0, 0)), ("50", (50, 0)), ("50/1MiB", (50, MIB)), ("/4096", (0, 4096)), ("0/1KiB", (0, KIB))],
)
def test_a_rate_is_requests_and_bytes_a_second(text: str, rate: tuple[int, int]) -> None:
    assert load_settings({"TOPICS_RATE_PER_KEY": text}).rate_per_key == rate


@pytest.mark.parametrize("text", ["-1", "fast", "5/", "5/x", "5/1MiB/2", " 5", "1.5", "/"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    [mistake] = mistakes_of({"TOPICS_RATE_PER_KEY": text})
    assert mistake.startswith(f"TOPICS_RATE_PER_KEY={text}: must be")


def test_allowed_hosts_are_a_list_of_names() -> None:
    text = "Topics.example.org, my_host,a-b.c"
    assert load_settings({"TOPICS_ALLOWED_HOSTS": text}).allowed_hosts == ("topics.example.org", "my_host", "a-b.c")
    assert load_settings({"TOPICS_ALLOWED_HOSTS": ""}).allowed_hosts == ()


@pytest.mark.parametrize("text", ["a:80", "http://a", "a,", "*", "a b", ".a", "a..b", "-a", "[::1]", "a" * 254])
def test_what_is_no_host_name_is_refused(text: str) -> None:
    [mistake] = mistakes_of({"TOPICS_ALLOWED_HOSTS": text})
    assert mistake.startswith("TOPICS_ALLOWED_HOSTS=")


def test_origins_are_a_list() -> None:
    text = "https://app.example.org, http://localhost:3000,http://[::1]:80"
    origins = ("https://app.example.org", "http://localhost:3000", "http://[::1]:80")
    assert load_settings({"TOPICS_CORS_ORIGINS": text}).cors_origins == origins
    assert load_settings({"TOPICS_CORS_ORIGINS": "*"}).cors_origins == ("*",)
    assert load_settings({"TOPICS_CORS_ORIGINS": ""}).cors_origins == ()


@pytest.mark.parametrize(
    "text", ["example.org", "https://a/", "https://a/b", "https://a,", "https://u@a", "http://a:x", "http://a b"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    [mistake] = mistakes_of({"TOPICS_CORS_ORIGINS": text})
    assert mistake.startswith("TOPICS_CORS_ORIGINS=")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_binds_are_fine(host: str) -> None:
    assert is_loopback(host)
    assert load_settings({"TOPICS_HOST": host}).host == host


def test_offsets_in_a_wal_file_must_fit_their_field_whatever_the_batch() -> None:
    environ = {"TOPICS_WAL_FILE_BYTES": "2GiB", "TOPICS_MAX_BODY_BYTES": "1GiB"}
    assert load_settings(environ).wal_file_bytes == 2 * GIB
    [mistake] = mistakes_of({**environ, "TOPICS_MAX_BATCH_RECORDS": "1000000", "TOPICS_MAX_NODE_BYTES": "4096"})
    assert "TOPICS_WAL_FILE_BYTES" in mistake
    assert "4GiB" in mistake


def test_limits_that_cannot_be_reached_are_odd_but_allowed() -> None:
    settings = load_settings({"TOPICS_MAX_BODY_BYTES": "100KiB"})
    assert settings.max_body_bytes == 100 * KIB
    [warning] = settings.warnings
    assert "TOPICS_MAX_RECORD_BYTES=1MiB" in warning


def test_unknown_variables_are_warnings_and_those_of_clients_are_not_even_that() -> None:
    environ = {"TOPICS_PROT": "4001", "TOPICS_URL": "u", "TOPICS_TOKEN": "s3cr3t", "PATH": "/bin"}
    [warning] = load_settings(environ).warnings
    assert warning.startswith("TOPICS_PROT:")


def test_an_unknown_override_is_a_mistake() -> None:
    assert mistakes_of({}, {"no_such": "1"}) == ["--no-such: there is no such setting"]
