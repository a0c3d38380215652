"""Where results are read from: the profile's object store, another bucket, or a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .setting import profile_from

if TYPE_CHECKING:
    from fde_ray.model.objects import ObjectsProfile
    from fde_ray.model.profile import Profile
    from fde_ray.store.objects import ObjectStore

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Read s3://bucket/prefix or a folder instead of the profile's object store.",
        show_default=False,
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        metavar="URL",
        envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        help="Root of an S3-compatible store, with --from s3://…; default: AWS.",
        show_default=False,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="NAME", help="Whose sweep; default: the profile's.", show_default=False
    ),
]


class Source(NamedTuple):
    """What the options of a command say. `place` None = the profile's own store."""

    profile: Path | None
    place: str | None
    endpoint_url: str | None
    tenant: str | None

    @property
    def options(self) -> str:
        """Return the options as a person would write them again, with a space before each."""
        given = {
            "--profile": self.profile,
            "--from": self.place,
            "--endpoint-url": self.endpoint_url if self.place else None,
            "--tenant": self.tenant,
        }
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


class Bucket(NamedTuple):
    objects: ObjectStore
    tenant: str


def sweep_named(name: str) -> str:
    """Return `name`; UserError when no sweep may have it, so that it leads out of no folder."""
    import re

    from fde_ray.model.errors import UserError
    from fde_ray.model.specs import NAME

    if not re.fullmatch(NAME, name):
        raise UserError(f"{name[:80]!r} is no name of a sweep")
    return name


@asynccontextmanager
async def opened(source: Source, *, writing: bool = False) -> AsyncIterator[Bucket]:
    """Open the store that is meant; UserError says why there is none, and where to look."""
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.model.errors import UserError
    from fde_ray.store.errors import KeyInvalid, SweepMissing
    from fde_ray.store.objects.opening import opened_objects

    profile = profile_from(source.profile)
    chosen = _chosen(profile, source)
    folder = Path() if chosen else home_of(profile, os.environ).objects
    try:
        async with opened_objects(chosen, folder, os.environ, probed=writing) as objects:
            yield Bucket(objects, source.tenant or profile.tenant)
    except SweepMissing as error:
        raise UserError(f"{error}; see: {_listing(source)}") from None
    except KeyInvalid as error:
        raise UserError(
            f"this names no tenant or sweep: {error}; see: {_listing(source)}"
        ) from None


def _chosen(profile: Profile, source: Source) -> ObjectsProfile | None:
    from pydantic import ValidationError

    from fde_ray.model.errors import UserError
    from fde_ray.model.objects import FolderSettings, S3Settings

    place = source.place
    if place is None:
        return profile.objects
    if not place.startswith("s3://"):
        folder = Path(place.removeprefix("file://")).expanduser()
        if not folder.is_dir():
            raise UserError(f"--from: there is no folder {folder}; a bucket is s3://bucket/prefix")
        return FolderSettings(path=str(folder))
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    known = profile.objects
    same = isinstance(known, S3Settings) and known.bucket == bucket
    basis = known.jsonable() if known is not None and same else {"bucket": bucket}
    changes = {"prefix": prefix.rstrip("/")}
    if source.endpoint_url is not None:
        changes["endpoint_url"] = source.endpoint_url
    try:
        return S3Settings.model_validate(basis | changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = ".".join(str(part) for part in first["loc"]) or "place"
        raise UserError(f"--from {place}: {what}: {first['msg']}") from None


def _listing(source: Source) -> str:
    from .output import program

    if source.place is None:
        return f"{program()} sweep status"
    return f"{program()} results ls{source.options}"
