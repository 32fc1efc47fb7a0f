"""The public names as type checkers see them: none is missing, and none is invented."""

import warploom
from warploom import HopperConfig, MatmulConfig, linear, matmul, nn, tune

made = MatmulConfig(), HopperConfig(), linear, matmul, nn, tune
version: str = warploom.__version__
more = warploom.gated_linear, warploom.Fault, warploom.plan_matmul
print(warploom.matmull)  # error
