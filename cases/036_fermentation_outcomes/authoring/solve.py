"""Solve the case under full or partial knowledge and write each answer to `outputs/`.

Every variant runs the same models with the same seeds; only what it knows of `params.json`
differs. Needs numpy and scikit-learn. `--methods` prints how single methods compare instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import features as f
import numpy as np
from features import Matrix
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor
from sklearn.linear_model import QuantileRegressor, RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from fde_ray.cases.authoring.writers import csv_text, json_text, write

CASE_DIR = Path(__file__).resolve().parent.parent
SEED = 3
COLUMNS = ("batch_id", "titre_g_l", "duration_h", "productivity_g_l_h")
DIGITS = (3, 2, 4)
DURATION = 1
SAMPLE_STEP = 2.0
LINE_WEIGHT = 0.3
MOVES = np.linspace(0.7, 1.3, 241)
HARM = np.array([1.0, -1.0, 1.0])

NAIVE: dict[str, Any] = {
    "outcome_moment": "last_sample",
    "titre_basis": "broth",
    "clock_zero": "fill",
    "optimistic_tolerance_share": 1.0,
    "void_alarm_code": "none",
}
NESTED = (
    "void_alarm_code",
    "titre_basis",
    "outcome_moment",
    "clock_zero",
    "optimistic_tolerance_share",
)


def without(count: int) -> dict[str, Any]:
    """Naive values for all but the first `count` points in the nested order."""
    return {name: NAIVE[name] for name in NESTED[count:]}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "reference": ("stack", {}),
    "literal": ("stack", dict(NAIVE)),
    "ungated_literal": ("stack", without(1)),
    "oracle_25": ("stack", without(2)),
    "oracle_50": ("stack", without(3)),
    "oracle_75": ("stack", without(4)),
    "greedy_full": ("neighbours_late", {}),
    "knock_harvest_moment_1": ("stack", {"outcome_moment": "last_sample"}),
    "knock_harvest_moment_2": ("stack", {"outcome_moment": "first_low_glucose"}),
    "knock_titre_basis_1": ("stack", {"titre_basis": "broth"}),
    "knock_clock_zero_1": ("stack", {"clock_zero": "fill"}),
    "knock_error_scale_1": ("stack", {"optimistic_tolerance_share": 1.0}),
    "knock_error_scale_2": ("stack", {"optimistic_tolerance_share": 2.5}),
    "knock_void_batches_1": ("stack", {"void_alarm_code": "none"}),
    "knock_void_batches_2": ("stack", {"void_alarm_code": "any"}),
    "qualitative_error_scale_half": ("stack", {"optimistic_tolerance_share": 0.2}),
    "qualitative_error_scale_double": ("stack", {"optimistic_tolerance_share": 0.8}),
    "constant_mean": ("mean", {"optimistic_tolerance_share": 1.0}),
    "constant_quantile": ("mean", {}),
    "shortcut_strain_mean": ("strain_mean", {}),
}


def ridge(_: int) -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 13)))


def mean(_: int) -> Any:
    return DummyRegressor()


def log_ridge(seed: int) -> Any:
    return logarithmic(ridge(seed))


def logarithmic(model: Any) -> Any:
    return TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)


def vectors(_: int) -> Any:
    kernel = TransformedTargetRegressor(
        SVR(C=10.0, gamma=0.002, epsilon=0.05), transformer=StandardScaler()
    )
    return logarithmic(make_pipeline(StandardScaler(), kernel))


def boosting(seed: int) -> Any:
    return logarithmic(
        GradientBoostingRegressor(
            n_estimators=400,
            learning_rate=0.04,
            max_depth=3,
            subsample=0.6,
            max_features=0.3,
            random_state=seed,
        )
    )


def trees(seed: int) -> Any:
    return logarithmic(
        ExtraTreesRegressor(300, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1)
    )


def quantile_line(level: float) -> Any:
    line = QuantileRegressor(quantile=level, alpha=0.003)
    return logarithmic(make_pipeline(StandardScaler(), line))


def neighbours(_: int) -> Any:
    return make_pipeline(StandardScaler(), KNeighborsRegressor(10))


MEMBERS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "ridge_plain": ("plain", ridge),
    "ridge_full": ("full", ridge),
    "log_ridge_plain": ("plain", log_ridge),
    "log_ridge_full": ("full", log_ridge),
    "vectors": ("plain", vectors),
    "boosting": ("full", boosting),
}
SIMPLE: dict[str, tuple[str, Callable[[int], Any]]] = {
    "mean": ("strain", mean),
    "strain_mean": ("strain", ridge),
    "neighbours_late": ("late", neighbours),
    "ridge_late": ("late", ridge),
    "trees": ("full", trees),
}


class Bench:
    """Fits of one labelling of the finished batches, shared by variants that differ otherwise."""

    def __init__(self, tables: f.Tables, params: Mapping[str, Any], seed: int = SEED) -> None:
        self._seed = seed
        rule = params["void_alarm_code"]
        past = [batch for batch in tables.finished() if not f.is_void(batch, rule)]
        self.ahead = [batch for batch in tables.running() if not f.is_void(batch, rule)]
        self.labels = np.array(
            [f.booked(batch, tables.assays[batch["batch_id"]], params) for batch in past]
        )
        self._views = {
            side: {name: self._view(tables, rows, name) for name in ("plain", "late", "strain")}
            for side, rows in (("past", past), ("ahead", self.ahead))
        }
        for side, rows in (("past", past), ("ahead", self.ahead)):
            mechanistic = self._view(tables, rows, "mechanistic")
            view = self._views[side]
            view["full"] = np.hstack([view["plain"], mechanistic])
        from_fill = params["clock_zero"] == "fill"
        self._holds = {
            side: np.array([0.0 if from_fill else f.hold_hours(batch) for batch in rows])
            for side, rows in (("past", past), ("ahead", self.ahead))
        }
        self._fits: dict[str, tuple[Matrix, Matrix]] = {}

    @staticmethod
    def _view(tables: f.Tables, rows: list[f.Row], name: str) -> Matrix:
        makers: dict[str, Callable[[f.Row, list[f.Row]], list[float]]] = {
            "plain": f.plain_features,
            "mechanistic": f.mechanistic_features,
            "late": f.late_features,
            "strain": lambda batch, _: [float(batch["strain"] == name) for name in f.STRAINS],
        }
        make = makers[name]
        return np.array([make(batch, tables.sensors[batch["batch_id"]]) for batch in rows])

    def fit(self, member: str) -> tuple[Matrix, Matrix]:
        """Out-of-fold figures of the past and figures for the batches ahead."""
        if member not in self._fits:
            view, make = {**MEMBERS, **SIMPLE}[member]
            past, ahead = self._views["past"][view], self._views["ahead"][view]
            folds = KFold(5, shuffle=True, random_state=self._seed)
            unseen, figures = [], []
            for goal in range(self.labels.shape[1]):
                labels = self.labels[:, goal]
                unseen.append(cross_val_predict(make(self._seed), past, labels, cv=folds))
                figures.append(make(self._seed).fit(past, labels).predict(ahead))
            self._fits[member] = np.column_stack(unseen), np.column_stack(figures)
        return self._fits[member]

    def bounds(self, share: float) -> tuple[Matrix, Matrix]:
        """Linear fits of the wanted quantile itself, out of fold and ahead."""
        past, ahead = self._views["past"]["plain"], self._views["ahead"]["plain"]
        folds = KFold(5, shuffle=True, random_state=self._seed)
        unseen, figures = [], []
        for goal, level in enumerate(levels(share)):
            labels = self.labels[:, goal]
            unseen.append(cross_val_predict(quantile_line(level), past, labels, cv=folds))
            figures.append(quantile_line(level).fit(past, labels).predict(ahead))
        return np.column_stack(unseen), np.column_stack(figures)

    def moved(self, members: list[str], share: float) -> tuple[Matrix, Matrix]:
        """Mean of the members, moved to the quantile that the two-sided tolerance asks for."""
        fits = [self.fit(member) for member in members]
        unseen = np.mean([fit[0] for fit in fits], axis=0)
        ahead = np.mean([fit[1] for fit in fits], axis=0)
        ratios = self.labels / unseen
        moves = np.array(
            [np.quantile(ratios[:, goal], level) for goal, level in enumerate(levels(share))]
        )
        return unseen * moves, ahead * moves

    def stack(self, members: list[str], share: float) -> Matrix:
        """Members and quantile lines blended; durations end at a sample, as booked ones do."""
        sides = zip(self.moved(members, share), self.bounds(share), strict=True)
        unseen, ahead = ((1.0 - LINE_WEIGHT) * mean + LINE_WEIGHT * line for mean, line in sides)
        move = self._best_move(unseen[:, DURATION], share)
        ahead[:, DURATION] = to_sample(ahead[:, DURATION] * move, self._holds["ahead"])
        return np.asarray(ahead)

    def _best_move(self, unseen: Matrix, share: float) -> float:
        """Factor on durations that costs least in the past once they end at a sample."""
        costs = []
        for move in MOVES:
            late = to_sample(unseen * move, self._holds["past"]) - self.labels[:, DURATION]
            costs.append(np.where(late < 0, -late / share, late).mean())
        return float(MOVES[int(np.argmin(costs))])


def levels(share: float) -> list[float]:
    """Quantile of each goal at which a promise costs least when rosy errors weigh 1 / share."""
    level = share / (1.0 + share)
    return [level if harm > 0 else 1.0 - level for harm in HARM]


def to_sample(durations: Matrix, holds: Matrix) -> Matrix:
    """Return durations prolonged to the next sample time, which counts from vessel fill."""
    return np.asarray(np.ceil((durations + holds) / SAMPLE_STEP) * SAMPLE_STEP - holds)


def answer_text(batches: list[f.Row], figures: Matrix) -> str:
    rows = []
    for batch, line in zip(batches, figures, strict=True):
        rounded = [round(float(value), digits) for value, digits in zip(line, DIGITS, strict=True)]
        rows.append(dict(zip(COLUMNS, [batch["batch_id"], *rounded], strict=True)))
    return csv_text(COLUMNS, rows)


def labelling(params: Mapping[str, Any]) -> str:
    return json.dumps([params[name] for name in NESTED[:-1]])


def solve(names: list[str]) -> None:
    params = read_params()
    tables = f.read_tables(CASE_DIR / "data")
    benches: dict[str, Bench] = {}
    for name in names:
        method, unknown = VARIANTS[name]
        assumed = {**params, **unknown}
        key = labelling(assumed)
        if key not in benches:
            benches[key] = Bench(tables, assumed)
        bench = benches[key]
        share = assumed["optimistic_tolerance_share"]
        if method == "stack":
            figures = bench.stack(list(MEMBERS), share)
        else:
            figures = bench.moved([method], share)[1]
        write(Path(__file__).parent / "outputs" / f"{name}.csv", answer_text(bench.ahead, figures))


def scaled_errors(figures: Matrix, truth: Matrix, params: Mapping[str, Any]) -> Matrix:
    names = ("tolerance_titre_g_l", "tolerance_duration_h", "tolerance_productivity_g_l_h")
    tolerance = np.array([params[name] for name in names])
    rosy = (figures - truth) * HARM > 0
    share = np.where(rosy, params["optimistic_tolerance_share"], 1.0)
    return np.asarray(np.abs(figures - truth) / (tolerance * share))


def read_params() -> dict[str, Any]:
    params: dict[str, Any] = json.loads(
        (CASE_DIR / "sealed" / "params.json").read_text(encoding="utf-8")
    )
    return params


def full_knowledge(seed: int) -> Callable[[list[str], bool], float]:
    """Return a function from members, stacked or merely averaged, to the scored error."""
    params = read_params()
    bench = Bench(f.read_tables(CASE_DIR / "data"), params, seed)
    outcomes = {
        row["batch_id"]: [float(row[name]) for name in COLUMNS[1:]]
        for row in f.read_rows(CASE_DIR / "sealed" / "truth" / "outcomes.csv")
    }
    truth = np.array([outcomes[batch["batch_id"]] for batch in bench.ahead])
    share = params["optimistic_tolerance_share"]

    def error_of(members: list[str], stacked: bool) -> float:
        figures = bench.stack(members, share) if stacked else bench.moved(members, share)[1]
        return float(scaled_errors(figures, truth, params).mean())

    return error_of


def compare_methods() -> None:
    """Print the scored error of methods and subsets, averaged and as a stack."""
    error_of = full_knowledge(SEED)
    groups = {name: [name] for name in (*MEMBERS, *SIMPLE)}
    groups |= {f"without {name}": [m for m in MEMBERS if m != name] for name in MEMBERS}
    groups |= {"all": list(MEMBERS), "all and trees": [*MEMBERS, "trees"]}
    for name, members in groups.items():
        print(f"{name:24} {error_of(members, False):.4f} {error_of(members, True):.4f}")


def measure_noise() -> None:
    """Write the spread of the reference quality over five seeds."""
    errors = [full_knowledge(SEED + step)(list(MEMBERS), True) for step in range(5)]
    qualities = [errors[0] / error for error in errors]
    record = {
        "sigma": round(float(np.std(qualities, ddof=1)), 5),
        "errors": [round(error, 5) for error in errors],
    }
    write(Path(__file__).parent / "outputs" / "noise.json", json_text(record))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("names", nargs="*", default=list(VARIANTS))
    arguments = parser.parse_args()
    if arguments.methods:
        compare_methods()
    elif arguments.noise:
        measure_noise()
    else:
        solve(arguments.names)


if __name__ == "__main__":
    main()
