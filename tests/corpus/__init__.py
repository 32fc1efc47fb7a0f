"""PTX of other compilers: Triton, Gluon and CUDA C++ kernels with their launches and NumPy references."""
