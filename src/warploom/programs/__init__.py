"""Programs of other compilers on the emulator: the options, launches and tensor maps that their packages share."""
