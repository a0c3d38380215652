"""Objects as an operator's tools read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from .objects import Object

HEAD = "# Made by `fde-ray cluster render`; apply it with: kubectl apply --server-side -f FILE\n"


def as_list(objects: Sequence[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def as_yaml(objects: Sequence[Object]) -> str:
    return HEAD + "---\n".join(map(_document, objects))


def as_files(objects: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield a file name and its text for each object; names sort in the order of the objects."""
    for number, each in enumerate(objects):
        kind, name = each["kind"].lower(), each["metadata"]["name"]
        yield f"{number:02d}-{kind}-{name}.yaml", HEAD + _document(each)


def _document(each: Object) -> str:
    text: str = yaml.dump(each, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)
    return text


class _Plain(yaml.SafeDumper):
    """Without anchors: the same list at two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True
