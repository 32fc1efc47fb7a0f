"""CUDA C++ programs on the CPU emulator: `warploom cuda program.cu …`.

nvcc compiles the program; a small library stands in for the CUDA runtime, and its launches run the program's PTX.
"""
