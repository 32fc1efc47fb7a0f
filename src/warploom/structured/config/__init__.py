"""Configurations: what a kernel is to be, what follows from it, and whether the machine can do it."""

from warploom.structured.config.choose import choose_config
from warploom.structured.config.hopper import HopperConfig
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.config.matmul import DERIVED, MatmulConfig
from warploom.structured.config.output import EpilogueConfig, OutputPipelineConfig
from warploom.structured.config.problem import Problem
from warploom.structured.config.rules import validate, violations
from warploom.structured.config.scaled import BlockScaledMatmulConfig, BlockScaledTmem, BlockwiseFP8MatmulConfig

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
    "choose_config",
    "validate",
    "violations",
]
