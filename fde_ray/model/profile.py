"""The Profile: where and how sweeps run. It belongs to the operator and never enters an id."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from .base import Record
from .kubernetes import KubernetesProfile
from .objects import ObjectsProfile
from .people import PeopleProfile
from .planes import PlanesProfile, TokensProfile
from .pods import ComputeProfile
from .scheduling import SchedulingProfile
from .stores import StoreProfile
from .units import Duration, parse_duration
from .wire import Dialect

OtherModels = Literal["map", "refuse"]
UnpricedModels = Literal["refuse", "allow"]


class Endpoint(Record):
    """Where calls for some models go. The first endpoint whose `match` fits wins."""

    match: str = Field(min_length=1)
    """A model name, or a prefix that ends in `*`."""
    base_url: str | None = None
    """A root such as http://127.0.0.1:8000/v1; None = litellm's own."""
    dialect: Dialect = "chat"
    """What is spoken at `base_url`. Agents that speak it are passed on, others are translated."""
    model: str | None = None
    """The name sent on the wire; None = the model name without its provider."""
    api_key_env: str | None = None
    api_key_file: str | None = None
    timeout: Duration = parse_duration("10m")
    max_parallel: int = Field(default=64, ge=1)
    """Calls under way at once, of each process."""
    rpm: int | None = Field(default=None, ge=1)
    """Calls a minute, shared fairly between runs; None = no limit of ours."""
    tpm: int | None = Field(default=None, ge=1)
    """Tokens a minute, prompts and replies, likewise."""

    def fits(self, model: str) -> bool:
        """Whether calls of this model go here, unless an earlier endpoint fits."""
        if self.match.endswith("*"):
            return model.startswith(self.match[:-1])
        return model == self.match


class SandboxProfile(Record):
    runtime: Literal["auto", "bubblewrap", "gvisor", "kubernetes", "none"] = "auto"
    """auto = bubblewrap if a probe shows it works, else gVisor, else refuse. kubernetes = each
    session is a pod."""
    agent_env: str | None = None
    """A Python environment shown read-only to agents; None = the one that set-up made."""
    kubernetes: KubernetesProfile | None = None

    @model_validator(mode="after")
    def _pods_are_described(self) -> Self:
        if self.runtime == "kubernetes" and self.kubernetes is None:
            raise ValueError("runtime: kubernetes needs a `kubernetes:` block with an image")
        return self


class Concurrency(Record):
    """How much is in flight at once; None = the number of CPU cores."""

    runs: int | None = Field(default=None, ge=1)
    gradings: int | None = Field(default=None, ge=1)
    customer_calls: int = Field(default=32, ge=1)
    judge_calls: int = Field(default=32, ge=1)


class RayProfile(Record):
    """The processes of `engine: ray`. RAY_ADDRESS names a cluster to join; without it, one starts
    here."""

    supervisors: int | None = Field(default=None, ge=1, le=256)
    """None = one for every two cores here, at most four."""
    pool_least: int = Field(default=1, ge=1, le=256)
    """Members that each pool has at least; more follow the calls in flight."""
    pool_most: int = Field(default=16, ge=1, le=256)
    pending_calls: int = Field(default=256, ge=1)
    """Calls that one supervisor may have waiting at one pool member; above, questions wait in their
    rows."""


class Profile(Record):
    schema_: Literal["fde_ray.profile/1"] = Field(alias="schema", default="fde_ray.profile/1")
    tenant: str = Field(default="local", pattern=r"^[a-z0-9-]{1,40}$")
    home: str | None = None
    """State folder; None = $FDE_RAY_HOME, else ~/.fde-ray."""
    store: StoreProfile | None = None
    """The run store, a PostgreSQL database; None = a SQLite file in the state folder."""
    objects: ObjectsProfile | None = None
    """The object store; None = a folder below the state folder."""
    cases: str | None = None
    """Folder of case packages; None = those that ship with this project."""
    sandbox: SandboxProfile = SandboxProfile()
    endpoints: tuple[Endpoint, ...] = ()
    prices: str | None = None
    """Price table (YAML); None = the one that ships with this project."""
    compute: ComputeProfile = ComputeProfile()
    concurrency: Concurrency = Concurrency()
    scheduling: SchedulingProfile = SchedulingProfile()
    engine: Literal["inline", "ray"] = "inline"
    """inline = all in one process; ray = supervisors and pools as processes of their own."""
    ray: RayProfile = RayProfile()
    planes: PlanesProfile = PlanesProfile()
    tokens: TokensProfile = TokensProfile()
    people: PeopleProfile = PeopleProfile()
    attempts: int = Field(default=3, ge=1, le=20)
    """Equal infrastructure losses that put a run into quarantine; losses of several kinds do when
    they are three times as many. Also the tries of a grading."""
    other_models: OtherModels = "map"
    """A call of another model than the run's: map = the run's model answers, and the ledger tells;
    refuse = an error for the agent."""
    unpriced_models: UnpricedModels = "refuse"
    """What becomes of a model that has no price: refuse = no sweep with it is taken, and no call of
    it goes out; allow = its cost is unknown, and its calls are refused under a budget."""
    provider_retries: int = Field(default=4, ge=0, le=20)
    snapshot_every: Duration = parse_duration("30m")
    heartbeat_every: Duration = parse_duration("5s")
    patrol_every: Duration = parse_duration("2s")
    """Between two looks at which sandboxes have ended without a word."""

    def __repr__(self) -> str:
        return f"Profile(tenant={self.tenant!r}, runtime={self.sandbox.runtime!r})"
