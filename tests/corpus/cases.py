"""The whole corpus: every case of every language."""

from __future__ import annotations

from . import cases_cuda, cases_gluon, cases_triton, cases_triton_matmul
from .case import Case

CASES: tuple[Case, ...] = (*cases_triton.CASES, *cases_triton_matmul.CASES, *cases_gluon.CASES, *cases_cuda.CASES)
