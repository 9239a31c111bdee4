"""Pictures of 32 characters, drawn at any resolution from the outlines of the fonts that matplotlib ships.

Every picture is drawn once on a 144-pixel canvas and averaged by area to the size asked for, so picture i shows the
same thing at every size. From the distortion on, the arithmetic is on integers: neither threads nor the processor's
vector units can change a pixel.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from labkit.data import Arrays, Split, cached, choose

CLASSES = tuple("ABCDEFGHJKLMNPQRTUVWXY234679aegr")
FACES = {
    "train": (
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
        *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
        *("cmr10", "cmb10", "cmmi10"),
    ),
    "validation": ("DejaVuSansMono", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "cmtt10"),
    "test": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmss10"),
}
COPIES = {"train": 21, "validation": 8, "test": 10}  # pictures of each character in each face
MEAN, STD = 0.26, 0.22  # close to those of the training pixels, and never fitted to the data at hand
RECIPE = 3  # part of the cache's file name: raise it with every change to what is drawn
PUBLISHED = {
    "glyphs-train-24": "1d55535e98608b7a5901719285bb08073713bab6ce93d9a3a82a8da6f57649c7",
    "glyphs-train-32": "25a577ba71f79f54612783e0dc0c4ec516745f1a14cd701b3d10a679b8a4d0aa",
    "glyphs-train-48": "6a75d64253f39cf7a7157ea9e057e01e591442e0160fca39adef3e2a2c9f1c4c",
    "glyphs-validation-24": "3201f402dae50d4689034167aba90c963ce01a3a3131675a952a02eccbb9ba89",
    "glyphs-validation-32": "974654edb1a81c7e9d5f83f91382bce5f48e4097df5e143395d17ad7bfbac83c",
    "glyphs-validation-48": "74b8607ce074d999c93eb844e1482ead619ed1bb15065b02b2a0406eab2e8686",
    "glyphs-test-24": "71eadff4bb1a8291c7427e5021745e24654d9c08948e16f202296e0cc222a9c4",
    "glyphs-test-32": "866f737f4922554affab59429c7897e0657b4e181a37677bd3a20134951e707d",
    "glyphs-test-48": "c327d908745583a8324429c3a0d8452a5dab8182b19883c0b3eb71c02fc96dfa",
}

_SEED = 2024
_CANVAS = 144  # pixels: 3 x 48, 4.5 x 32, 6 x 24
_MASTER = 224  # pixels a side of the upright drawing of one character in one face
_EM = 150  # pixels of that drawing to the font's em
_NOISE = 48  # cells a side of the noise grid
_SHIFT = 12  # binary places of fixed-point numbers
_BATCH = 64  # pictures drawn at a time, which keeps the working set small


def load(split: str = "train", size: int | np.integer = 24) -> Split:
    """The pictures of one split, [N, 1, size, size] in float32, as (pixel / 255 - MEAN) / STD; targets index CLASSES.

    size is 8 to 128 pixels. ValueError for an unknown split or size.
    """
    choose(split, tuple(FACES))
    size = _checked(size)
    name = f"glyphs-{split}-{size}"
    arrays, digest = cached(f"{name}-v{RECIPE}", lambda: _draw(split, size))
    pixels = torch.from_numpy(arrays["pixels"])
    return Split(
        name=name,
        inputs=pixels.to(torch.float32).div_(255).sub_(MEAN).div_(STD).unsqueeze(1),
        targets=torch.from_numpy(arrays["labels"]).to(torch.int64),
        classes=CLASSES,
        sha256=digest,
    )


def verified(split: Split) -> bool | None:
    """Whether these are bit for bit the published pictures; None where no hash is published for this size.

    False is no fault: another version of matplotlib may bring other outlines.
    """
    published = PUBLISHED.get(split.name)
    return None if published is None else split.sha256 == published


def _checked(size: object) -> int:
    """The size, a whole number from 8 to 128; ValueError for anything else."""
    if not isinstance(size, (int, np.integer)) or not 8 <= size <= 128:
        raise ValueError(f"Glyphs are drawn at sizes from 8 to 128 pixels, not {size!r}.")
    return int(size)


def _draw(split: str, size: int) -> Arrays:
    """All pictures of a split, uint8, and what they show."""
    label, face, draws, noise = _plan(split)
    masters = np.stack([_master(name, char) for name in FACES[split] for char in CLASSES])
    pixels = np.empty((len(label), size, size), np.uint8)
    for first in range(0, len(label), _BATCH):
        part = slice(first, first + _BATCH)
        which = face[part] * len(CLASSES) + label[part]
        canvas = _canvas(masters.reshape(-1), which, draws[part], noise[part])
        sums = _area_sums(_area_sums(canvas, size).transpose(0, 2, 1), size).transpose(0, 2, 1)
        pixels[part] = (sums + _CANVAS**2 // 2) // _CANVAS**2
    return {"pixels": pixels, "labels": label.astype(np.uint8), "faces": face.astype(np.uint8)}


def _plan(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Character, face, 25 uniform draws and a grid of noise for each picture: nothing here knows the size."""
    rng = np.random.Generator(np.random.PCG64([_SEED, tuple(FACES).index(split)]))
    n = len(CLASSES) * len(FACES[split]) * COPIES[split]
    order = np.argsort(rng.random(n), kind="stable")
    label, face = order % len(CLASSES), order // len(CLASSES) % len(FACES[split])
    draws = rng.random((n, 25))
    bits = np.frombuffer(rng.bytes(2 * n * _NOISE**2), np.uint8).reshape(2, n, _NOISE, _NOISE)
    return label, face, draws, bits[0].astype(np.int16) - bits[1]  # a triangle from -255 to 255


def _canvas(masters: np.ndarray, which: np.ndarray, draws: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The distorted characters with clutter, contrast and noise, uint8 [n, canvas, canvas]."""
    matrix, offset = _affine(draws[:, :7])
    row, col = (_linear(matrix[:, k], offset[:, k]) for k in (0, 1))
    np.clip(row, 0, _MASTER - 1, out=row)
    np.clip(col, 0, _MASTER - 1, out=col)
    row *= _MASTER
    row += col
    row += (which * _MASTER**2).astype(np.int32)[:, None, None]
    ink = masters.take(row)
    for k in (7, 12):
        ink[_stroke(draws[:, k : k + 5])] = 255
    ink[_stroke(draws[:, 17:22])] = 0  # a cut
    paper, contrast = _steps(draws[:, 22], 0, 70), _steps(draws[:, 23], 90, 185)
    speckle = noise * _steps(draws[:, 24], 20, 100) // 256
    speckle = speckle.repeat(_CANVAS // _NOISE, axis=1).repeat(_CANVAS // _NOISE, axis=2)
    picture = paper + (ink.astype(np.int32) * contrast >> 8) + speckle
    return np.clip(picture, 0, 255).astype(np.uint8)


def _steps(draw: np.ndarray, low: int, high: int) -> np.ndarray:
    """Uniform draws as integers from low to high, shaped to go with pictures."""
    return (low + draw * (high - low)).astype(np.int32)[:, None, None]


def _affine(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrix and offset, fixed point, from canvas pixels (row, column) to the master's: turn, shear, scale, shift."""
    turn, shear, size, taller, wider, down, right = (2 * draws - 1).T
    cos, sin = np.cos(math.radians(25) * turn), np.sin(math.radians(25) * turn)
    high, wide, lean = (1 + 0.3 * size) * (1 + 0.2 * taller), (1 + 0.3 * size) * (1 + 0.2 * wider), 0.4 * shear
    # canvas = forward @ master; its inverse written out, because a library's may round differently elsewhere
    forward = np.array([[high * cos, -high * sin], [wide * (sin + lean * cos), wide * (cos - lean * sin)]])
    (a, b), (c, d) = forward
    inverse = (np.array([[d, -b], [-c, a]]) / (a * d - b * c)).transpose(2, 0, 1)
    centre = _CANVAS / 2 + 16 * np.stack([down, right], 1)
    offset = _MASTER / 2 - (inverse * centre[:, None, :]).sum(2)
    return np.rint(inverse * 2**_SHIFT).astype(np.int32), np.rint(offset * 2**_SHIFT).astype(np.int32)


def _linear(slope: np.ndarray, start: np.ndarray) -> np.ndarray:
    """slope[0] * row + slope[1] * col + start over the canvas, from fixed point to whole pixels, int32."""
    at = np.arange(_CANVAS, dtype=np.int32)
    along_rows = slope[:, 0, None] * at + start[:, None]
    return (along_rows[:, :, None] + (slope[:, 1, None] * at)[:, None, :]) >> _SHIFT


def _stroke(draws: np.ndarray) -> np.ndarray:
    """Where one straight stroke lies in each picture: centre, direction, length and width from five draws."""
    centre = draws[:, :2] * _CANVAS
    angle = draws[:, 2] * math.pi
    along = np.stack([np.sin(angle), np.cos(angle)], 1)
    across = along[:, ::-1] * [1, -1]
    inside = None
    for direction, reach in ((along, 15 + 40 * draws[:, 3]), (across, 1.5 + 4 * draws[:, 4])):
        slope = np.rint(direction * 2**_SHIFT).astype(np.int32)
        start = np.rint(-(direction * centre).sum(1) * 2**_SHIFT).astype(np.int32)
        near = np.abs(_linear(slope, start)) < reach.astype(np.int32)[:, None, None]
        inside = near if inside is None else inside & near
    return inside


def _area_sums(picture: np.ndarray, size: int) -> np.ndarray:
    """[n, size, canvas] from [n, canvas, canvas]: what each of `size` equal bands of rows covers, times `size`.

    Sums of whole numbers, as differences of running totals, which int32 may let wrap around without harm.
    """
    whole, part = np.divmod(np.arange(size + 1) * _CANVAS, size)
    until = np.zeros((len(picture), _CANVAS + 1, picture.shape[2]), np.int32)
    np.cumsum(picture, axis=1, dtype=np.int32, out=until[:, 1:])
    edges = until[:, whole] * np.int32(size)
    edges[:, 1:-1] += picture[:, whole[1:-1]] * part[1:-1, None].astype(np.int32)
    return edges[:, 1:] - edges[:, :-1]


def _master(face: str, char: str) -> np.ndarray:
    """One character of one face, upright and centred by its bounding box, as coverage 0 to 255."""
    corners = list(_edges(face, char))
    points = np.concatenate(corners)
    middle = (points.min(0) + points.max(0)) / 2
    side = 2 * _MASTER
    rows = np.arange(side) + 0.5
    winding = np.zeros((side, side + 1), np.int32)
    for ring in corners:
        x, y = ((ring - middle) * [1, -1] * 2 * _EM + _MASTER).T
        x1, y1 = np.roll(x, -1), np.roll(y, -1)
        edge, row = np.nonzero((y[:, None] <= rows) != (y1[:, None] <= rows))
        cross = x[edge] + (rows[row] - y[edge]) * (x1[edge] - x[edge]) / (y1[edge] - y[edge])
        column = np.clip(np.ceil(cross - 0.5), 0, side).astype(np.int64)
        np.add.at(winding, (row, column), np.where(y1[edge] > y[edge], 1, -1))
    filled = (winding.cumsum(1)[:, :side] != 0).reshape(_MASTER, 2, _MASTER, 2).sum((1, 3))
    return np.minimum(filled * 64, 255).astype(np.uint8)


def _edges(face: str, char: str) -> Iterator[np.ndarray]:
    """The closed outlines of a character, as corner points in ems; curves in eight pieces."""
    from matplotlib.path import Path as Outline

    ring: list[np.ndarray] = []
    t = np.arange(1, 9)[:, None] / 8
    for flat, code in Outline(*_outline(face, char)).iter_segments(simplify=False):
        points = flat.reshape(-1, 2)
        if code == Outline.MOVETO and ring:
            yield np.concatenate(ring)
            ring = []
        if code in (Outline.MOVETO, Outline.LINETO):
            ring.append(points)
        elif code == Outline.CURVE3:
            ring.append((1 - t) ** 2 * ring[-1][-1] + 2 * t * (1 - t) * points[0] + t**2 * points[1])
    yield np.concatenate(ring)


def _outline(face: str, char: str) -> tuple[np.ndarray, np.ndarray]:
    """Points, in ems, and path codes of a character, at one pixel to the font's unit: so FreeType rounds nothing."""
    from matplotlib import ft2font, get_data_path

    font = ft2font.FT2Font(str(Path(get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"))
    font.set_size(font.units_per_EM, 72)
    flags = ft2font.LoadFlags if hasattr(ft2font, "LoadFlags") else None  # matplotlib 3.10 renamed the constant
    font.load_char(ord(char), flags=flags.NO_HINTING if flags else ft2font.LOAD_NO_HINTING)
    points, codes = font.get_path()
    return points / font.units_per_EM, codes
