"""The whole corpus: every case of every language."""

from __future__ import annotations

from . import cases_cuda, cases_cuda_more, cases_gluon, cases_triton, cases_triton_matmul, cases_triton_more
from .case import Case

_MODULES = (cases_triton, cases_triton_matmul, cases_triton_more, cases_gluon, cases_cuda, cases_cuda_more)
CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in module.CASES)
