"""`fde-ray cluster render` prints a fence, and the doctor looks at the cluster of a profile."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import CommandLine

PLANES = ("--run-plane", "10.0.0.7:8080", "--grade-plane", "10.0.0.7:8081")
PROFILE = """
schema: fde_ray.profile/1
planes: {run: "http://10.0.0.7:8080", ingest: "http://10.0.0.7:8082", grade: "http://10.0.0.7:8081"}
sandbox:
  runtime: kubernetes
  kubernetes: {namespace: my-runs, image: "localhost/run:1", pull: Never, runtime_class: kata}
"""

KUBECONFIG = """
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: me}}]
clusters: [{name: lab, cluster: {server: "%s"}}]
users: [{name: me, user: {token: t}}]
"""


@pytest.fixture
def profile(empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    return path


def test_yaml_json_and_files_hold_the_same_objects(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    printed = list(yaml.safe_load_all(cli("cluster", "render", *PLANES).out))
    assert cli("cluster", "render", *PLANES, "--json").json["items"] == printed
    ended = cli("cluster", "render", *PLANES, "--out", tmp_path / "fence")
    files = ended.out.split()
    assert [yaml.safe_load(Path(name).read_text()) for name in files] == printed
    assert "kubectl apply --server-side -f" in ended.err


def test_profile_says_what_the_command_line_does_not(profile: Path, cli: CommandLine) -> None:
    text = json.dumps(cli("cluster", "render", "--profile", profile, "--json").json)
    for word in ("my-runs", "kata", "localhost/run:1", "10.0.0.7/32", "8082"):
        assert word in text
    more = ("--namespace", "other", "--runtime-class", "gvisor", "--run-plane", "10.9.9.9:1")
    text = json.dumps(cli("cluster", "render", "--profile", profile, *more, "--json").json)
    assert "my-runs" not in text
    assert "kata" not in text
    assert '"10.9.9.9/32"' in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "give --run-plane, or planes.run"),
        ("--run-plane 10.0.0.7:1", "give --grade-plane, or planes.grade"),
        ("--run-plane plane:80 --grade-plane 10.0.0.7:1", "policies know no names"),
        ("--run-plane 0.0.0.0/0:80 --grade-plane 10.0.0.7:1", "too wide"),
        ("--run-plane 10.0.0.7:1 --grade-plane 10.0.0.7:1 --pods 1", "--pods: "),
        (f"{' '.join(PLANES)} --memory 1", "--memory: "),
        (f"{' '.join(PLANES)} --image=", "--image: "),
        ("--run-plane 10.0.0.7:1 --grade-plane 10.0.0.7:1 --pods 9 --grading-pods 9", "none can"),
        (
            "--run-plane 10.0.0.7:1 --grade-plane 10.0.0.7:1 --pods 9 --grading-pods 1",
            "give `cluster render` --grading-pods ",
        ),
        ("--run-plane 10.0.0.7:1 --grade-plane 10.0.0.7:1 --namespace A", "--namespace: "),
        (f"{' '.join(PLANES)} --namespace default", "default is no namespace for run pods"),
        (f"{' '.join(PLANES)} --namespace kube-system", "it holds others"),
        ("--run-plane ns/app=:80 --grade-plane 10.0.0.7:1", "namespace/label=value"),
        ("--run-plane 10.0.0.7:1 --grade-plane 10.0.0.7:1 --out /proc/x", "/proc/x"),
    ],
)
def test_what_cannot_be_a_fence_is_told_in_one_line(
    empty_home: Path, cli: CommandLine, words: str, told: str
) -> None:
    ended = cli("cluster", "render", *words.split())
    assert ended.code in (1, 2)
    assert ended.out == ""
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_reserve_holds_the_gradings_of_the_profile(profile: Path, cli: CommandLine) -> None:
    rendered = cli("cluster", "render", "--profile", profile)
    assert "set concurrency.gradings to no more" in rendered.err
    profile.write_text(f"{PROFILE}concurrency: {{gradings: 20}}\n")
    ended = cli("cluster", "render", "--profile", profile, "--pods", "60")
    assert ended.code == 2
    assert "20 grades at once take" in ended.err
    assert "or set concurrency.gradings to " in ended.err
    ended = cli("cluster", "render", "--profile", profile, "--pods", "99", "--grading-pods", "60")
    assert ended.code == 0
    assert ended.err == ""


def test_one_grade_is_told_as_one(profile: Path, cli: CommandLine) -> None:
    words = ("--pods", "9", "--grading-pods", "3")
    rendered = cli("cluster", "render", "--profile", profile, *words)
    assert "the reserve holds 1 grade at once;" in rendered.err


@pytest.mark.parametrize("key", ["run", "ingest", "grade"])
@pytest.mark.parametrize("address", ["http://plane.example:8082", "unix:/run/plane"])
def test_a_plane_with_a_host_name_is_told_by_its_key(
    profile: Path, cli: CommandLine, key: str, address: str
) -> None:
    port = {"run": 8080, "ingest": 8082, "grade": 8081}[key]
    profile.write_text(PROFILE.replace(f"http://10.0.0.7:{port}", address))
    ended = cli("cluster", "render", "--profile", profile)
    assert ended.code == 2
    assert f"planes.{key} is {address}; pods reach planes by IP address alone" in ended.err
    assert "write http://ip:port" in ended.err


def test_cases_that_cannot_be_read_may_ask_for_programs(
    profile: Path, cli: CommandLine, tmp_path: Path
) -> None:
    profile.write_text(f"{PROFILE}cases: {tmp_path}/nowhere\n")
    ended = cli("cluster", "render", "--profile", profile, "--pods", "9", "--grading-pods", "2")
    assert "a grade takes 3 pods (extract, score, exec)" in ended.err


def test_doctor_needs_a_profile_with_a_cluster(empty_home: Path, cli: CommandLine) -> None:
    ended = cli("doctor", "--cluster")
    assert ended.code == 2
    assert "`kubernetes:` block" in ended.err


def test_a_mistyped_profile_is_told_before_the_doctor_looks_at_anything(
    profile: Path, cli: CommandLine
) -> None:
    profile.write_text(profile.read_text().replace("runtime: kubernetes", "runtim: kubernetes"))
    ended = cli("doctor", "--cluster", "--profile", profile)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "runtim" in line


def test_doctor_without_a_way_to_the_cluster_says_what_to_set(
    profile: Path, cli: CommandLine
) -> None:
    ended = cli("doctor", "--cluster", "--profile", profile, "--json")
    found = {one["what"]: one for one in ended.json}
    assert ended.code == 1
    assert not found["cluster"]["ok"]
    assert "KUBECONFIG" in found["cluster"]["detail"]
    assert found["sandbox"]["ok"]


def test_doctor_says_at_once_that_no_api_server_is_there(
    profile: Path, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:  # bound, but nobody listens
        nobody.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG % server)
        monkeypatch.setenv("KUBECONFIG", str(path))
        ended = cli("doctor", "--cluster", "--profile", profile, "--json")
    (found,) = [one for one in ended.json if one["what"] == "cluster"]
    assert ended.code == 1
    assert not found["ok"]
    assert f"{server}, from context lab of {path}: see that it runs" in found["detail"]
    assert "\n" not in found["detail"]
