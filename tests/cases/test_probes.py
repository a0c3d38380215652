import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.cases.admission import Bench
from fde_ray.cases.normalising import normalised
from fde_ray.cases.package import load_case
from fde_ray.cases.probes import SYSTEM_PROBES, list_probes, load_probe
from fde_ray.cases.records import Case
from fde_ray.model.errors import CaseError

Spoil = Callable[[str, bytes | str], Path]


def test_every_system_probe_is_there(bench: Bench) -> None:
    assert set(SYSTEM_PROBES) <= set(list_probes(bench.case))


def test_oracle_probes_are_nested_prefixes(bench: Bench) -> None:
    known = [set(bench.probes[f"oracle_{percent}"].knows) for percent in (25, 50, 75)]
    total = len(bench.case.points)
    assert [len(keys) for keys in known] == [-(-p * total // 100) for p in (25, 50, 75)]
    assert known[0] <= known[1] <= known[2]


def test_foreign_probes_normalise_by_aliases_alone(bench: Bench) -> None:
    schema = bench.case.submission_schema
    targets = {file.name for file in schema.files}
    foreign = [probe for probe in bench.probes.values() if probe.layout == "foreign"]
    assert {"greedy_full", "oracle_50"} <= {probe.name for probe in foreign}
    for probe in foreign:
        assert not targets & set(probe.files)
        assert set(normalised(schema, probe.files)) == targets


def test_a_unit_factor_gives_whole_metres_again(rolling: Case) -> None:
    text = normalised(rolling.submission_schema, load_probe(rolling, "greedy_full").files)
    lengths = [line.split(",")[3] for line in text["schedule.csv"].decode().splitlines()[1:]]
    assert all(length.isdigit() for length in lengths)


def test_the_summary_names_what_is_delivered(bench: Bench) -> None:
    for name in SYSTEM_PROBES[1:]:
        probe = bench.probes[name]
        delivered = [file for file in probe.files if file != "NOTES.md"]
        assert any(file in probe.summary for file in delivered)


def test_do_nothing_has_no_files_and_no_rounds(bench: Bench) -> None:
    probe = bench.probes["do_nothing"]
    assert probe.files == {}
    assert probe.rounds == ()


def test_an_unknown_probe_names_the_known_ones(rolling: Case) -> None:
    with pytest.raises(CaseError, match=r"no probe '../x'; known probes: .*literal"):
        load_probe(rolling, "../x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"covered": ["nothing_known"]}, "nothing_known"),
        ({"rounds": [["One?"]], "per_round_covered": []}, "per_round_covered"),
        ({"layout": "sideways"}, "layout"),
        ({"expect": {"valid": True, "score": "nan", "stage": "quality"}}, "expect.score"),
        ({"name": "other"}, "name"),
        ({"files": {}}, "name"),
        ({"units": -1}, "units"),
    ],
)
def test_a_wrong_probe_is_named_with_its_field(
    copy: Path, spoil: Spoil, change: dict[str, object], says: str
) -> None:
    name = "sealed/probes/literal/probe.json"
    document = json.loads((copy / name).read_text(encoding="utf-8"))
    case = load_case(spoil(name, json.dumps({**document, **change})))
    with pytest.raises(CaseError) as caught:
        load_probe(case, "literal")
    assert "probe.json" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"{}", b"7", b'{"a": 1}', b"[[1]]", b"not json", b"\xff"])
def test_a_foreign_file_without_the_fields_is_a_value_error(rolling: Case, content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        normalised(rolling.submission_schema, {"mill_week.json": content})


def test_a_deliverable_that_is_not_there_gives_no_file(rolling: Case) -> None:
    assert normalised(rolling.submission_schema, {"NOTES.md": b"x"}) == {}
