"""The steward keeps as many members as there should be, and all of them kicked."""

from __future__ import annotations

from fde_ray.engine.fleet.calls import MemberGone, MemberLost
from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.fleet.crew import Crew
from fde_ray.model.profile import Profile
from tests.engine.fleet.doubles import FakeHirer
from tests.engine.virtual import played


def make_config(supervisors: int = 2, **ray: int) -> FleetConfig:
    profile = Profile.model_validate({"home": "/nowhere", "ray": {"pool_least": 1, **ray}})
    return FleetConfig(
        profile=profile, unsafe=False, generation=1, sweeps=None, supervisors=supervisors
    )


def test_members_are_hired_once_and_kicked_at_every_step() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        crew = Crew(make_config(), hirer)
        await crew.step(0.0)
        await crew.step(5.0)
        assert sorted(hirer.hired) == ["customer-0", "detector-0", "judge-0", "sup-0", "sup-1"]
        assert {len(handle.kicks) for handle in hirer.hired.values()} == {2}

    played(main)


def test_supervisors_are_told_of_the_pools_and_of_the_steward() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        await Crew(make_config(), hirer).step(0.0)
        (news,) = hirer.hired["sup-1"].kicks
        assert news["steward"] is hirer.steward
        assert {kind: list(members) for kind, members in news["members"].items()} == {
            "customer": ["customer-0"],
            "detector": ["detector-0"],
            "judge": ["judge-0"],
        }

    played(main)


def test_a_pool_grows_with_what_supervisors_have_in_flight_and_drains_when_idle() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        crew = Crew(make_config(), hirer)
        await crew.step(0.0)
        for name in ("sup-0", "sup-1"):
            hirer.hired[name].in_flight = {"judge": 48}
        await crew.step(5.0)
        await crew.step(10.0)
        assert "judge-1" in hirer.hired
        assert "customer-1" not in hirer.hired
        for name in ("sup-0", "sup-1"):
            hirer.hired[name].in_flight = {}
        for at in (15.0, 80.0, 90.0, 690.0):
            await crew.step(at)
        assert hirer.hired["judge-1"].is_drained
        assert not hirer.hired["judge-0"].is_drained

    played(main)


def test_a_silent_member_keeps_nobody_else_from_being_kicked() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        crew = Crew(make_config(), hirer)
        await crew.step(0.0)
        hirer.hired["sup-0"].error = MemberLost("as the test says")
        await crew.step(5.0)
        assert len(hirer.hired["sup-1"].kicks) == 2
        assert "sup-0" not in crew.vitals
        hirer.hired["sup-0"].error = None
        await crew.step(10.0)
        assert "sup-0" in crew.vitals

    played(main)


def test_all_are_drained_even_if_one_cannot_be_reached() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        crew = Crew(make_config(), hirer)
        await crew.step(0.0)
        hirer.hired["sup-0"].error = MemberLost("as the test says")
        await crew.drain()
        assert all(handle.is_drained for handle in hirer.hired.values())

    played(main)


def test_a_member_whose_process_is_gone_for_good_is_replaced() -> None:
    async def main() -> None:
        hirer = FakeHirer()
        crew = Crew(make_config(), hirer)
        await crew.step(0.0)
        gone = hirer.hired.pop("judge-0")
        gone.error = MemberGone("judge-0")
        await crew.step(5.0)
        await crew.step(10.0)
        assert hirer.hired["judge-0"] is not gone
        assert hirer.hired["judge-0"].kicks

    played(main)
