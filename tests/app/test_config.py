"""Settings: one struct, three places to say them, and what is refused."""

from pathlib import Path

import pytest
from msgspec.structs import asdict

from windlass.config import (
    SETTINGS,
    Config,
    EngineSection,
    WorkerSection,
    combine,
    data_folder,
    flag,
    load,
    size,
    variable,
)
from windlass.dialect.s3 import ClientJobOptions
from windlass.engine import Settings
from windlass.model.duration import DAY
from windlass.model.errors import Invalid, Missing


def test_where_nothing_is_said_the_defaults_hold(tmp_path: Path) -> None:
    assert load({}, tmp_path, {}) == Config()
    assert Config().store == "windlass.db"


def test_the_engines_section_has_the_engines_own_fields_and_defaults() -> None:
    section = {name: getattr(EngineSection(), name) for name in EngineSection.__struct_fields__}
    assert section == {name: getattr(Settings(), name) for name in Settings.__struct_fields__}


def test_a_setting_has_one_name_in_three_spellings() -> None:
    assert variable("worker.max_jobs") == "WINDLASS_WORKER_MAX_JOBS"
    assert flag("worker.max_jobs") == "--max-jobs"
    assert flag("worker.context_max_jobs") == "--context-max-jobs"
    assert combine("[worker]\nmax_jobs = 7", {}, {}) == combine("", {"WINDLASS_WORKER_MAX_JOBS": "7"}, {})
    assert combine("", {"WINDLASS_WORKER_MAX_JOBS": "7"}, {}) == combine("", {}, {"worker.max_jobs": 7})


def test_no_two_settings_share_a_variable() -> None:
    assert len({variable(path) for path in SETTINGS}) == len(SETTINGS)


def test_a_flag_goes_before_the_environment_which_goes_before_the_file() -> None:
    text = 'store = "file.db"\ntenant = "file"\n[worker]\nname = "file"'
    environ = {"WINDLASS_TENANT": "environment", "WINDLASS_WORKER_NAME": "environment"}
    found = combine(text, environ, {"worker.name": "flag"})
    assert (found.store, found.tenant, found.worker.name) == ("file.db", "environment", "flag")


def test_a_missing_flag_and_an_empty_variable_do_not_count() -> None:
    assert combine('store = "file.db"', {"WINDLASS_STORE": ""}, {"store": None}).store == "file.db"


def test_durations_sizes_and_lists_are_read_as_people_write_them() -> None:
    text = '[worker]\nlease = "30s"\ngrace = 2.5\nmax_memory = "512MB"\nqueues = ["mail", "slow"]'
    assert combine(text, {}, {}).worker == WorkerSection(
        lease=30.0, grace=2.5, max_memory=512_000_000, queues=["mail", "slow"]
    )
    environ = {"WINDLASS_WORKER_QUEUES": "mail, slow", "WINDLASS_WORKER_MAX_AGE": "2h 30m"}
    assert combine("", environ, {}).worker == WorkerSection(queues=["mail", "slow"], max_age=9000.0)


def test_none_takes_back_what_the_file_says() -> None:
    assert combine("[worker]\nmax_jobs = 7", {"WINDLASS_WORKER_MAX_JOBS": "none"}, {}).worker.max_jobs is None


@pytest.mark.parametrize(
    ("text", "bytes_meant"),
    [
        ("4096", 4096),
        ("10b", 10),
        ("512MB", 512 * 10**6),
        ("512 mb", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("2k b", None),
    ],
)
def test_sizes(text: str, bytes_meant: int | None) -> None:
    if bytes_meant is None:
        with pytest.raises(Invalid):
            size(text)
    else:
        assert size(text) == bytes_meant


def test_all_faults_are_said_at_once_each_with_its_place() -> None:
    text = 'stoer = "x"\n[worker]\nlease = "soon"\nslots = 0\n[engine]\nlease = []'
    environ = {"WINDLASS_WORKER_LAESE": "3", "WINDLASS_ENGINE_MOST_PAYLOAD": "much"}
    with pytest.raises(Invalid) as refusal:
        combine(text, environ, {"worker.queues": "a b"})
    said = str(refusal.value)
    assert said.startswith("7 errors in the settings\n")
    for place in (
        "windlass.toml: stoer: there is no such setting; did you mean store?",
        "windlass.toml: worker.lease: 'soon' is not a duration",
        "windlass.toml: worker.slots: ",
        "windlass.toml: engine.lease: ",
        "WINDLASS_WORKER_LAESE: there is no such setting; did you mean worker.lease?",
        "WINDLASS_ENGINE_MOST_PAYLOAD: 'much' is not a size",
        "--queues: not a name",
    ):
        assert place in said


def test_variables_that_only_begin_like_ours_are_left_alone() -> None:
    assert combine("", {"WINDLASS_VENV": "x", "WINDLASS_CONFIG": "y", "PATH": "z"}, {}) == Config()


def test_the_file_is_that_of_the_folder_or_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text('tenant = "here"')
    (tmp_path / "other.toml").write_text('tenant = "there"')
    assert load({}, tmp_path, {}).tenant == "here"
    assert load({"WINDLASS_CONFIG": "other.toml"}, tmp_path, {}).tenant == "there"
    assert load({"WINDLASS_CONFIG": str(tmp_path / "other.toml")}, Path("/"), {}).tenant == "there"


def test_places_in_the_file_begin_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text(
        'data = "state"\n[server]\nsocket = "/run/x.sock"\n[worker]\ntelemetry = "runs"\n[functions]\nfolder = "tmp"'
    )
    below = tmp_path / "below"
    below.mkdir()
    found = load({}, below, {})
    assert (found.data, found.server.socket) == (str(tmp_path / "state"), "/run/x.sock")
    assert (found.worker.telemetry, found.functions.folder) == (str(tmp_path / "runs"), str(tmp_path / "tmp"))
    assert load({"WINDLASS_DATA": "here"}, below, {}).data == "here"


def test_the_folder_of_a_servers_data_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_folder({"HOME": "/home/a"}) == Path("/home/a/.local/state/windlass")
    assert data_folder({"HOME": "/home/a", "XDG_STATE_HOME": "/var/s"}) == Path("/var/s/windlass")
    (tmp_path / "windlass.toml").write_text('data = "state"')
    assert data_folder({"HOME": "/home/a"}) == Path("state")
    assert data_folder({"WINDLASS_DATA": "/srv/w"}) == Path("/srv/w")


def test_a_named_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"WINDLASS_CONFIG: there is no file .*gone\.toml"):
        load({"WINDLASS_CONFIG": "gone.toml"}, tmp_path, {})


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text("worker: yes")
    with pytest.raises(Invalid, match=r"windlass\.toml: not TOML"):
        load({}, tmp_path, {})


def test_those_times_are_settings() -> None:
    """S3-24: how long jobs that come as lines are kept, and may wait."""
    assert ClientJobOptions(**asdict(combine("", {}, {}).client_jobs)) == ClientJobOptions()
    text = "[client_jobs]\nkeep_success = '2d'\nkeep_failure = 'none'"
    said = combine(text, {"WINDLASS_CLIENT_JOBS_EXPIRES": "5d"}, {})
    assert asdict(said.client_jobs) == {"keep_success": 2 * DAY, "keep_failure": None, "expires": 5 * DAY}
