"""Python processes that a program on the emulator starts."""
