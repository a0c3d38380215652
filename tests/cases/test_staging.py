import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from fde_ray.cases.admission import Bench
from fde_ray.cases.package import load_case
from fde_ray.cases.records import Case
from fde_ray.cases.staging import (
    Archive,
    data_files,
    extract_archive,
    sealed_archive,
    visible_archive,
)
from fde_ray.model.errors import CaseError


def members(archive: Archive) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert all(member.isreg() for member in tar)
        found = {}
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name] = stream.read()
    return found


def test_only_request_and_data_are_visible(bench: Bench) -> None:
    names = list(members(visible_archive(bench.case)))
    assert names == sorted(names)
    assert "instruction.md" in names
    assert all(name == "instruction.md" or name.startswith("data/") for name in names)


def test_the_canary_is_sealed_and_never_where_an_agent_or_a_client_reads(bench: Bench) -> None:
    canary = bench.case.meta.canary.encode()
    assert not any(canary in content for content in members(visible_archive(bench.case)).values())
    assert canary not in gzip.decompress(visible_archive(bench.case).content)
    assert canary not in gzip.decompress(extract_archive(bench.case).content)
    assert canary in gzip.decompress(sealed_archive(bench.case).content)


def test_no_answer_or_truth_is_visible(bench: Bench) -> None:
    visible = b"".join(members(visible_archive(bench.case)).values())
    assert not any(point.answer.encode() in visible for point in bench.case.points)


def test_an_extractor_gets_information_and_schema_alone(bench: Bench) -> None:
    names = set(members(extract_archive(bench.case)))
    assert names == {"information.md", "submission_schema.json"}


def test_the_scorer_gets_what_scoring_needs(bench: Bench) -> None:
    names = set(members(sealed_archive(bench.case)))
    needed = {"evaluator.py", "gt.json", "params.json", "reference.json", "submission_schema.json"}
    assert needed <= names
    assert all(name in needed or name.startswith("truth/") for name in names)


def test_archives_are_the_same_bytes_each_time(rolling: Case) -> None:
    for pack in (visible_archive, extract_archive, sealed_archive):
        assert pack(rolling) == pack(rolling)
    with tarfile.open(fileobj=io.BytesIO(visible_archive(rolling).content)) as tar:
        first = tar.getmembers()[0]
    assert (first.mtime, first.uid, first.gid, first.mode) == (0, 0, 0, 0o644)


def test_the_file_list_is_sorted_and_direct(rolling: Case) -> None:
    assert data_files(rolling) == ("coils.csv", "grades.csv", "mill_notes.txt")


def test_a_visible_file_that_changed_after_loading_is_refused(copy: Path) -> None:
    case = load_case(copy)
    (copy / "data/coils.csv").write_bytes((copy / "sealed/gt.json").read_bytes())
    with pytest.raises(CaseError, match="changed after"):
        visible_archive(case)


def test_a_link_that_appears_after_loading_is_refused(copy: Path) -> None:
    case = load_case(copy)
    target = copy / "data/coils.csv"
    target.unlink()
    target.symlink_to(copy / "sealed/gt.json")
    for pack in (visible_archive, sealed_archive):
        with pytest.raises(CaseError, match="is a link"):
            pack(case)
    target.unlink()
    os.link(copy / "sealed/gt.json", target)
    with pytest.raises(CaseError, match="hard link"):
        visible_archive(case)
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(CaseError, match="pipe"):
        data_files(case)
