"""Judge every case of every process: numbers first, then what else must hold, then timing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence, SelfTest, Truth
from ..evidence.failure import Failure
from ..requirements import Requirements
from . import decisions, formats, numerics, paths, timing
from .results import CaseResult, Cell, CellResult, Decisions, TensorSummary, Verdict
from .seen import UNLIKE

Arrays = dict[str, np.ndarray]
# Their evidence is judged by checks of their own; what a check finds turns "match" into "mismatch".
UNCOMPARED = ("probe", "restart", "parity", "trace")
_OPEN_AT_ONCE = 4  # device and truth, of a subject and of its reference


@dataclass(frozen=True)
class Found:
    """All evidence of a run, read from its directory. Tensors stay on disk until they are judged."""

    root: Path
    cases: dict[tuple[str, str], Evidence]
    truths: dict[str, Truth]
    self_tests: dict[str, SelfTest]
    damaged: dict[tuple[str, str], str]
    failures: dict[tuple[str, str], Failure]
    # Worked out once: the CPU's own errors, and the judgement of tensors that several processes share bit by bit.
    own_errors: dict[tuple[str, str], Arrays] = field(default_factory=dict)
    judged: dict[tuple[str, str], tuple[list[numerics.Vector], list[Decisions]]] = field(default_factory=dict)
    opened: dict[tuple[str, str], Arrays] = field(default_factory=dict)  # by file and hash, the last few

    @classmethod
    def read(cls, root: Path, cells: list[Cell]) -> Found:
        """Collect what the cells left. A damaged file is remembered and makes its case untested."""
        cases: dict[tuple[str, str], Evidence] = {}
        truths: dict[str, Truth] = {}
        tests: dict[str, SelfTest] = {}
        damaged: dict[tuple[str, str], str] = {}
        failures: dict[tuple[str, str], Failure] = {}
        for cell in cells:
            folder = root / "evidence" / cell.id
            for case in cell.cases:
                path = folder / f"{case}.json"
                try:
                    if (folder / f"{case}.failure.json").exists():
                        failures[cell.id, case] = ev.read(Failure, folder / f"{case}.failure.json")
                    if not path.exists():
                        continue
                    found = cases[cell.id, case] = ev.read(Evidence, path)
                    truth = root / "evidence" / "truth" / f"{found.tensors_sha256[:16]}.json"
                    if truth.exists():
                        truths[found.tensors_sha256] = ev.read(Truth, truth)
                except EvidenceError as error:
                    damaged[cell.id, case] = str(error)
            if (folder / "self-test.json").exists():
                tests[cell.id] = ev.read(SelfTest, folder / "self-test.json")
        return cls(root, cases, truths, tests, damaged, failures)

    def no_truth(self, found: Evidence) -> Failure | None:
        """Why exact arithmetic has no answer for this evidence, where it was tried."""
        path = self.root / "evidence" / "truth" / f"{found.tensors_sha256[:16]}.failure.json"
        return ev.read(Failure, path) if path.exists() else None

    def pair(self, found: Evidence) -> tuple[Arrays, Arrays]:
        """Tensors of the device and of its truth."""
        return self.tensors(found), self.tensors(self.truths[found.tensors_sha256])

    def tensors(self, document: Evidence | Truth) -> Arrays:
        """The tensors that `document` kept, read and checked once while they are the subject. Not to be written to."""
        key = document.tensors_file, document.tensors_sha256
        if key not in self.opened:
            read = ev.tensors(document, self.root)
            while len(self.opened) >= _OPEN_AT_ONCE:
                del self.opened[next(iter(self.opened))]
            self.opened[key] = read
        return self.opened[key]


def expand(names: list[str]) -> list[str]:
    """Give a repeated case a name of its own: 1x128, 2x32, 1x128 becomes 1x128, 2x32, 1x128#2."""
    seen: dict[str, int] = {}
    expanded = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        expanded.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return expanded


def reference_errors(found: Found, dtype: str, case: str) -> Arrays:
    """The CPU's own error in each tensor, at this precision: what the network itself does to rounding errors."""
    if (dtype, case) not in found.own_errors:
        found.own_errors[dtype, case] = _reference_errors(found, dtype, case)
    return found.own_errors[dtype, case]


def _reference_errors(found: Found, dtype: str, case: str) -> Arrays:
    reference = found.cases.get((f"reference-{dtype}", case))
    if reference is None or reference.tensors_sha256 not in found.truths:
        return {}
    device, truth = found.pair(reference)
    infos = {f"step{t.step}/{t.role}/{t.name}": t for t in reference.tensors}
    errors = {}
    for name, value in truth.items():
        if name in device and device[name].shape == value.shape:
            exact = value.astype(np.float64)
            target = formats.rounded(exact, infos[name].dtype) if infos[name].role == "weight" else exact
            errors[name] = np.nan_to_num(device[name].astype(np.float64) - target, posinf=0.0, neginf=0.0)
    return errors


def vectors(found: Found, subject: Evidence, own: Arrays, requirements: Requirements) -> list[numerics.Vector]:
    """Judge every tensor of one case against its truth."""
    device, truth = found.pair(subject)
    initial = ev.load_tensors(found.root / "snapshot" / "weights.safetensors") if subject.tensors else {}
    steps = sorted({t.step for t in found.truths[subject.tensors_sha256].tensors})
    result = []
    for step in steps:
        gradients = [v for k, v in truth.items() if k.startswith(f"step{step}/gradient/")]
        count = sum(g.size for g in gradients)
        rms = float(np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients) / count)) if count else 0.0
        for info in subject.tensors:
            key = f"step{step}/{info.role}/{info.name}"
            if info.step != step or key not in truth:
                continue
            start = None
            if info.role == "weight":
                before = initial[info.name] if step == 1 else device[f"step{step - 1}/weight/{info.name}"]
                start = formats.rounded(before.astype(np.float64), info.dtype)
            result.append(
                numerics.measure(
                    numerics.Subject(
                        name=key,
                        role=info.role,
                        dtype=info.dtype,
                        device=device[key],
                        truth=truth[key],
                        reference_error=own.get(key),
                        reduction=subject.reduction_length,
                        decided_in=subject.dtype,
                        peers_rms=rms if info.role == "gradient" else 0.0,
                        start=start,
                    ),
                    requirements.numerics,
                )
            )
    return result


def _decided(found: Found, subject: Evidence, own: Arrays, requirements: Requirements) -> list[Decisions]:
    device, truth = found.pair(subject)
    dtypes = {f"step{t.step}/{t.role}/{t.name}": t.dtype for t in subject.tensors}
    return decisions.of_case(device, truth, own, dtypes, subject.reduction_length, requirements.numerics)


def structure(subject: Evidence, reference: Evidence | None, truth: Truth) -> list[str]:
    """What must hold besides numbers: same tensors, same dtypes, same start, and a compiled run that compiled."""
    found = []
    if not subject.moved_exactly:
        found.append("weights read back after the move to the device differ from the snapshot's bits")
    if subject.graphs is not None and subject.graphs.captured == 0:
        found.append("torch.compile captured nothing, so this was not a compiled run")
    named = {(t.step, t.role, t.name): t for t in subject.tensors}
    missing: dict[str, dict[str, None]] = {}
    for wanted in truth.tensors:
        mine = named.get((wanted.step, wanted.role, wanted.name))
        if mine is None:
            missing.setdefault(wanted.role, {})[wanted.name] = None
        elif mine.shape != wanted.shape:
            found.append(f"{wanted.role} {wanted.name} has shape {list(mine.shape)}, not {list(wanted.shape)}")
    known = {(t.role, t.name) for t in truth.tensors}
    extra = sorted({t.name for t in subject.tensors if t.role == "gradient" and ("gradient", t.name) not in known})
    if extra:
        found.append(
            f"on the device alone {', '.join(extra)} have gradients of their own: a tied weight has come apart"
        )
    for role, names in missing.items():
        found.append(f"the device made no {role} for {len(names)} tensors: {', '.join(names)}")
    if reference is not None:
        expected = {(t.step, t.role, t.name): t.dtype for t in reference.tensors}
        for key, mine in named.items():
            if key in expected and expected[key] != mine.dtype:
                found.append(f"{mine.role} {mine.name} is {mine.dtype} on the device and {expected[key]} on the CPU")
    return found


def judge_case(
    found: Found, cell: Cell, case: str, requirements: Requirements, earlier_failed: bool
) -> tuple[CaseResult, list[numerics.Vector]]:
    """The verdict on one case of one process, with the vector of every tensor."""
    if cell.outcome.status == "untested":
        return CaseResult(case=case, verdict="untested", reason=cell.outcome.reason), []
    if (cell.id, case) in found.damaged:
        return CaseResult(case=case, verdict="untested", reason=found.damaged[cell.id, case]), []
    subject = found.cases.get((cell.id, case))
    own = f"reference-{cell.dtype}"
    if (failure := found.failures.get((own, case))) is not None:
        reason = f"the workload itself fails on the CPU: {failure.error}: {failure.message}"
        return CaseResult(case=case, verdict="untested", reason=reason), []
    if (failure := found.failures.get((cell.id, case))) is not None:
        return CaseResult(case=case, verdict="crashed", reason=f"{failure.error}: {failure.message}"), []
    if subject is None:
        if cell.outcome.status == "finished" or earlier_failed:
            return CaseResult(case=case, verdict="untested", reason="the process ended before this case"), []
        return CaseResult(case=case, verdict=cell.outcome.status, reason=cell.outcome.reason), []
    truth = found.truths.get(subject.tensors_sha256)
    if truth is None and (failure := found.no_truth(subject)) is not None:
        reason = f"the workload cannot be recomputed in float64 on the CPU: {failure.error}: {failure.message}"
        return CaseResult(case=case, verdict="untested", reason=reason), []
    reference = found.cases.get((own, case))
    if truth is None or reference is None:
        return CaseResult(case=case, verdict="untested", reason="there is no CPU reference or float64 truth for it"), []
    for other in (truth, reference):
        refused = ev.blendable(subject, other)
        if refused:
            return CaseResult(case=case, verdict="untested", reason=UNLIKE + "; ".join(refused)), []
    if (diverged := _diverged(found, subject, truth)) is not None:
        reason = f"the loss is not finite in float64 on the CPU at step {diverged}: the workload diverges by itself"
        return CaseResult(case=case, verdict="untested", reason=reason, losses=_losses(found, subject, reference)), []
    faults = structure(subject, reference, truth)
    judged: list[numerics.Vector] = []
    decided: list[Decisions] = []
    shapes_agree = not any("shape" in fault for fault in faults)
    if shapes_agree:
        errors = reference_errors(found, cell.dtype, case)
        key = subject.tensors_sha256, case
        if key not in found.judged:
            found.judged[key] = (
                vectors(found, subject, errors, requirements),
                _decided(found, subject, errors, requirements),
            )
        judged, decided = found.judged[key]
    failed = sorted((v for v in judged if v.findings), key=_nearest_to_the_cause)
    findings = faults + [f"{v.name}: {text}" for v in failed for text in v.findings]
    findings += [f"{f.word}: {f.text}" for f in decisions.flipped(decided, cell.id, case)]
    result = CaseResult(
        case=case,
        verdict="mismatch" if findings else "match",
        findings=findings,
        tensors=_tensor_summary(judged) if judged else None,
        losses=_losses(found, subject, reference),
        training_steps=subject.training.steps,
        graphs=subject.graphs.model_dump() if subject.graphs else None,
        paths=paths.summarise(subject, requirements),
        decisions=decided,
        timing=timing.summarise(subject, found.self_tests.get(cell.id), not findings, requirements.timing),
    )
    return result, judged


def _diverged(found: Found, subject: Evidence, truth: Truth) -> int | None:
    """The first judged step whose loss is not finite in exact arithmetic although it started from finite weights: there is
    nothing to compare after it. (A device that made its weights infinite has not shown that the workload does.)
    """
    kept, device = found.tensors(truth), found.tensors(subject)
    for step in sorted({t.step for t in truth.tensors if t.role == "loss"}):
        before = (v for k, v in device.items() if k.startswith(f"step{step - 1}/weight/"))
        if not np.isfinite(kept[f"step{step}/loss/loss"]).all():
            return step if all(np.isfinite(value).all() for value in before) else None
    return None


def _nearest_to_the_cause(v: numerics.Vector) -> tuple[str, int, float]:
    """Order of findings: what is computed first comes first, and the worst of its kind before the others."""
    return v.name.split("/")[0], ("output", "loss", "gradient", "buffer", "weight", "state").index(v.role), -v.margin


def _losses(found: Found, subject: Evidence, reference: Evidence) -> dict[str, float | None]:
    """Loss at steps 1 and k of device and CPU, each on its own trajectory, and at the end of training on the first
    batch.
    """
    device, cpu = found.tensors(subject), found.tensors(reference)
    steps = sorted({t.step for t in subject.tensors})
    losses: dict[str, float | None] = {}
    for step in dict.fromkeys((steps[0], steps[-1]) if "step1/loss/loss" in cpu else ()):
        losses[f"device_step{step}"] = ev.finite(float(device[f"step{step}/loss/loss"]))
        losses[f"cpu_step{step}"] = ev.finite(float(cpu[f"step{step}/loss/loss"]))
    return losses | {"device_last": subject.training.last_loss, "cpu_last": reference.training.last_loss}


def _tensor_summary(judged: list[numerics.Vector]) -> TensorSummary:
    worst = max(judged, key=lambda v: max(v.margin, v.row_margin or 0.0))
    outside = [v.outside_criterion for v in judged if v.outside_criterion is not None]
    return TensorSummary(
        judged=len(judged),
        failed=sum(bool(v.findings) for v in judged),
        worst_name=worst.name,
        worst_margin=max(worst.margin, worst.row_margin or 0.0),
        worst_relative_l2=worst.relative_l2,
        worst_allowed=worst.allowed_relative_l2,
        worst_ratio_to_cpu=worst.ratio_to_cpu,
        largest_outside_criterion=max(outside, default=None),
    )


def judge_cell(
    found: Found, cell: Cell, requirements: Requirements
) -> tuple[CellResult, dict[str, list[numerics.Vector]]]:
    """Judge one process. Its verdict is that of its worst case."""
    results: list[CaseResult] = []
    judged: dict[str, list[numerics.Vector]] = {}
    if cell.kind in UNCOMPARED:
        ended = cell.outcome.status
        verdict: Verdict = "match" if ended == "finished" else ended
        return CellResult(
            cell=cell.id,
            verdict=verdict,
            reason=cell.outcome.reason,
            cache_proof="",
            cache_proved=False,
            repeats="",
            cases=[],
        ), {}
    for case in cell.cases:
        broken = any(r.verdict in ("crashed", "timeout", "killed") for r in results)
        result, case_vectors = judge_case(found, cell, case, requirements, broken)
        results.append(result)
        judged[case] = case_vectors
    severity: tuple[Verdict, ...] = ("killed", "timeout", "crashed", "mismatch", "untested", "match")
    worst = min(results, key=lambda r: severity.index(r.verdict))
    verdict, reason = worst.verdict, worst.reason
    failed = any((cell.id, case) in found.failures for case in cell.cases)
    if verdict in ("match", "untested") and cell.outcome.status in ("crashed", "timeout", "killed") and not failed:
        # Evidence of every case is there, and then the process died: at the timer's self-test or while closing down.
        verdict, reason = cell.outcome.status, f"after its last case: {cell.outcome.reason}"
    seen = [found.cases[cell.id, case] for case in cell.cases if (cell.id, case) in found.cases]
    proved, proof = paths.cache_proof(seen)
    repeats, equal = _repeats(found, cell)
    return CellResult(
        cell=cell.id,
        verdict=verdict,
        reason=reason,
        cache_proof=proof,
        cache_proved=proved,
        repeats=repeats,
        repeats_equal=equal,
        cases=results,
    ), judged


def _repeats(found: Found, cell: Cell) -> tuple[str, bool]:
    """Did a process on a warm cache give the same bits as the first one on a cold cache that ran the same case?"""
    if cell.cache != "warm":
        return "", False
    cold = {
        case: one.tensors_sha256
        for (other, case), one in sorted(found.cases.items(), reverse=True)
        if (one.mode, one.dtype, one.cache.state) == (cell.mode, cell.dtype, "cold") and other != cell.id
    }
    both = [case for case in cell.cases if (cell.id, case) in found.cases and case in cold]
    if not both:
        return "not known: there are no two runs", False
    equal = sum(found.cases[cell.id, case].tensors_sha256 == cold[case] for case in both)
    return f"{equal} of {len(both)} cases bit-equal to the cold process", equal == len(both)
