"""The mapping script of the offline extractor, run as the sandbox runs it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fde_ray.llm import offline_mapping
from fde_ray.llm.offline_extractor import Task, command
from fde_ray.protocol.extraction import parse_report

FIELDS = [
    {"name": "coil_id", "type": "string", "role": "identifier", "aliases": ["coil"]},
    {
        "name": "length_m",
        "type": "number",
        "role": "decision",
        "aliases": [{"name": "length_km", "factor": 1000}, {"name": "sixtieth", "factor": 1 / 60}],
    },
]


def schema(**changes: Any) -> dict[str, Any]:
    file: dict[str, Any] = {
        "name": "plan.csv",
        "format": "csv",
        "row": "r",
        "row_set": "decision",
        "sorted": False,
        "aliases": ["order.csv"],
        "fields": FIELDS,
    }
    return {"schema": "fde_ray.submission/1", "files": [file | changes]}


class Room:
    def __init__(self, root: Path) -> None:
        self.workspace, self.output = root / "work space", root / "out"
        (self.workspace / "data").mkdir(parents=True)

    def put(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        (self.workspace / name).parent.mkdir(exist_ok=True)
        (self.workspace / name).write_bytes(data)

    def task(self, wanted: dict[str, Any], summary: str) -> Task:
        self.put("_agent_summary.md", summary)
        return Task(wanted, str(self.workspace), "/none", str(self.output))

    def map(self, wanted: dict[str, Any], summary: str = "") -> Any:
        offline_mapping.main(self.task(wanted, summary)._asdict())
        return self.report()

    def report(self) -> Any:
        return parse_report((self.output / "_result.json").read_text())

    def text(self, name: str = "plan.csv") -> str:
        return (self.output / name).read_bytes().decode()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_file_in_target_form_is_copied_byte_for_byte(room: Room) -> None:
    room.put("plan.csv", "coil_id,length_m\r\nC1, 1.50\r\n")
    report = room.map(schema(), "The answer is plan.csv.")
    assert room.text() == "coil_id,length_m\r\nC1, 1.50\r\n"
    assert (report.status, report.unit_factors, report.rows) == ("success", {}, {})
    digest = hashlib.sha256((room.workspace / "plan.csv").read_bytes()).hexdigest()
    (source,) = report.sources["plan.csv"]
    assert (source.path, source.sha256) == ("plan.csv", digest)


def test_the_command_runs_in_a_shell_and_ends_with_the_evaluator(room: Room) -> None:
    room.put("mine.csv", "coil,length_km\nC'1,0.1\n")
    task = room.task(schema(), "mine.csv")
    script = f"evaluate() {{ echo evaluated $1; }}\n{command(task)}"
    done = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert f"evaluated {room.output}" in done.stdout
    assert room.text() == "coil_id,length_m\nC'1,100\n"
    assert room.report().status == "success"


def test_foreign_names_and_units_are_mapped_exactly(room: Room) -> None:
    room.put("mine.csv", "Length KM;Coil\n0.1;C2\n1.2345678;C1\n3;C3\n")
    report = room.map(schema(), "Take mine.csv")
    assert room.text() == "coil_id,length_m\nC2,100\nC1,1234.5678\nC3,3000\n"
    assert report.unit_factors == {"length_m": 1000.0}


def test_a_rounded_factor_leaves_no_noise(room: Room) -> None:
    room.put("mine.csv", "coil,sixtieth\nC1,5400\nC2,5401.5\n")
    room.map(schema(), "mine.csv")
    assert room.text() == "coil_id,length_m\nC1,90\nC2,90.025\n"


@pytest.mark.parametrize(
    "content",
    [
        '[{"coil": "C2", "length_m": 1.10}, {"coil": "C1", "length_m": 2}]',
        '{"plan": [{"coil": "C2", "length_m": 1.1}, {"coil": "C1", "length_m": 2}], "by": "me"}',
        '{"coil": ["C2", "C1"], "length_m": [1.1, 2]}',
    ],
    ids=["records", "wrapped", "columns"],
)
def test_json_becomes_csv_in_the_same_order(room: Room, content: str) -> None:
    room.put("order.json", content)
    report = room.map(schema(), "see order.json")
    assert room.text() == "coil_id,length_m\nC2,1.1\nC1,2\n"
    assert report.status == "success"


def test_csv_becomes_json_with_every_digit(room: Room) -> None:
    room.put("order.csv", "coil_id,length_m\nC1,0.12345678901234567890\nC2,\n")
    room.map(schema(name="plan.json", format="json"), "order.csv")
    assert '"length_m": 0.1234567890123456789}' in room.text("plan.json")
    assert json.loads(room.text("plan.json"))[1] == {"coil_id": "C2", "length_m": None}


def test_designation_decides_even_against_the_target_name(room: Room) -> None:
    room.put("plan.csv", "coil_id,length_m\nOLD,1\n")
    room.put("final/best.csv", "coil,length_m\nNEW,1\n")
    report = room.map(schema(), "Ignore my drafts: final/best.csv is the answer.")
    assert "NEW" in room.text()
    assert report.sources["plan.csv"][0].path == "final/best.csv"


def test_nothing_is_taken_from_data_links_or_hidden_files(room: Room) -> None:
    for name in ("data/plan.csv", ".cache/plan.csv", ".plan.csv"):
        room.put(name, "coil_id,length_m\nC1,1\n")
    (room.workspace / "link.csv").symlink_to(room.workspace / "data" / "plan.csv")
    report = room.map(schema(), "data/plan.csv is the answer")
    assert report.status == "failed"
    assert not (room.output / "plan.csv").exists()


def test_a_decision_set_keeps_every_row_and_a_graded_set_discloses_drops(room: Room) -> None:
    fields = [{"name": "n", "type": "integer", "role": "grouping_key", "range": [1, 2]}]
    room.put("plan.csv", "n\n2\n7\n1\ntotal\n")
    room.map(schema(fields=fields), "plan.csv")
    assert room.text() == "n\n2\n7\n1\ntotal\n"
    report = room.map(schema(fields=fields, row_set="graded"), "plan.csv")
    assert room.text() == "n\n2\n1\ntotal\n"
    assert (report.rows["plan.csv"].before, report.rows["plan.csv"].after) == (4, 3)


def test_a_missing_column_is_told_and_nothing_is_invented(room: Room) -> None:
    room.put("plan.csv", "coil\nC1\n")
    report = room.map(schema(), "plan.csv")
    assert report.status == "partial"
    assert room.text() == "coil_id\nC1\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"a,a\n1,2\n",
        b"[" * 200_000,
        b'{"a": NaN}',
        b"null",
        b"\x00\x01\n",
        b"[1, 2]",
        b"[]",
    ],
    ids=["empty", "utf16", "twice", "deep", "nan", "null", "binary", "scalars", "no records"],
)
@pytest.mark.parametrize("name", ["plan.csv", "plan.json"])
def test_a_file_that_is_no_table_is_no_deliverable(room: Room, name: str, content: bytes) -> None:
    room.put(name, content)
    assert room.map(schema(), name).status == "failed"


def test_text_is_copied_as_it_is(room: Room) -> None:
    room.put("solver.py", b"print('\xc3\xa9')\r\n")
    wanted = schema(name="main.py", format="text", aliases=["solver.py"], fields=[])
    room.map(wanted, "run solver.py")
    assert (room.output / "main.py").read_bytes() == b"print('\xc3\xa9')\r\n"


def test_the_script_is_standard_library_only() -> None:
    imported = {
        line.split()[1].partition(".")[0]
        for line in Path(offline_mapping.__file__).read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)


def test_a_program_comes_with_the_modules_beside_it(room: Room) -> None:
    files = {
        "work/plan.py": "import stock\n",
        "work/stock.py": "x = 1\n",
        "work/pkg/__init__.py": "y = 2\n",
        "work/policy_notes.md": "no module\n",
        "elsewhere.py": "z = 3\n",
        "data/given.py": "no work of the agent\n",
    }
    (room.workspace / "work").mkdir()
    for name, text in files.items():
        room.put(name, text)
    wanted = schema(name="policy.py", format="text", fields=[], aliases=["plan.py"])
    report = room.map(wanted, "The program is work/plan.py.")
    came_from = {name: refs[0].path for name, refs in report.sources.items()}
    assert came_from == {
        "policy.py": "work/plan.py",
        "stock.py": "work/stock.py",
        "pkg/__init__.py": "work/pkg/__init__.py",
    }
    for name, source in came_from.items():
        assert room.text(name) == files[source]
    assert report.status == "success"
