"""The texts of case 914: request, knowledge, evaluator, generator and the programs."""

REQUEST_TOML = """\
format = "fde_ray.case/1"
id = 914
slug = "stock_refill"
title = "Refilling a shelf"
family = "co"
subtype = "inventory"
scenario_tags = ["retail", "refill", "policy"]
version = "1.0.0"
direction = "min"
kind = "executable"
objective_text = "Cents for deliveries and for pieces that stay overnight, over all shops."
hard_constraints = ["no_answer", "plan_form", "shelf_full", "stock_out"]
seed_public = 914
canary = "CANARY"
locale = "en"
licence = "Apache-2.0"
data_licences = ["Apache-2.0 (generated)"]

[limits]
eval_s = 10
eval_mib = 256
submission_mib = 1

[program]
entry = "policy.py"
instance_s = 10
instance_mib = 256

[units]
length = "not used"
mass = "not used"
time = "day"
money = "cent"
"""

INSTRUCTION = """\
We run a few small corner shops and I am tired of guessing how much to order. Please write me a
Python program called policy.py that works out the refills of one shop. It reads the shop from its
standard input as JSON: opening_stock is what lies there in the morning of the first day, and demand
lists what customers will take, day by day. It prints JSON with one list, orders: how much is to be
delivered each morning, before the customers come. Nobody may find the place empty, and it should
cost us as little as it can. An example of a shop is in the data folder. We will run your program
for all our shops, also for those that you have not seen, so please do not fit it to the example.
"""

_FILLER = """\
The shops were opened by my aunt, who still comes by on Saturdays to look at the till.
Two of them lie in the old town and one is beside the railway station.
The shelves were painted green last spring, and the paint has held well so far.
Our lorry is shared with a bakery, which has no influence on what we may order.
The bakery's drivers like to have coffee with us, and nobody minds that.
Customers mostly come in the morning and in the late afternoon.
Nobody has ever asked for a refund of what we sell, and we sell only one article.
The article is a plain cardboard box with matches, always from the same maker.
The maker has changed the picture on the lid twice, which sales did not notice.
We count the boxes every evening, and the count has been right for years.
The person who counts is paid by the month, however much there is to count.
There is a cellar, but it is damp, and so it is used for bottles alone.
The bottles belong to a neighbour and have nothing to do with our refills.
We close on public holidays, and the lists that you get leave these out already.
"""


def _section(heading: str, first: str, repeats: int, start: int) -> str:
    lines = _FILLER.splitlines()
    chosen = [lines[(start + n) % len(lines)] for n in range(repeats)]
    return "\n".join([f"## {heading}", "", *([first] if first else []), *chosen, ""])


INFORMATION = "\n".join(
    [
        _section("Background", "", 8, 0),
        _section("Deliverable", "A program in one file, or with modules beside it.", 6, 8),
        _section("Data notes", "The example is a shop like the others.", 6, 3),
        _section(
            "Business rules",
            "The shelf holds at most 16 pieces, counted in the morning after the lorry has been.\n"
            "The last 2 pieces are for show and are never sold, so that many must be there each "
            "evening.",
            7,
            5,
        ),
        _section(
            "Computation conventions",
            "Every delivery costs us 30 cents, however large it is, and each piece that stays "
            "overnight costs one cent.",
            7,
            9,
        ),
        _section("Acceptance", "We add up the cents of all shops.", 6, 1),
        _section("Not in scope", "Prices, other articles and the cellar.", 6, 6),
    ]
)

POLICY = '''\
"""Plans the refills of one shop."""

import json
import sys

SHELF = {shelf}
SHOWN = {shown}
FEE = {fee}
STYLE = "{style}"


def plan(opening, demand):
    if STYLE == "greedy":
        return filled(opening, demand)
    if STYLE == "steady":
        return steady(opening, demand)
    return cheapest(opening, demand)


def filled(opening, demand):
    stock, orders = opening, []
    for wanted in demand:
        order = SHELF - stock if stock - wanted < SHOWN + 4 else 0
        orders.append(order)
        stock += order - wanted
    return orders


def steady(opening, demand):
    stock, orders = opening, []
    for wanted in demand:
        order = max(wanted + SHOWN - stock, 0)
        orders.append(order)
        stock += order - wanted
    return orders


def cheapest(opening, demand):
    """Cheapest way to each stock at the end of each day; ties go to the smaller order."""
    ways = {{opening: (0, ())}}
    for wanted in demand:
        found = {{}}
        for stock, (cost, orders) in sorted(ways.items()):
            for order in range(0, SHELF - stock + 1):
                left = stock + order - wanted
                if left < SHOWN:
                    continue
                way = (cost + left + (FEE if order else 0), (*orders, order))
                if left not in found or way < found[left]:
                    found[left] = way
        ways = found
    return list(min(ways.values())[1])


def main():
    shop = json.load(sys.stdin)
    print(json.dumps({{"orders": plan(shop["opening_stock"], shop["demand"])}}))


if __name__ == "__main__":
    main()
'''

EVALUATOR = '''\
"""Scores the plans of a refill program: cents for deliveries and for stock overnight."""

# canary CANARY

# READER


MAX_BYTES = 1 << 20
RUNS = "_runs.json"
INSTANCES = "truth/instances"


def load(data_dir: str, sealed_dir: str) -> dict[str, Any]:
    """Return the parameters and the hidden shops by name."""
    folder = os.path.join(sealed_dir, *INSTANCES.split("/"))
    names = sorted(os.listdir(folder))
    return {
        "params": read_json(sealed_dir, "params.json", max_bytes=MAX_BYTES),
        "shops": {name: read_json(folder, name, max_bytes=MAX_BYTES) for name in names},
    }


def judge(
    world: dict[str, Any], submission_dir: str, found: Violations
) -> tuple[float | None, dict[str, Any]]:
    """Return the cents over all shops, and their two parts."""
    if read_json(submission_dir, RUNS, max_bytes=MAX_BYTES)["entry"] is None:
        raise Structural("missing_file", "policy.py")
    fees = nights = 0
    for name, shop in world["shops"].items():
        if not os.path.exists(os.path.join(submission_dir, name)):
            found.add("no_answer", name)
            continue
        orders = orders_of(submission_dir, name, len(shop["demand"]), found)
        fees += sum(1 for order in orders if order) * world["params"]["delivery_fee_cents"]
        nights += nights_of(name, shop, orders, world["params"], found)
    if len(found):
        return None, {}
    return float(fees + nights), {"delivery_cents": fees, "overnight_cents": nights}


def orders_of(submission_dir: str, name: str, days: int, found: Violations) -> list[int]:
    """Return the orders of one shop; an empty list if they are no plan."""
    answer = read_json(submission_dir, name, max_bytes=MAX_BYTES)
    orders = answer.get("orders") if isinstance(answer, dict) else None
    if not isinstance(orders, list) or len(orders) != days:
        found.add("plan_form", name)
        return []
    return [as_integer(order, name, 0, 10**6) for order in orders]


def nights_of(
    name: str, shop: dict[str, Any], orders: list[int], params: dict[str, Any], found: Violations
) -> int:
    """Return the pieces that lie there overnight, added up; tell of a full or bare shelf."""
    stock, total = shop["opening_stock"], 0
    for day, (order, wanted) in enumerate(zip(orders, shop["demand"]), start=1):
        stock += order
        if stock > params["shelf_pieces"]:
            found.add("shelf_full", f"{name} day {day}")
        stock -= wanted
        if stock < params["shown_pieces"]:
            found.add("stock_out", f"{name} day {day}")
        total += max(stock, 0)
    return total


def main() -> int:
    return run_evaluator(
        sys.argv[1:],
        case="914",
        version="1.0.0",
        direction="min",
        evaluator=__file__,
        load=load,
        judge=judge,
    )


sys.exit(main())
'''

GENERATOR = '''\
"""Writes the example; it follows from nothing hidden."""

import json
from pathlib import Path

data = Path(__file__).resolve().parents[1] / "data"
data.mkdir(exist_ok=True)
example = {"opening_stock": 10, "demand": [3, 5, 4, 6, 2, 5, 4]}
(data / "example_shop.json").write_text(json.dumps(example) + "\\n", encoding="utf-8")
'''
