"""PTX that nobody tuned the machine to: Triton, Gluon and CUDA C++ kernels with their launches and NumPy references."""
