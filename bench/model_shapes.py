"""GEMM shapes of public models, M × N × K with weights as N × K: a fixed sample, a third of it held out.

    python bench/model_shapes.py        prints both parts

The heuristics are fitted to `FITTED`, `MORE_FITTED`, `LATER_FITTED` and `LATEST_FITTED`; published ratios are those of `HELD_OUT` and
`FRESH`, which nothing was fitted to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from shapes import Shape, label_of

SEED, COUNT = 2026, 240
LANGUAGE_ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 100, 128, 192, 256, 300, 384, 512, 777, 1024, 1500, 2048, 3000, 4096, 8192)
"""Tokens of a decode batch, a chunk of a prefill, or a training step."""
TP = (1, 2, 4, 8)
"""Ranks over which tensor parallelism splits a layer."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The projections of a model: `columns` are split by output features, `rows` by input features."""

    columns: tuple[tuple[int, int], ...]
    """(N, K) of projections whose N is divided by tensor parallelism."""
    rows: tuple[tuple[int, int], ...]
    """(N, K) of projections whose K is."""
    tokens: tuple[int, ...] = LANGUAGE_ROWS
    tp: tuple[int, ...] = TP


def transformer(
    d: int, q: int, kv: int, ffn: int, vocabulary: int, *, gated: bool = True, tp: tuple[int, ...] = TP
) -> Model:
    """A decoder with separate q, fused k and v, and a gated or plain MLP."""
    return Model(
        columns=((q, d), (2 * kv, d), (q + 2 * kv, d), ((2 if gated else 1) * ffn, d), (ffn, d), (vocabulary, d)),
        rows=((d, q), (d, ffn)),
        tp=tp,
    )


def encoder(d: int, ffn: int, tokens: tuple[int, ...]) -> Model:
    """An encoder with a fused q, k, v projection and a plain MLP, on one GPU."""
    return Model(columns=((3 * d, d), (ffn, d)), rows=((d, d), (d, ffn)), tokens=tokens, tp=(1,))


MODELS = {
    "Llama 3.2 1B": transformer(2048, 2048, 512, 8192, 128256, tp=(1, 2)),
    "Llama 3.2 3B": transformer(3072, 3072, 1024, 8192, 128256, tp=(1, 2)),
    "Llama 3 8B": transformer(4096, 4096, 1024, 14336, 128256),
    "Llama 3 70B": transformer(8192, 8192, 1024, 28672, 128256),
    "Qwen2.5 0.5B": transformer(896, 896, 128, 4864, 151936, tp=(1,)),
    "Qwen2.5 7B": transformer(3584, 3584, 512, 18944, 152064, tp=(1, 2, 4)),
    "Qwen3 32B": transformer(5120, 8192, 1024, 25600, 151936),
    "DeepSeek V3": Model(
        columns=((24576, 1536), (32768, 512), (18432, 7168), (4096, 7168), (2048, 7168), (129280, 7168)),
        rows=((7168, 16384), (7168, 18432), (7168, 2048)),
    ),
    "DeepSeek V3, latent": Model(columns=((1536, 7168), (576, 7168), (2112, 7168)), rows=(), tp=(1,)),
    "GPT-2": transformer(768, 768, 768, 3072, 50304, gated=False, tp=(1,)),
    "GPT-2 XL": transformer(1600, 1600, 1600, 6400, 50304, gated=False, tp=(1,)),
    "ViT-B/16": encoder(768, 3072, (197, 8 * 197, 32 * 197)),
    "ViT-L/16": encoder(1024, 4096, (197, 8 * 197, 32 * 197)),
    "ViT-H/14": encoder(1280, 5120, (257, 4 * 257, 16 * 257)),
    "Whisper large v3": encoder(1280, 5120, (1500, 2 * 1500, 4 * 1500)),
}


def every_shape() -> Iterator[Shape]:
    """Yield the shapes of all models; vocabularies are counted once, as most models have few such layers."""
    for model in MODELS.values():
        for ranks in model.tp:
            for tokens in model.tokens:
                yield from ((tokens, n // ranks, k) for n, k in model.columns if n % ranks == 0)
                yield from ((tokens, n, k // ranks) for n, k in model.rows if k % ranks == 0)


def sample(seed: int = SEED, count: int = COUNT) -> list[Shape]:
    """Draw shapes whose M are spread evenly: as many of each of eight classes of M as there are."""
    shapes = sorted(set(every_shape()))
    rng = random.Random(seed)
    classes: dict[int, list[Shape]] = {}
    for shape in rng.sample(shapes, len(shapes)):
        classes.setdefault(min(max(shape[0] - 1, 1).bit_length(), 13), []).append(shape)
    found: list[Shape] = []
    while len(found) < count:
        found += [shapes.pop() for shapes in classes.values() if shapes]
    return found[:count]


SAMPLE = sample()
HELD_OUT = SAMPLE[::3]
FITTED = [shape for shape in SAMPLE if shape not in HELD_OUT]
FRESH_SEED, FRESH_COUNT = 20261119, 64
EARLIER_FRESH = (sample(31337, 80), sample(20261117, 160), sample(20261118, 240), sample(1182026, 480))
"""Samples that were held out once; slow choices of them are among those that the heuristics are fitted to since."""
_SLOW_CHOICES: tuple[Shape, ...] = ((256, 1792, 3584), (128, 4608, 7168), (8, 18432, 7168), (1500, 2560, 5120))


def _more_fitted(seed: int = 17) -> list[Shape]:
    """Draw shapes of public models for the regions in which choices were slow.

    Most have at most two waves of small tiles, where splits, clusters and widths decide; some have few rows and large
    weights, and some have many rows.
    """
    first, second, *_ = EARLIER_FRESH
    second = [each for each in second if each not in {*SAMPLE, *first}][:64]
    free = sorted(set(every_shape()) - {*SAMPLE, *first, *second})
    random.Random(seed).shuffle(free)
    one_wave = [(m, n, k) for m, n, k in free if 100 <= m <= 1500 and 2**17 < m * n <= 2**22 and k >= 1024]
    few_rows = [(m, n, k) for m, n, k in free if 4 <= m <= 64 and 2**25 < n * k < 2**28]
    many_rows = [(m, n, k) for m, n, k in free if m >= 1500 and 2**22 < m * n <= 2**26 and k >= 1024]
    found = list(_SLOW_CHOICES)
    while one_wave:
        found += [each.pop() for each in (one_wave, one_wave, one_wave, few_rows, many_rows) if each]
    return found[:40]


MORE_FITTED = _more_fitted()
_LATER_SLOW: tuple[Shape, ...] = (
    (777, 1024, 2048), (300, 128256, 4096), (4096, 1280, 8192), (300, 6400, 5120), (256, 2304, 7168), (1500, 9216, 7168),
    (3000, 5120, 8192), (777, 12288, 1536), (8192, 512, 5120), (4, 28672, 8192), (64, 10240, 8192), (4, 5120, 5120),
)  # fmt: skip


def _later_fitted(seed: int = 18) -> list[Shape]:
    """Draw more shapes of 129 to 1500 rows and few waves, in turns with the slow choices of an earlier sample."""
    taken = {*SAMPLE, *EARLIER_FRESH[0], *EARLIER_FRESH[1], *MORE_FITTED}
    free = sorted(set(every_shape()) - taken)
    random.Random(seed).shuffle(free)
    few_waves = [(m, n, k) for m, n, k in free if 129 <= m <= 1500 and 2**17 < m * n <= 2**23 and k >= 1024]
    return [each for pair in zip(few_waves, _LATER_SLOW, strict=False) for each in pair] + few_waves[12:28]


LATER_FITTED = _later_fitted()
_LATEST_SLOW: tuple[Shape, ...] = (
    (777, 5120, 3072), (100, 9472, 3584), (1024, 2048, 7168), (3000, 512, 4096), (8192, 512, 7168), (256, 16384, 512),
    (512, 10240, 8192), (16, 6144, 4096),
)  # fmt: skip


def _latest_fitted(seed: int = 19) -> list[Shape]:
    """Draw shapes of 96 rows and more from 2 GFLOP up, as many of few tiles as of many, after the slow choices."""
    taken = {*SAMPLE, *(each for drawn in EARLIER_FRESH[:3] for each in drawn), *MORE_FITTED, *LATER_FITTED}
    free = sorted(set(every_shape()) - taken)
    random.Random(seed).shuffle(free)
    free = [(m, n, k) for m, n, k in free if m >= 96 and 2e9 < 2 * m * n * k < 4e11 and k >= 512]
    few, some, many = (
        [each for each in free if least < each[0] * each[1] <= most]
        for least, most in ((2**17, 2**21), (2**21, 2**23), (2**23, 2**28))
    )
    found = list(_LATEST_SLOW)
    while len(found) < 80:
        found += [each.pop() for each in (few, some, many) if each]
    return found


LATEST_FITTED = _latest_fitted()
_FITTED_TO = {*MORE_FITTED, *LATER_FITTED, *LATEST_FITTED}
_KNOWN = {*SAMPLE, *(each for drawn in EARLIER_FRESH for each in drawn), *_FITTED_TO}
FRESH = [each for each in sample(FRESH_SEED, 960) if each not in _KNOWN][:FRESH_COUNT]
"""A second sample that nothing is fitted to, for choices that were fitted after the first one had been measured."""

if __name__ == "__main__":
    for name, shapes in (
        ("fitted", FITTED),
        ("held out", HELD_OUT),
        ("also fitted", [*MORE_FITTED, *LATER_FITTED, *LATEST_FITTED]),
        ("fresh", FRESH),
    ):
        print(f"{name}: {len(shapes)}", *sorted(map(label_of, shapes)), sep="\n")
