"""`labkit memory`: its options, and what becomes of each mistake in them."""

import inspect
import shutil
import sys
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, NoReturn

import typer

from labkit.course import CourseError


def _whole(name: str, says: str) -> Any:
    """An option that takes a whole number, `7.5e9` among them; whatever else is answered in one sentence."""

    def read(text: str | int) -> int:  # a default comes as it is
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or number.adjusted() > 18 or number != number.to_integral_value():
            raise CourseError(f"{name} is {text}, and must be a whole number below 1e19.")
        return int(number)

    return typer.Option(name, parser=read, metavar="N", help=says)


def memory(
    params: Annotated[int | None, _whole("--params", "A bare number of parameters: states only.")] = None,
    model: Annotated[str | None, typer.Option(help="A model by name, such as llama-3-8b.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A Hugging Face config.json.")] = None,
    precision: Annotated[str, typer.Option(help="mixed, mixed-fp32-grads, bf16, fp32 or autocast.")] = "mixed",
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam, adam-8bit, adafactor or muon.")] = "adam",
    fused: Annotated[bool, typer.Option("--fused", help="The optimizer steps tensor by tensor.")] = False,
    zero: Annotated[int, _whole("--zero", "The ZeRO stage, 0 to 3.")] = 0,
    ranks: Annotated[int, _whole("--ranks", "All ranks, those of --tp and --pp included.")] = 1,
    tp: Annotated[int, _whole("--tp", "Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, _whole("--pp", "Pipeline stages.")] = 1,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", help="Cut the rest along tokens.")] = False,
    shard_ranks: Annotated[int, _whole("--shard-ranks", "Ranks that share one copy (HSDP); 0: all.")] = 0,
    no_reshard: Annotated[bool, typer.Option("--no-reshard", help="Keep gathered parameters (ZeRO 3).")] = False,
    micro_batches: Annotated[int, _whole("--micro-batches", "In a step; 0: as many as --pp.")] = 0,
    seq: Annotated[int, _whole("--seq", "Tokens of a sequence.")] = 1024,
    batch: Annotated[int, _whole("--batch", "Sequences of a rank and micro-batch.")] = 1,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    attention: Annotated[str, typer.Option(help="flash or math.")] = "flash",
    lora: Annotated[int, _whole("--lora", "The rank of LoRA's adapters; 0: all weights are trained.")] = 0,
    base_bits: Annotated[int, _whole("--base-bits", "4 for QLoRA; 16: as wide as --precision has weights.")] = 16,
    gpu: Annotated[str | None, typer.Option(help="Does it fit on this card, such as T4 or H100?")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs; sizes in bytes.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hold the estimate to measurement, on this machine.")
    ] = False,
) -> None:
    """What training a model takes of each rank's memory, whether it fits, and what to change first if not."""
    if verify:
        _verify(locals())
    from labkit import cards, memory_report
    from labkit.states import Plan

    fields = {name: value for name, value in locals().items() if name in Plan.__dataclass_fields__}
    try:
        card = None if gpu is None else cards.card(gpu)
        plan = Plan(**fields, reshard=not no_reshard)
        found = memory_report.report(_model(params, model, config), plan, card)
    except ValueError as error:
        raise CourseError(str(error)) from None
    if json:
        _print(memory_report.as_json(found))
    else:
        signs = memory_report.BLOCKS if _writes(memory_report.BLOCKS) else memory_report.ASCII
        _print(memory_report.text(found, columns=shutil.get_terminal_size().columns, signs=signs))


def _print(text: str) -> None:
    """The text on standard output. CourseError where that is closed or full; who reads it may go before the end."""
    try:
        if sys.stdout is None:
            raise CourseError("There is nothing to write to: standard output is closed.")
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CourseError(f"Standard output could not be written: {error.strerror}.") from None


def _verify(options: dict[str, object]) -> NoReturn:
    """Measure, and leave with the code that says whether the estimate is right. CourseError: beside other options."""
    usual = {name: option.default for name, option in inspect.signature(memory).parameters.items()}
    usual["verify"] = True
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value != usual[name]]
    if given:
        raise CourseError(f"--verify measures models and plans of its own: leave out {' and '.join(given)}.")
    from labkit import verify

    raise typer.Exit(verify.main())


def _model(params: int | None, model: str | None, config: str | None) -> Any:
    """The one model that was named. ValueError: none, several, an unknown one, or a file that is no config."""
    from labkit import presets

    given = {"--params": params, "--model": model, "--config": config}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        said = " and ".join(named) or "none of them"
        raise ValueError(f"Name one model, by --params, --model or --config; this has {said}.")
    if params is not None:
        return params
    if not (model or config):
        raise ValueError(f"{named[0]} is empty, and must name a {'model' if config is None else 'config.json'}.")
    return presets.preset(model) if model is not None else presets.load(config)


def _writes(signs: str) -> bool:
    """Whether stdout's encoding has these signs."""
    try:
        signs.encode(getattr(sys.stdout, "encoding", None) or "ascii")  # None: it is closed
    except UnicodeEncodeError:
        return False
    return True
