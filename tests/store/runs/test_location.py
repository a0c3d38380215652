"""A store is named by its place; what opens it is never printed, and faults are one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from fde_ray.model.documents import parse_document
from fde_ray.model.errors import FdeRayError, SpecError, StoreError, UserError
from fde_ray.model.profile import Profile
from fde_ray.model.stores import PostgresProfile
from fde_ray.store.runs import RunStore, StoreLocation
from fde_ray.store.runs.checking import checked_store
from tests.postgresql import Server, lacking_rights, with_password
from tests.store.programs import files_below

SECRET = "s3cret-Pa55"


def test_profile_names_a_store_by_its_url_alone_or_in_full() -> None:
    short = Profile.model_validate({"store": "postgresql://u@h/db"})
    full = Profile.model_validate({"store": {"url": "postgresql://u@h/db", "connections": 2}})
    assert short.store == PostgresProfile(url="postgresql://u@h/db")
    assert full.store is not None
    assert full.store.connections == 2
    assert Profile.model_validate(Profile().jsonable()).store is None
    assert Profile.model_validate(full.jsonable()) == full


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(f"postgresql://u:{SECRET}@h/db", id="password"),
        pytest.param(f"postgresql://u@h/db?password={SECRET}", id="parameter"),
        pytest.param(f"mysql://{SECRET}@h/db", id="other-database"),
        pytest.param(f"postgresql://[{SECRET}/db", id="no-url"),
        pytest.param(
            {"url": "postgresql://h/d", "password_env": "A", "password_file": "b"}, id="2"
        ),
        pytest.param({"url": "postgresql://h/d", "connections": 0}, id="none"),
        pytest.param({"url": "postgresql://h/d", "password": SECRET}, id="key"),
    ],
)
def test_profile_with_a_store_that_will_not_do_is_refused_without_the_secret(store: Any) -> None:
    import json

    with pytest.raises(SpecError) as caught:
        parse_document(json.dumps({"store": store}), Profile)
    assert SECRET not in str(caught.value)


def test_location_without_a_profile_is_the_file(tmp_path: Path) -> None:
    assert StoreLocation.chosen(None, tmp_path / "x").url == str(tmp_path / "x")


@pytest.mark.parametrize(
    "url",
    [f"postgresql://u:{SECRET}@h/db", f"postgresql://h/db?password={SECRET}", "postgresql://%zz"],
)
def test_location_with_a_password_is_refused_without_it(url: str) -> None:
    with pytest.raises(UserError) as caught:
        StoreLocation(url).dialect()
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_place_and_repr_hold_no_secret() -> None:
    location = StoreLocation("postgresql://u@h:5/db", password_env="PW")
    dialect = location.dialect({"PW": SECRET})
    assert dialect.place == "PostgreSQL db@h:5"
    assert SECRET not in repr(location) + repr(dialect) + repr(vars(dialect))


async def faults_of(location: StoreLocation, environ: dict[str, str] | None = None) -> FdeRayError:
    with pytest.raises(FdeRayError) as caught:
        await checked_store(location, environ)
    said = str(caught.value)
    assert "\n" not in said
    assert SECRET not in said
    return caught.value


async def test_password_comes_from_a_variable_or_a_file(postgresql: Server, tmp_path: Path) -> None:
    url = with_password(postgresql, "locked", SECRET)
    (tmp_path / "pw").write_text(SECRET + "\n")
    named = StoreLocation(url, password_env="PW")
    assert "(empty)" in await checked_store(named, {"PW": SECRET})
    assert isinstance(await faults_of(named, {}), UserError)
    assert isinstance(await faults_of(named, {"PW": "wrong"}), UserError)
    filed = StoreLocation(url, password_file=str(tmp_path / "pw"))
    assert "(empty)" in await checked_store(filed)
    absent = filed._replace(password_file=str(tmp_path / "absent"))
    assert isinstance(await faults_of(absent), UserError)


async def test_database_that_is_not_there_is_told_in_a_sentence(postgresql: Server) -> None:
    error = await faults_of(StoreLocation(postgresql.url("nowhere")))
    assert isinstance(error, UserError)
    assert "no such database" in str(error)


async def test_server_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    location = StoreLocation(f"postgresql://u@/db?host={tmp_path}")
    dialect = location.dialect(patience_s=0.2)
    with pytest.raises(StoreError, match="cannot be reached"):
        async with RunStore(dialect):
            pass


async def test_user_who_may_create_no_table_is_told_what_to_grant(postgresql: Server) -> None:
    error = await faults_of(StoreLocation(lacking_rights(postgresql)))
    assert "GRANT CREATE" in str(error)


async def test_check_changes_nothing(postgresql: Server, tmp_path: Path) -> None:
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE untouched")
    location = StoreLocation(postgresql.url("untouched"))
    assert await checked_store(location) == f"PostgreSQL untouched@{postgresql.folder} (empty)"
    assert await checked_store(location) == f"PostgreSQL untouched@{postgresql.folder} (empty)"
    async with RunStore.at(location):
        pass
    assert "(schema " in await checked_store(location)
    file = StoreLocation(str(tmp_path / "runs.db"))
    assert "made at the first use" in await checked_store(file)
    assert files_below(tmp_path) == []
    async with RunStore.at(file):
        pass
    assert "(schema " in await checked_store(file)
