"""A SweepSpec is read so that every fault names its line."""

from __future__ import annotations

import pytest

from fde_ray.model.documents import MAX_BYTES, parse_document
from fde_ray.model.errors import SpecError
from fde_ray.model.specs import SweepSpec

GOOD = """\
name: demo
cases: ["017"]
systems:
  - {name: a, scaffold: scripted, model: offline/reference}
conditions: [hidden, "oracle:25"]
customer: {model: offline/customer}
panel:
  models: [offline/e1, offline/e2, offline/e3, offline/e4, offline/e5]
limits: {time: 12h, memory: 4GiB}
"""


def test_a_good_document_is_read() -> None:
    spec = parse_document(GOOD, SweepSpec)
    assert [c.label for c in spec.conditions] == ["hidden", "oracle:25"]
    assert spec.limits.time == 43_200
    assert spec.limits.memory == 4 * 2**30


def test_a_byte_order_mark_is_fine() -> None:
    assert parse_document(b"\xef\xbb\xbf" + GOOD.encode(), SweepSpec).name == "demo"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("limits:", "limtis:", 9, "unknown key 'limtis'"),
        ("time: 12h", "time: 12", 9, "12h"),
        ("time: 12h", "time: 12 parsecs", 9, "duration"),
        ("time: 12h", "time: 0s", 9, "more than 0"),
        ("memory: 4GiB", "memory: lots", 9, "size"),
        ("hidden", "hiden", 5, "unknown condition 'hiden'"),
        ("oracle:25", "oracle:x", 5, "integer percent"),
        ("oracle:25", "oracle:101", 5, "less than or equal to 100"),
        ("oracle:25", "oracle", 5, "needs a percent"),
        ("hidden", "full:3", 5, "needs a percent"),
        ('["017"]', '["17"]', 2, "pattern"),
        ('["017"]', "[]", 2, "at least 1"),
        ('["017"]', '["017", "017"]', 1, "listed twice"),
        ("offline/reference", "'no such model!'", 4, "pattern"),
        (", offline/e5", "", 8, "at least 5"),
        ("name: demo", "name: demo\nname: again", 2, "given twice"),
        ("name: demo", "name: Demo Sweep", 1, "small letters"),
        ("customer: {model: offline/customer}", "x: 1", 1, "missing"),
        ("customer: {model: offline/customer}", "customer: [1", 7, ""),
        ("customer: {model: offline/customer}", "customer: &a {model: *b}", 6, "alias"),
        ("name: demo", "home: /tmp/x\nname: demo", 1, "unknown key 'home'"),
    ],
)
def test_a_fault_names_its_line(old: str, new: str, line: int, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(GOOD.replace(old, new), SweepSpec, path="sweep.yaml")
    assert caught.value.line == line
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"sweep.yaml:{line}: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"- 1\n", "mapping"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a: \x00", "not allowed"),
        (b"a: " + b"x" * MAX_BYTES, "larger than"),
        (b"a: " + b"[" * 5000, "deep"),
        (b"a: !!python/object/apply:os.system [x]", "cannot read the tag"),
        (b"? [1, 2]\n: 3\n", "plain text"),
        (b"<<: {a: 1}\n", "plain text"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_hostile_text_is_a_clear_error(text: bytes, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(text, SweepSpec, path="sweep.yaml")
    assert says in str(caught.value)


def test_a_document_of_names_for_each_other_is_refused_at_once() -> None:
    lines = ["a: &a [" + ",".join("x" * 9) + "]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [" + ",".join([f"*{before}"] * 9) + "]")
    with pytest.raises(SpecError, match="more than 100000 values"):
        parse_document("\n".join(lines), SweepSpec)
