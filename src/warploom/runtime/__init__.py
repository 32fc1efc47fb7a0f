"""The path to a GPU: assembly by ptxas, disassembly, the cache on disk, launches, and the doctor."""

from warploom.runtime.cache.disk import Cache, user_cache
from warploom.runtime.cache.fingerprint import fingerprint, source_version
from warploom.runtime.toolchain.assembler import Assembly, assemble
from warploom.runtime.toolchain.sass import Sass, disassemble

__all__ = ["Assembly", "Cache", "Sass", "assemble", "disassemble", "fingerprint", "source_version", "user_cache"]
