"""Payback, the full price of a migration, and what measured throughput gets for a unit of money."""

from __future__ import annotations

import datetime
import itertools
import json
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness import report, requirements, trial
from shakedown.readiness.cost import compiled, inputs, prices, ranges, work
from shakedown.readiness.cost.payback import Payback, judged, payback
from shakedown.readiness.errors import BadInput
from shakedown.readiness.record import Record

from .support import TINY, InProcess, quick

run = CliRunner()
TODAY = datetime.date(2026, 11, 30)
PLAIN = {
    "port.weeks": "6",
    "port.engineers": "2",
    "port.hours_per_week": "40",
    "port.rate": "120",
    "compute.monthly_before": "90000",
    "compute.monthly_after": "60000",
}
OPTIONS = ["--port-weeks", "6", "--engineers", "2", "--hours-per-week", "40", "--rate", "120"]


def worked_out(**changed: object) -> Payback:
    options = PLAIN | {name.replace("__", "."): value for name, value in changed.items()}
    return payback(inputs.load(None, options), TODAY)


# --- payback ------------------------------------------------------------------------------------------------------------


def test_port_cost_saving_and_months_of_plain_inputs() -> None:
    done = run.invoke(cli.app, ["payback", *OPTIONS, "--monthly-before", "90000", "--monthly-after", "60000", "--json"])
    assert done.exit_code == 0, done.output
    found = Payback.model_validate_json(done.stdout)
    assert found.port_cost.likely == 57_600
    assert found.saving.likely == found.net_saving.likely == 30_000
    assert found.months.low == found.months.likely == found.months.high == Decimal("1.92")
    assert found.from_start.likely == Decimal("3.31")  # and six weeks before the switch, rounded up
    assert found.verdict == "pays back"
    assert found.sentence.startswith("pays back in 1.92 months after the switch, within the horizon of 24 months")
    assert found.currency == "USD"


def test_ranges_reach_from_the_best_corner_to_the_worst() -> None:
    found = worked_out(port__weeks="4..6..9", port__rate="100..150", compute__monthly_after="60000..70000..85000")
    assert (found.port_cost.low, found.port_cost.likely, found.port_cost.high) == (32_000, 60_000, 108_000)
    assert (found.saving.low, found.saving.likely, found.saving.high) == (5_000, 20_000, 30_000)
    assert (found.months.low, found.months.likely, found.months.high) == (
        Decimal("1.07"),  # 32,000 / 30,000
        Decimal("3.00"),
        Decimal("21.60"),  # 108,000 / 5,000
    )
    assert ranges.MIDDLE_RULE in found.rules
    assert found.sentence.startswith("pays back in 3.0 months (1.1 to 21.6)")


amount = st.integers(1, 1000).map(Decimal)
ends = st.tuples(amount, amount).map(sorted)


@settings(max_examples=20, deadline=None)
@given(*[ends] * 5)
def test_no_combination_of_inputs_lies_outside(weeks, rate, before, after, upkeep) -> None:
    spans = {
        "port__weeks": weeks,
        "port__rate": rate,
        "compute__monthly_before": before,
        "compute__monthly_after": after,
        "kernel_upkeep__hours_per_month": upkeep,
        "parallel_run__months": weeks,
    }
    whole = worked_out(horizon_months=3, **{name: f"{low}..{high}" for name, (low, high) in spans.items()})
    seen = []
    for corner in itertools.product(*spans.values()):
        one = worked_out(horizon_months=3, **dict(zip(spans, corner)))
        seen.append(one.months.likely)
        assert whole.net_saving.low <= one.net_saving.likely <= whole.net_saving.high
        for point, wide in zip(one.curve, whole.curve):
            assert wide.low <= point.likely <= wide.high
    never = None in seen
    assert whole.months.high == (None if never else max(seen))
    assert whole.months.low == min((months for months in seen if months is not None), default=None)


@pytest.mark.parametrize(
    ("after", "horizon", "verdict", "says", "code"),
    [
        ("90000", 24, "no savings", "no savings on these inputs", 1),
        ("89000..120000", 24, "no savings", "no savings on these inputs", 1),
        ("60000", 1, "not within the horizon", "does not pay back within the horizon of 1 months: it takes 2.0", 1),
        ("60000..95000", 24, "depends on the inputs", "never on the unfavourable inputs", 0),
        ("60000..89000..89900", 24, "depends on the inputs", "on the favourable inputs only", 1),
    ],
)
def test_verdicts(after: str, horizon: int, verdict: str, says: str, code: int) -> None:
    # With 32,000 a month for kernels, a saving of 1,000 is none.
    extra = (
        {"kernel_upkeep__hours_per_month": "320", "kernel_upkeep__rate": "100"} if after.startswith("89000.") else {}
    )
    found = worked_out(compute__monthly_after=after, horizon_months=horizon, **extra)
    assert found.verdict == verdict
    assert says in found.sentence
    costs = ["--monthly-before", "90000", "--monthly-after", after, "--horizon", str(horizon)]
    if not extra:
        done = run.invoke(cli.app, ["payback", *OPTIONS, *costs])
        assert done.exit_code == code, done.output
        assert says in done.stdout


def test_the_curve_crosses_zero_where_the_months_say() -> None:
    found = worked_out(horizon_months=6)
    assert [(p.month, p.likely) for p in found.curve][:3] == [(0, -57_600), (1, -27_600), (2, 2_400)]
    assert len(found.curve) == 7
    assert found.at_horizon == found.curve[-1]
    wide = worked_out(port__weeks="4..6..9", compute__monthly_after="50000..60000..70000")
    assert all(p.low <= p.likely <= p.high for p in wide.curve)
    assert wide.curve[0].low == -86_400  # the worst of what is paid once


def test_every_other_cost_has_amount_formula_and_source(tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    file.write_text(
        'currency = "EUR"\nhorizon_months = 12\n'
        '[port]\nweeks = 6\nengineers = 2\nhours_per_week = 40\nrate = "120"\n'
        "[compute]\nmonthly_before = 90000\nmonthly_after = 60000\n"
        "[compilation]\nhours = 2.5\ninstance_hour = 40\nper_month = 3\n"
        "[parallel_run]\nmonths = 1.5\n"
        "[storage]\ngigabytes = 1000\n"
        'gigabyte_month = { value = "0.023", source = "price list of the store", date = 2026-11-01 }\n'
        "[network]\ngigabytes_once = 2000\ngigabyte = 0.09\n"
        "[observability]\nmonthly = 600\n"
        "[kernel_upkeep]\nhours_per_month = 10\n"
    )
    found = payback(inputs.load(file, {}), TODAY)
    amounts = {line.name: line.amount.likely for line in found.lines if line.amount}
    assert amounts == {
        "engineering": 57_600,
        "compilation": 100,
        "compilation again": 300,
        "idle capacity": 90_000,
        "storage": 23,
        "network (once)": 180,
        "observability (monthly)": 600,
        "kernel upkeep": 1_200,
        "compute bill": 30_000,
    }
    assert found.not_given == ["network (monthly)", "observability (once)"]
    missing = {line.name: line.missing for line in found.lines if line.amount is None}
    assert missing["network (monthly)"] == ["network.gigabytes_monthly"]
    assert "not given, and not in it: network (monthly), observability (once)" in found.sentence
    assert found.once.likely == 57_600 + 100 + 90_000 + 180
    assert found.net_saving.likely == 30_000 - 300 - 23 - 600 - 1_200
    # The port's six weeks and the parallel run lie before the switch.
    assert found.months.likely is not None
    assert found.from_start.likely is not None
    assert float(found.from_start.likely - found.months.likely) == pytest.approx(6 * 12 / 52 + 1.5, abs=0.01)
    idle = next(line for line in found.lines if line.name == "idle capacity")
    assert idle.formula == "months x compute.monthly_after"
    storage = next(line for line in found.lines if line.name == "storage").inputs[1]
    assert (storage.source, storage.said, storage.date) == (
        "documented",
        "price list of the store",
        datetime.date(2026, 11, 1),
    )
    said = run.invoke(cli.app, ["payback", "--file", str(file), "--rate", "100..150"]).stdout
    assert "gigabyte_month 0.023 (documented: price list of the store, 2026-11-01)" in said
    assert "port.rate 100..125..150 (given)" in said  # options go before the file
    assert "60,000 (48,000 to 72,000)" in said
    assert "EUR" in said
    assert "network (monthly)        monthly        network.gigabytes_monthly" in said


def test_what_is_not_given_is_not_zero() -> None:
    found = worked_out()
    assert found.monthly is None
    assert "kernel upkeep" in found.not_given
    said = run.invoke(cli.app, ["payback", *OPTIONS, "--monthly-before", "9e4", "--monthly-after", "6e4"]).stdout
    assert "less paid a month    nothing given" in said


def test_the_template_holds_every_key_and_loads(tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    assert run.invoke(cli.app, ["payback", "--init", "--file", str(file)]).exit_code == 0
    again = run.invoke(cli.app, ["payback", "--init", "--file", str(file)])
    assert again.exit_code == 2
    assert "already there" in again.stderr
    assert run.invoke(cli.app, ["payback", "--file", str(file)]).exit_code == 2  # nothing is filled in
    filled = "\n".join(
        line[1:] if line.startswith("#") and line[1] != " " else line for line in file.read_text().split("\n")
    )
    known = {
        f"{section}.{key}"
        for section, field in inputs.Costs.model_fields.items()
        if isinstance(field.default, inputs.Section)
        for key in type(field.default).model_fields
    }
    assert {f"{s}.{k}" for s, table in tomllib.loads(filled).items() if isinstance(table, dict) for k in table} == known
    file.write_text(filled)
    assert not payback(inputs.load(file, {}), TODAY).not_given


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[port]\nweeks = '9..6'", "port.weeks: '9..6' is not in rising order"),
        ("[port]\nweeks = '1..2..3..4'", "has 4 parts"),
        ("[port]\nweeks = '90,000'", "leave out the commas"),
        ("[port]\nweeks = -1", "is negative"),
        ("[port]\nweeks = true", "is not a number"),
        ("[port]\nweeks = 'nan'", "not a finite number"),
        ("[port]\nweek = 6", "port.week: there is no such key"),
        ("[port]\nweeks = { value = 6 }", "names its source"),
        ("currency = 'dollars'", "three capital letters"),
        ("horizon_months = 0", "horizon_months"),
        ("port = 6", "port"),
        ("[port", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "costs.toml"
    file.write_text(text)
    done = run.invoke(cli.app, ["payback", "--file", str(file), "--json"])
    assert done.exit_code == 2, done.output
    error = json.loads(done.stdout)["error"]
    assert says in error
    assert "costs.toml" in error


def test_missing_options_are_all_named() -> None:
    done = run.invoke(cli.app, ["payback", "--rate", "120", "--engineers", "2", "--hours-per-week", "40"])
    assert done.exit_code == 2
    for option in ("--port-weeks", "--monthly-before", "--monthly-after"):
        assert option in done.stderr
    assert "--rate" not in done.stderr
    assert run.invoke(cli.app, ["payback", "--file", "/nowhere.toml"]).exit_code == 2


def test_money_is_decimal_and_not_more_exact_than_it_is() -> None:
    exact = worked_out(port__rate="0.1", port__weeks="3", port__engineers="1", port__hours_per_week="1")
    assert exact.port_cost.likely == Decimal("0.30")  # 0.1 three times is not 0.3 in binary
    assert ranges.money(ranges.exactly(57_600), "USD") == "57,600 USD"
    assert ranges.money(ranges.parse("38412.7..51234.5..69123.4", "x"), "USD") == "51,200 (38,400 to 69,100) USD"
    assert ranges.parse("4..9", "x").likely == Decimal("6.5")


# --- measured compile times and throughput ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny workload on the CPU and on the embedded device, timed whatever else the machine does."""
    folder = tmp_path_factory.mktemp("cost")
    demand = quick(folder)
    text = demand.read_text().replace("[timing]\n", "[timing]\nrefuse_foreign_load = 1e9\nrefuse_spread = 1e9\n")
    demand.write_text(
        f"{text}[costs]\ncurrency = 'EUR'\nhorizon_months = 12\n"
        "[costs.port]\nweeks = '4..6..9'\nengineers = 2\nhours_per_week = 40\nrate = 120\n"
        "[costs.compute]\nmonthly_before = 90000\nmonthly_after = '60000..70000'\n"
        "[costs.network]\ngigabytes_once = 100\n"
        "gigabyte = { value = '0.09', source = 'price list of the network', date = 2026-11-01 }\n"
    )
    request = trial.Request(
        str(TINY),
        folder / "run",
        target="neuron",
        modes=("eager",),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=demand,
        quick=True,
    )
    running = trial.Trial(trial.check(request), lambda what, share: None, InProcess())
    for stage in (running.prepare, running.references, running.candidates, running.truth, running.finish):
        stage()
    return folder / "run"


@pytest.fixture(scope="module")
def record(rehearsal: Path) -> Record:
    return records.load(rehearsal)


def as_measured(record: Record, compile_seconds: float | None = None) -> Record:
    """What the same record would be from the device itself: the label, and who is said to have been timed."""
    timings = [timing.model_copy(update={"kind": "measured"}) for timing in record.judgement.timings]
    cells = record.judgement.cells
    if compile_seconds is not None:
        cells = [
            cell.model_copy(
                update={
                    "cases": [
                        case.model_copy(
                            update={
                                "paths": case.paths
                                and case.paths.model_copy(update={"compiled": 4, "compile_seconds": compile_seconds})
                            }
                        )
                        for case in cell.cases
                    ]
                }
            )
            for cell in cells
        ]
    judgement = record.judgement.model_copy(update={"timings": timings, "cells": cells})
    return record.model_copy(update={"label": "measurement", "judgement": judgement})


def test_a_rehearsal_is_never_priced_as_trainium(rehearsal: Path, record: Record) -> None:
    assert record.label == "rehearsal"
    done = run.invoke(cli.app, ["price", str(rehearsal), "--instance", "trn2.48xlarge", "--json"])
    assert done.exit_code == 2
    assert work.REHEARSAL in json.loads(done.stdout)["error"]
    asked = ["payback", *OPTIONS, "--monthly-before", "9", "--monthly-after", "6", "--record", str(rehearsal)]
    done = run.invoke(cli.app, asked)
    assert done.exit_code == 2
    assert "never priced as Trainium's" in done.stderr


def test_the_cpu_is_priced_as_the_users_own_host(rehearsal: Path, record: Record) -> None:
    done = run.invoke(cli.app, ["price", str(rehearsal), "--host-hour", "0.50", "--currency", "EUR", "--json"])
    assert done.exit_code == 0, done.output
    found = work.WorkPrice.model_validate_json(done.stdout)
    assert [row.mode for row in found.rows] == ["reference"]
    assert [(one.mode, one.why) for one in found.left_out] == [("eager", work.REHEARSAL)]
    assert (found.source, found.price.currency, found.label) == ("given", "EUR", "rehearsal")
    timed = next(t for t in record.judgement.timings if t.mode == "reference")
    assert timed.median is not None
    per_unit = 2 / timed.median * 3600 / 0.5
    assert float(found.rows[0].items_per_unit.likely) == pytest.approx(per_unit, rel=1e-3)
    assert float(found.rows[0].positions_per_unit.likely) == pytest.approx(8 * per_unit, rel=1e-3)
    assert float(found.rows[0].million_items_cost.likely) == pytest.approx(1e6 / per_unit, rel=1e-3)
    assert not found.rows[0].interval  # one process
    said = run.invoke(cli.app, ["price", str(rehearsal), "--host-hour", "0.50"]).stdout
    assert "given: 0.50 USD an hour" in said
    assert "no interval" in said


def test_measured_throughput_and_interval_are_divided_by_a_documented_price(record: Record) -> None:
    real = as_measured(record)
    eager = next(t for t in real.judgement.timings if t.mode == "eager")
    assert eager.throughput is not None
    rates = eager.throughput.model_copy(
        update={"items": 100.0, "items_low": 80.0, "items_high": 125.0, "positions": 800.0}
    )
    timings = [eager.model_copy(update={"throughput": rates})]
    real = real.model_copy(update={"judgement": real.judgement.model_copy(update={"timings": timings})})
    price = prices.find(prices.load(None), "trn2.48xlarge", None, None, TODAY)
    found = work.work_price(real, price, False, 1, TODAY, 180)
    row = found.rows[0]
    assert row.interval
    for rate, value in zip(
        (80, 100, 125), (row.items_per_unit.low, row.items_per_unit.likely, row.items_per_unit.high)
    ):
        assert float(value) == pytest.approx(rate * 3600 / 35.7608, rel=1e-3)
    assert row.million_items_cost.low < row.million_items_cost.high
    assert float(row.million_items_cost.low) == pytest.approx(1e6 * 35.7608 / 3600 / 125, rel=1e-3)
    assert found.source == "documented"
    assert found.price_old
    assert "OLD: 193 days, more than 180" in found.price_said
    assert "2026-05-21" in found.price_said
    assert not work.work_price(real, price, False, 1, TODAY, 365).price_old
    four = work.work_price(real, price, False, 4, TODAY, 180).rows[0]
    assert float(four.items_per_unit.likely) == pytest.approx(4 * float(row.items_per_unit.likely), rel=1e-3)


def test_throughput_and_price_must_be_of_one_machine(record: Record) -> None:
    real, known = as_measured(record), prices.load(None)
    wrong = prices.find(known, "p5.48xlarge", None, None, TODAY)
    with pytest.raises(BadInput, match=r"steps on neuron are not those of p5.48xlarge"):
        work.work_price(real, wrong, False, 1, TODAY, 180)
    trainium = work.work_price(real, prices.find(known, "trn2.3xlarge", None, None, TODAY), False, 1, TODAY, 180)
    assert [(row.mode, row.why) for row in trainium.left_out] == [
        ("reference", "the CPU's steps are not those of trn2.3xlarge; give the price of the host with --host-hour")
    ]
    host = work.work_price(real, work.host_price(Decimal(1), "USD", TODAY), True, 1, TODAY, 180)
    assert [row.mode for row in host.rows] == ["reference"]
    assert "without accelerators" in host.left_out[0].why


def test_compile_seconds_of_a_measurement_are_priced(rehearsal: Path, record: Record) -> None:
    measured = compiled.measured(as_measured(record, compile_seconds=120.0))
    known = inputs.load(None, PLAIN | {"compilation.instance_hour": "36"} | measured)
    line = next(line for line in payback(known, TODAY).lines if line.name == "compilation")
    assert line.amount is not None
    assert line.amount.likely == Decimal("1.20")  # 4 programs x 30 s x 36 an hour
    assert {used.name: used.source for used in line.inputs} == {
        "compilation.programs": "measured",
        "compilation.seconds_per_program": "measured",
        "compilation.instance_hour": "given",
    }
    assert record.seal[:12] in line.inputs[0].said
    with pytest.raises(BadInput, match="does not tell how long"):
        compiled.measured(record.model_copy(update={"label": "measurement", "cells": []}))


def test_costs_in_the_requirements_are_locked_judged_and_reported(rehearsal: Path, record: Record) -> None:
    found = record.judgement.payback
    assert found is not None
    assert found == payback(record.requirements.costs, None)
    assert (found.port_cost.low, found.port_cost.likely, found.port_cost.high) == (38_400, 57_600, 86_400)
    assert (found.currency, found.horizon_months, found.made) == ("EUR", 12, None)
    assert records.verify(rehearsal).verified  # judged again from the locked requirements
    text = report.markdown(record)
    assert "## Payback" in text
    assert "nothing here was measured by it" in text
    assert "gigabyte 0.09 (documented: price list of the network, 2026-11-01)" in text
    assert "storage | monthly | not given | missing: storage.gigabytes, storage.gigabyte_month" in text
    page = (rehearsal / "report.html").read_text()
    assert "Saved less paid" in page


def test_half_given_costs_are_a_contradiction_and_none_are_no_payback() -> None:
    with pytest.raises(BadInput, match=r"r.toml:1: costs: a payback needs these too: port.engineers, .*monthly_after"):
        requirements.parse("[costs.port]\nweeks = 6\n", "r.toml")
    with pytest.raises(BadInput, match=r"r.toml:2: costs.port.weeks: '9..6' is not in rising order"):
        requirements.parse("[costs.port]\nweeks = '9..6'\n", "r.toml")
    assert judged(requirements.parse("[costs]\ncurrency = 'EUR'\n", "r.toml").costs) is None


# --- prices -------------------------------------------------------------------------------------------------------------


def test_shipped_prices_have_dates_and_sources() -> None:
    known = prices.load(None)
    assert {"trn2.48xlarge", "trn1.32xlarge"} <= {price.name for price in known}
    assert all(price.source and price.date < TODAY for price in known)
    listed = run.invoke(cli.app, ["price"])
    assert listed.exit_code == 0
    assert "35.7608 USD an hour, trn2.48xlarge us-east-2 capacity block, 2026-05-21" in listed.stdout


def test_own_prices_go_first(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    entry = (
        '[[instance]]\nname = "trn2.48xlarge"\nregion = "us-east-2"\nterm = "{term}"\nprice = {price}\n'
        'currency = "USD"\ndate = {date}\nsource = "our contract"\naccelerators = 16\n'
    )
    file.write_text(entry.format(term="capacity block", price='"20"', date="2026-11-29"))
    price = prices.find(prices.load(file), "trn2.48xlarge", "us-east-2", None, TODAY)
    assert (price.price, price.source, price.age(TODAY)) == (20, "our contract", 1)
    assert "OLD" not in price.said(TODAY)
    file.write_text(entry.format(term="three years", price='"20"', date="2026-11-29"))
    with pytest.raises(BadInput, match=r"has 2 prices; choose one with .*three years"):
        prices.find(prices.load(file), "trn2.48xlarge", None, None, TODAY)
    with pytest.raises(BadInput, match="trn3.48xlarge is not given"):
        prices.find(prices.load(file), "trn3.48xlarge", None, None, TODAY)
    for text, says in (
        (entry.format(term="x", price='"-1"', date="2026-11-29"), "greater than 0"),
        (entry.format(term="x", price='"1"', date='"soon"'), "date"),
        ("schema_version = 'other/9'", "this version reads shakedown.prices/1"),
        ("[[instance", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=says):
            prices.load(file)
    file.write_text(entry.format(term="x", price='"1"', date="2027-01-01"))
    with pytest.raises(BadInput, match="in the future"):
        prices.find(prices.load(file), "trn2.48xlarge", None, "x", TODAY)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give either --instance or --host-hour"),
        (["--instance", "trn2.48xlarge", "--host-hour", "1"], "give either --instance or --host-hour"),
        (["--host-hour", "0"], "one price above zero"),
        (["--host-hour", "1..2"], "one price above zero"),
        (["--host-hour", "1", "--currency", "Euro"], "currency"),
        (["--instance", "trn9.large"], "is not given"),
    ],
)
def test_one_price_is_needed(rehearsal: Path, options: list[str], says: str) -> None:
    done = run.invoke(cli.app, ["price", str(rehearsal), *options])
    assert done.exit_code == 2, done.output
    assert says in done.stderr


def test_no_record_is_bad_input(tmp_path: Path) -> None:
    done = run.invoke(cli.app, ["price", str(tmp_path), "--host-hour", "1"])
    assert done.exit_code == 2
    assert "there is no record" in done.stderr
