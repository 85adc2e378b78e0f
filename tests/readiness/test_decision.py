"""The decision: four results and one disposition, from values alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.readiness.judge import changes, disposition
from shakedown.readiness.judge.disposition import BLOCKED, CHANGE, INCONCLUSIVE, SUITABLE, Decision
from shakedown.readiness.judge.results import CaseResult, Cell, CellResult, Finding, Kind, Outcome, Verdict
from shakedown.readiness.judge.seen import Seen
from shakedown.readiness.requirements import Operation, Requirements

DONE = Outcome(status="finished", exit_code=0, seconds=1.0)
WRONG = "step1/gradient/norm.weight: relative L2 0.5 is 900 times what is allowed"


def cell(
    mode: str, dtype: str = "float32", kind: Kind = "sequence", note: str = "", cases: Sequence[str] = ("1x8",)
) -> Cell:
    name = "-".join(part for part in (mode, dtype, note) if part)
    target = "cpu" if mode == "reference" else "cuda"
    return Cell.model_validate(
        {
            "id": name,
            "kind": kind,
            "mode": mode,
            "dtype": dtype,
            "cache": "none",
            "target": target,
            "cases": list(cases),
        }
        | {"outcome": DONE}
    )


def result(of: Cell, verdicts: dict[str, Verdict] | None = None, reason: str = "") -> CellResult:
    """A process in which every case matches, but for `verdicts`."""
    given_verdicts = verdicts or {}
    cases = [
        CaseResult(
            case=case,
            verdict=(v := given_verdicts.get(case, "match")),
            reason=reason if v not in ("match", "mismatch") else "",
            findings=[WRONG] if v == "mismatch" else [],
        )
        for case in of.cases
    ]
    order: tuple[Verdict, ...] = ("killed", "timeout", "crashed", "mismatch", "untested", "match")
    worst = min((case.verdict for case in cases), key=order.index, default="match")
    return CellResult(
        cell=of.id, verdict=worst, reason=reason, cache_proof="", cache_proved=False, repeats="", cases=cases
    )


def decide(
    pairs: Sequence[tuple[Cell, CellResult]],
    findings: Sequence[Finding] = (),
    rehearsal: bool = False,
    requirements: Requirements | None = None,
) -> Decision:
    demand = requirements or Requirements()
    cells, results = [c for c, _ in pairs], [r for _, r in pairs]
    return disposition.decide(Seen(cells, results, findings, (), {}, demand, rehearsal))


def plain(*modes: str, dtypes: Sequence[str] = ("float32",), cases: Sequence[str] = ("1x8", "2x16")) -> list[Cell]:
    return [cell(mode, dtype, cases=cases) for dtype in dtypes for mode in ("reference", *modes)]


def test_what_matches_is_suitable_and_no_more_than_what_was_tested() -> None:
    cells = plain("eager", "compiled")
    untested = cell("adaptive")
    made = decide(
        [(c, result(c)) for c in cells] + [(untested, result(untested, {"1x8": "untested"}, "no such mode here"))]
    )
    assert made.disposition == SUITABLE
    assert "all 2 tested cells match" in made.sentence
    assert "1 cell is untested" in made.sentence
    assert not made.changes
    said = [s for r in made.results if r.name == "correctness" for s in r.statements]
    assert any(s.kind == "open" and s.text == "adaptive-float32: no such mode here" for s in said)
    assert {r.name: r.standing for r in made.results}["correctness"] == "met"


def test_a_rehearsal_says_so_in_the_sentence_and_leaves_the_environment_open() -> None:
    made = decide([(c, result(c)) for c in plain("eager")], rehearsal=True)
    assert made.disposition == SUITABLE
    assert "rehearsal" in made.sentence
    assert "not Trainium" in made.sentence
    assert {r.name: r.standing for r in made.results}["environment"] == "open"
    assert "repeat on the target itself" in made.next[-1]
    assert not {s.kind for s in made.statements if s.text.startswith("eager")} - {"rehearsal"}


def test_nothing_tested_is_inconclusive() -> None:
    cells = plain("eager")
    made = decide(
        [(cells[0], result(cells[0])), (cells[1], result(cells[1], dict.fromkeys(("1x8", "2x16"), "untested"), "x"))]
    )
    assert made.disposition == INCONCLUSIVE
    assert made.sentence == "nothing was tested on the target"


def test_evidence_that_must_not_be_put_together_is_inconclusive_whatever_else_matched() -> None:
    cells = [*plain("eager"), cell("eager", kind="restart", note="restart", cases=[])]
    other_ground = dict.fromkeys(("1x8", "2x16"), "untested")
    pairs = [
        (c, result(c, other_ground if c.mode != "reference" and c.cases else None, "not comparable: host"))
        for c in cells
    ]
    made = decide(pairs)
    assert made.disposition == INCONCLUSIVE
    assert made.sentence == "cases that ran were not comparable: host"
    assert any("run again" in text and "host" in text for text in made.next)
    only_restart = decide([(c, result(c)) for c in cells if c.kind == "restart" or c.mode == "reference"])
    assert only_restart.disposition == INCONCLUSIVE
    assert only_restart.sentence == "no case was compared on the target"
    assert {r.name: r.standing for r in only_restart.results}["correctness"] == "open"


def test_a_cpu_outside_its_own_gates_decides_nothing() -> None:
    cells = plain("eager")
    made = decide(
        [(cells[0], result(cells[0], {"1x8": "mismatch"})), (cells[1], result(cells[1], {"1x8": "mismatch"}))]
    )
    assert made.disposition == INCONCLUSIVE
    assert "reference-float32" in made.sentence


@pytest.mark.parametrize(
    ("cells", "bad", "kind", "name"),
    [
        (plain("eager", "compiled"), {("compiled-float32", "2x16")}, "shape", "2x16"),
        (
            plain("eager", dtypes=("float32", "bfloat16")),
            {("eager-bfloat16", "1x8"), ("eager-bfloat16", "2x16")},
            "precision",
            "bfloat16",
        ),
        (
            plain("eager", "compiled"),
            {("eager-float32", "1x8"), ("eager-float32", "2x16")},
            "operator",
            "not located yet",
        ),
        (
            [*plain("eager"), cell("eager", kind="variation", note="n", cases=["1x8~noncontiguous"])],
            {("eager-float32-n", "1x8~noncontiguous")},
            "layout",
            "of the inputs",
        ),
        (
            [*plain("eager"), cell("eager", kind="variation", note="n", cases=["1x8~padding"])],
            {("eager-float32-n", "1x8~padding")},
            "shape",
            "padded batches",
        ),
        (
            [*plain("eager"), cell("eager", kind="variation", note="n", cases=["1x8~tiny"])],
            {("eager-float32-n", "1x8~tiny")},
            "precision",
            "of tiny values",
        ),
    ],
)
def test_a_mismatch_that_no_check_explains_is_named_by_its_pattern(
    cells: list[Cell], bad: set[tuple[str, str]], kind: str, name: str
) -> None:
    made = decide([(c, result(c, {case: "mismatch" for case in c.cases if (c.id, case) in bad})) for c in cells])
    assert made.disposition == CHANGE
    assert [one.kind for one in made.changes] == [kind]
    assert made.changes[0].name.startswith(name)
    assert set(made.changes[0].where) == {where for where, _ in bad}


def test_a_mode_that_alone_is_wrong_is_told_apart() -> None:
    cells = plain("eager", "compiled")
    made = decide([(c, result(c, dict.fromkeys(c.cases, "mismatch") if c.mode == "compiled" else None)) for c in cells])
    assert "only compiled: eager matched" in made.changes[0].advice
    assert any(text.startswith("shakedown bisect RECORD compiled-float32") for text in made.next)


def finding(word: str, text: str = "text", where: str = "eager-float32", fails: bool = True) -> Finding:
    return Finding(word=word, cell=where, text=text, fails=fails)


@pytest.mark.parametrize(
    ("found", "kind", "name"),
    [
        (finding("resume-broken(optimizer)"), "restart", "optimizer"),
        (finding("recompile-bound", "step (train.py:3) reached the limit"), "shape", "step"),
        (finding("operator-differs", "aten::gelu(f32[2,8]) at model.py:3: off by 2"), "operator", "aten::gelu"),
        (finding("fallback", "aten::histc ran on the CPU in phase forward", fails=False), "operator", "aten::histc"),
    ],
)
def test_a_check_names_the_change(found: Finding, kind: str, name: str) -> None:
    made = decide([(c, result(c)) for c in plain("eager")], [found])
    assert made.disposition == CHANGE
    assert [(one.kind, one.name) for one in made.changes] == [(kind, name)]
    assert made.changes[0].because == [found.word]
    assert "shakedown compare" in "".join(made.next)


@pytest.mark.parametrize("word", ["precision-blocked(float64)", "over-budget(step)", "task-outside-limit"])
def test_what_no_change_of_the_workload_mends_blocks(word: str) -> None:
    made = decide([(c, result(c)) for c in plain("eager")], [finding(word, "1 of 2")])
    assert made.disposition == BLOCKED
    assert made.blocked_by == [f"{word}: 1 of 2"]
    # The same word from a check that does not make it fail blocks nothing: the workload has no use for it.
    assert decide([(c, result(c)) for c in plain("eager")], [finding(word, fails=False)]).disposition == SUITABLE


def test_a_required_mode_that_never_runs_blocks_and_one_shape_that_does_not_is_a_change() -> None:
    cells = plain("eager", "compiled")
    never = [
        (c, result(c, dict.fromkeys(c.cases, "crashed"), "died") if c.mode == "compiled" else result(c)) for c in cells
    ]
    assert decide(never).blocked_by == ["compiled in float32 is required and runs no case (died)"]
    one = [(c, result(c, {"2x16": "killed"}, "SIGKILL") if c.mode == "compiled" else result(c)) for c in cells]
    assert [(change.kind, change.name) for change in decide(one).changes] == [("shape", "2x16")]


def test_a_time_that_ran_out_is_inconclusive_and_says_what_to_raise() -> None:
    cells = plain("eager")
    made = decide(
        [(c, result(c, dict.fromkeys(c.cases, "timeout"), "60 s") if c.mode == "eager" else result(c)) for c in cells]
    )
    assert made.disposition == INCONCLUSIVE
    assert any("run.timeout_seconds" in text for text in made.next)


def test_rollback_is_documented_by_the_requirements_or_open() -> None:
    cells = plain("eager")
    demand = Requirements(operation=Operation(rollback="make old"))
    said = decide([(c, result(c)) for c in cells], requirements=demand).statements
    assert any(s.kind == "documented" and "make old" in s.text for s in said)
    assert any(s.kind == "open" and "rollback" in s.text for s in decide([(c, result(c)) for c in cells]).statements)


VERDICTS = st.sampled_from(["match", "mismatch", "crashed", "timeout", "killed", "untested"])
WORDS = st.sampled_from(
    [
        "resume-broken(rng)",
        "precision-blocked(int64)",
        "operator-differs",
        "fallback",
        "recompile-bound",
        "order-dependent",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_same_evidence_always_gives_the_same_decision_and_failures_are_never_suitable(data: st.DataObject) -> None:
    cells = plain("eager", "compiled", dtypes=("float32", "bfloat16"))
    cells.append(cell("eager", kind="variation", note="v", cases=["1x8~ties"]))
    pairs = [(c, result(c, {case: data.draw(VERDICTS) for case in c.cases}, "why")) for c in cells]
    found = [
        finding(
            data.draw(WORDS),
            where=data.draw(st.sampled_from([c.id for c in cells[1:]])),
            fails=data.draw(st.booleans()),
        )
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    made = decide(pairs, found)
    assert decide(pairs, found) == made
    assert len(made.results) == 4
    bad = [r for c, r in pairs if c.mode != "reference" and r.verdict in ("mismatch", "crashed", "killed", "timeout")]
    if bad or any(f.word == "fallback" for f in found):
        assert made.disposition != SUITABLE
    if made.disposition == CHANGE:
        assert made.changes
    assert (made.disposition == BLOCKED) <= bool(made.blocked_by)
    assert made.next or made.disposition == SUITABLE


def test_deciding_needs_neither_torch_nor_jax() -> None:
    modules = f"{disposition.__name__}, {changes.__name__}"
    code = f"import sys; import {modules}; print([m for m in ('torch', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
