"""Bytes, FLOPs and seconds: how they are named and written. GB = 1e9 bytes, GiB = 2**30 bytes."""

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def _scaled(value: float, base: int, prefixes: tuple[str, ...], unit: str) -> str:
    """`value` with the prefix that leaves one to three digits before the point: three significant digits."""
    sign, size, power = ("-" if value < 0 else ""), abs(value), 0
    while max(size, float(f"{size:.3g}")) >= base and power < len(prefixes) - 1:
        size, power = size / base, power + 1
    digits = f"{size:.0f}" if float(f"{size:.3g}") >= 100 or (power == 0 and size == int(size)) else f"{size:.3g}"
    return f"{sign}{digits} {prefixes[power]}{unit}".rstrip()


def format_bytes(n_bytes: float, *, binary: bool = False) -> str:
    """`1.5 GB` (powers of 1000) or, with binary=True, `1.4 GiB` (powers of 1024)."""
    return _scaled(n_bytes, 1024, _BINARY, "B") if binary else _scaled(n_bytes, 1000, _DECIMAL, "B")


def format_flops(flops: float) -> str:
    """`312 TFLOP`: floating-point operations, a multiply and an add counted as two."""
    return _scaled(flops, 1000, _DECIMAL, "FLOP")


def format_count(n: float) -> str:
    """`176 k`: a plain count, such as parameters."""
    return _scaled(n, 1000, _DECIMAL, "")


def format_s(seconds: float) -> str:
    """`12.3 ms`: seconds in the unit that a reader would choose, from ns to hours."""
    size = abs(seconds)
    if size >= 3600:
        return f"{seconds / 3600:.3g} h"
    if size >= 120:
        return f"{seconds / 60:.3g} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= scale * 0.9995:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
