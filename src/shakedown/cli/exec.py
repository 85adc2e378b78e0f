"""``shakedown exec``: run a script that knows nothing of us on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from .common import BAD_INPUT, FAILED, fail

# Everything from the script's name on is the script's: click stops at the first word that is no option, and `-m`, which is none
# of ours, comes through like such a word.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def exec_(
    words: Annotated[
        list[str], typer.Argument(metavar="SCRIPT|-m MODULE [ARGS]...", help="What `python` would be given.")
    ],
    mode: Annotated[
        Literal["eager", "adaptive", "compile"] | None,
        typer.Option(
            help="eager: one program for each operator; adaptive: recorded and fused; compile: eager, and torch.compile means "
            "the device's backend where the script names none (nothing is compiled that the script does not compile). "
            "Default: as the environment says."
        ),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Support profile whose limits are imitated.")] = None,
    cache: Annotated[str | None, typer.Option(help="Directory of the caches, or off.")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="What the device may hold: 24GiB, or a core's memory: trn2, trn2:lnc1, trn3.")
    ] = None,
    device_variable: Annotated[
        list[str] | None,
        typer.Option(help='NAME: this variable is "neuron" for the script; or NAME=VALUE. May be repeated.'),
    ] = None,
    redirect_cuda: Annotated[
        bool,
        typer.Option("--redirect-cuda", help='Where the script says "cuda", it gets the device; each line is listed.'),
    ] = False,
    default_device: Annotated[
        bool, typer.Option("--default-device", help='torch.set_default_device("neuron") before the script begins.')
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="An operator that has a program must not retreat to the CPU after an error."),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="File for the whole report in words.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the report as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no summary.")] = False,
) -> None:
    """Run SCRIPT, or a module, on the device as `python SCRIPT ARGS` runs it, and say at the end what happened.

    The summary goes to standard error. The exit code is the script's own; 128 and the signal's number where a signal ended it
    (130 for Ctrl-C); 2 where the script could not be started.
    """
    from shakedown.exec import launch
    from shakedown.exec import words as in_words
    from shakedown.readiness.evidence.files import write_atomic

    try:
        request = launch.Request(
            target=_target(words),
            mode=mode,
            profile=profile,
            cache=cache,
            memory_limit=memory_limit,
            device_variables=tuple(device_variable or ()),
            redirect_cuda=redirect_cuda,
            default_device=default_device,
            strict=strict,
        )
        for file in (report, json_file):
            if file is not None and file.is_dir():
                raise launch.BadRequest(f"{file} is a directory; name the file that the report is to be written to")
        found = launch.run(request)
    except launch.BadRequest as error:
        raise fail(str(error), BAD_INPUT, False) from None
    if not quiet:
        console = Console(stderr=True, soft_wrap=True)
        for line in in_words.summary(found):
            console.print(line, highlight=False, markup=False)
    try:
        if json_file is not None:
            write_atomic(json_file, (found.model_dump_json(indent=1) + "\n").encode())
        if report is not None:
            write_atomic(report, ("\n".join(in_words.summary(found, None)) + "\n").encode())
    except OSError as error:
        raise fail(f"the report was not written: {error}", found.exit_code or FAILED, False) from None
    raise typer.Exit(found.exit_code)


def _target(words: list[str]) -> tuple[str, ...]:
    from shakedown.exec.launch import BadRequest

    first, rest = words[0], words[1:]
    if first.startswith("-m"):
        name, rest = (first[2:], rest) if len(first) > 2 else ("".join(rest[:1]), rest[1:])
        if not name:
            raise BadRequest("-m needs the name of a module")
        return ("-m", name, *rest)
    if first.startswith("-") and first != "-":
        raise BadRequest(
            f"there is no option {first}; `shakedown exec --help` lists them, and a script's own follow its name"
        )
    return tuple(words)
