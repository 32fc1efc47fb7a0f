"""Parts of a GEMM made from a configuration: operand tiles, input pipelines and writers."""
