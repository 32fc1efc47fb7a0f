"""Configurations of the library's kernels: fields, derivations and rules for Hopper (sm90) and Blackwell (sm100)."""

from warploom.structured.config.base import DERIVED, GemmConfig, validate, violations
from warploom.structured.config.output import EpilogueConfig, OutputPipelineConfig
from warploom.structured.config.problem import Problem
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.config.sm100 import MatmulConfig
from warploom.structured.config.sm100_scaled import BlockScaledMatmulConfig, BlockScaledTmem, BlockwiseFP8MatmulConfig

__all__ = [
    "DERIVED",
    "BlockScaledMatmulConfig",
    "BlockScaledTmem",
    "BlockwiseFP8MatmulConfig",
    "EpilogueConfig",
    "GemmConfig",
    "HopperBlockwiseConfig",
    "HopperConfig",
    "MatmulConfig",
    "OutputPipelineConfig",
    "Problem",
    "validate",
    "violations",
]
