"""Puts the embedded system together from a profile: one object that the engine's parts share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from fde_ray.cases.package import load_cases
from fde_ray.cases.probes import load_probe
from fde_ray.cases.records import Case, Probe
from fde_ray.gateway.plane import Plane
from fde_ray.gateway.signing import load_keys
from fde_ray.gateway.tokens import TokenSigner
from fde_ray.grading.scoring import Scorer
from fde_ray.llm.client import Chat
from fde_ray.llm.offline import OfflineProvider
from fde_ray.llm.router import ModelRouter
from fde_ray.metering.allowances import Allowances
from fde_ray.metering.budgets import Budgets
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.limits import Limits
from fde_ray.metering.metrics import CallMetrics, WatchedLedger
from fde_ray.metering.prices import PriceTable, load_prices
from fde_ray.metering.shares import policy_of
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.errors import UserError
from fde_ray.model.profile import Profile
from fde_ray.protocol.packs import PromptPack, builtin_pack, load_pack
from fde_ray.sandbox.interface import Sandbox
from fde_ray.store.objects import ObjectStore
from fde_ray.store.objects.opening import opened_objects
from fde_ray.store.runs import RunStore, StoreLocation

from .boxes import BoxScorer
from .evaluations import Evaluations
from .home import Home, home_of
from .material import Material
from .sandboxes import opened_sandbox

BUILTIN = "builtin"


@dataclass(frozen=True)
class Runtime:
    """What runs share. Everything here is safe for many runs at once."""

    profile: Profile
    home: Home
    clock: Clock
    cases: Mapping[str, Case]
    location: StoreLocation
    store: RunStore
    objects: ObjectStore
    calls: MeteredChat
    sandbox: Sandbox
    signer: TokenSigner
    material: Material
    scorer: Scorer
    evaluations: Evaluations
    run_plane: Plane
    grade_plane: Plane
    _packs: dict[str, PromptPack] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.profile.tenant

    def pack(self, name: str) -> PromptPack:
        """Return a prompt pack: the built-in one, or a folder below <home>/packs."""
        if name not in self._packs:
            self._packs[name] = _pack(name, self.home.root / "packs")
        return self._packs[name]


def shipped_cases() -> Path:
    """Return the case folder beside this package in a checkout."""
    return Path(__file__).resolve().parents[2] / "cases"


class CasesWhenNeeded(Mapping[str, Case]):
    """Case packages, read and checked at the first look: a broken one hides no finished result."""

    def __init__(self, load: Callable[[], Mapping[str, Case]]) -> None:
        self._loaded = cache(load)

    def __getitem__(self, case_id: str) -> Case:
        return self._loaded()[case_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())


def cases_of(profile: Profile) -> Mapping[str, Case]:
    return load_cases(Path(profile.cases).expanduser() if profile.cases else shipped_cases())


@asynccontextmanager
async def opened_runtime(
    profile: Profile,
    *,
    unsafe: bool = False,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
    cases: Mapping[str, Case] | None = None,
    chat: Chat | None = None,
    writing: bool = True,
    driving: bool = True,
    shards: frozenset[int] | None = None,
    metrics: CallMetrics | None = None,
) -> AsyncIterator[Runtime]:
    """Open stores and clients of this machine's state folder; close them at the end.

    None: sandbox and cases of the profile; chat = the endpoints of the profile. writing: whether a
    bucket must show first that it can be written. driving: whether sessions are started or looked
    at. shards: whose sessions are looked at until a driver holds some; None = all. metrics: what
    counts the calls.
    """
    clock = clock or SystemClock()
    environ = os.environ if environ is None else environ
    home = home_of(profile, environ)
    cases = cases or CasesWhenNeeded(lambda: cases_of(profile))
    async with AsyncExitStack() as stack:
        location = StoreLocation.chosen(profile.store, home.database)
        store = await stack.enter_async_context(RunStore.at(location, clock, environ))
        objects = await stack.enter_async_context(
            opened_objects(profile.objects, home.objects, environ, probed=writing)
        )
        chat = chat or ModelRouter(profile.endpoints, OfflineProvider(_probes(cases)))
        stack.push_async_callback(chat.aclose)
        prices = prices_of(profile)
        allowances = Allowances(store, clock, policy_of(profile.scheduling))
        ledger = store if metrics is None else WatchedLedger(store, metrics)
        budgets = Budgets(ledger, prices, clock, allowances)
        limits = Limits(profile.endpoints, clock, store)
        calls = MeteredChat(
            chat,
            ledger,
            prices,
            clock,
            budgets=budgets,
            limits=limits,
            unpriced=profile.unpriced_models,
        )
        stack.push_async_callback(calls.aclose)
        if sandbox is None:
            boxes = BoxScorer(store, objects, profile.tenant)
            stack.push_async_callback(boxes.aclose)
            opened = partial(opened_sandbox, profile, home, clock, environ, boxes=boxes)
            chosen = opened(unsafe=unsafe, driving=driving, shards=shards)
            sandbox = await stack.enter_async_context(chosen)
        keys = load_keys(profile.tokens, home.root, environ)
        signer = TokenSigner(keys, clock, lifetime_s=profile.tokens.lifetime)
        scorer = Scorer(sandbox)
        material = Material(cases, objects, profile.tenant, home.scratch)
        evaluations = Evaluations(store, material, scorer)
        plane = partial(
            Plane,
            store=store,
            objects=objects,
            calls=calls,
            signer=signer,
            clock=clock,
            tenant=profile.tenant,
            metrics=metrics,
            other_models=profile.other_models,
            provider_retries=profile.provider_retries,
        )
        yield Runtime(
            profile=profile,
            home=home,
            clock=clock,
            cases=cases,
            location=location,
            store=store,
            objects=objects,
            calls=calls,
            sandbox=sandbox,
            signer=signer,
            material=material,
            scorer=scorer,
            evaluations=evaluations,
            run_plane=plane(ingest=profile.planes.ingest),
            grade_plane=plane(evaluate=evaluations.evaluate),
        )


def _probes(cases: Mapping[str, Case]) -> Callable[[str, str], Probe]:
    @cache
    def probe_of(case_id: str, name: str) -> Probe:
        return load_probe(cases[case_id], name)

    return probe_of


def prices_of(profile: Profile) -> PriceTable:
    """Return the price table that the profile names, or the one that ships."""
    return load_prices(Path(profile.prices).expanduser()) if profile.prices else _shipped_prices()


_shipped_prices = cache(load_prices)


def _pack(name: str, folder: Path) -> PromptPack:
    if name == BUILTIN:
        return builtin_pack()
    if not (folder / name).is_dir():
        raise UserError(f"there is no prompt pack {name!r} in {folder}")
    return load_pack(folder / name)
