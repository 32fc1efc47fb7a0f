"""The state that the checker keeps of a run: agents and clocks, barriers, memories, operations in flight, lifetimes."""
