"""Configurations: what a kernel is to be, what follows from it, and whether the machine can do it."""

from warploom.structured.config.output import EpilogueConfig, OutputPipelineConfig
from warploom.structured.config.problem import Problem
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.config.sm100 import DERIVED, MatmulConfig
from warploom.structured.config.sm100_rules import validate, violations
from warploom.structured.config.sm100_scaled import BlockScaledMatmulConfig, BlockScaledTmem, BlockwiseFP8MatmulConfig

__all__ = [
    "DERIVED",
    "BlockScaledMatmulConfig",
    "BlockScaledTmem",
    "BlockwiseFP8MatmulConfig",
    "EpilogueConfig",
    "HopperBlockwiseConfig",
    "HopperConfig",
    "MatmulConfig",
    "OutputPipelineConfig",
    "Problem",
    "validate",
    "violations",
]
