"""The work on each subtile: compute the outputs from accumulators and epilogue inputs, and pass them to the sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warploom.structured.epilogue.auxiliary import EpilogueInput
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.sinks import DirectStore, Sink, TmaStore
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.subtiles import Position, Subtile
from warploom.structured.epilogue.warp_exchange import WarpExchange
from warploom.trace.language.types import Number
from warploom.trace.language.values import Value


@dataclass(frozen=True)
class EpilogueInputs:
    """Epilogue inputs that are not operands of the epilogue: they come through shared memory or registers."""

    bias: EpilogueInput | None = None
    up_bias: EpilogueInput | None = None
    residual: EpilogueInput | None = None

    def values(self, subtile: Subtile) -> dict[str, Values]:
        """Return the values of the inputs that exist, by the epilogue's names."""
        named = {"bias": self.bias, "up_bias": self.up_bias, "residual": self.residual}
        return {name: each.values(subtile) for name, each in named.items() if each is not None}


@dataclass(frozen=True)
class SubtileWork:
    """The epilogue of a tile and its sinks: C and staged auxiliary outputs go to `sink`, the others to `direct`."""

    epilogue: Epilogue
    sink: Sink
    scale: Value | Number = 1.0
    inputs: EpilogueInputs = EpilogueInputs()
    direct: Sequence[DirectStore] = ()
    """Direct stores of the auxiliary outputs that the sink does not take."""
    exchange: WarpExchange | None = None

    def finish(self, subtile: Subtile, values: Values, up: Values | None = None) -> None:
        """Compute a subtile of an accumulator, or of a gate and up pair, and pass it to the sinks."""
        given = {"value": values, **({} if up is None else {"up": up}), **self.inputs.values(subtile)}
        if self.exchange is not None and isinstance(self.sink, TmaStore):
            self._finish_runs(subtile, given, self.exchange, self.sink)
            return
        made = {where: self._applied(subtile.at(*where), _picked(given, where)) for where in values}
        self._store(subtile, [{where: each[number] for where, each in made.items()} for number in self._numbers])

    @property
    def _numbers(self) -> range:
        return range(1 + len(self.epilogue.outputs))

    def _applied(self, at: Position, given: dict[str, Value]) -> tuple[Value, ...]:
        return self.epilogue.apply(given.pop("value"), at, scale=self.scale, **given)

    def _store(self, subtile: Subtile, results: Sequence[Values]) -> None:
        for store, values in zip(self.direct, results[1:], strict=False):
            store.put(subtile, values)
        self.sink.put(subtile, *(results[:1] if self.direct else results))

    def _finish_runs(self, subtile: Subtile, given: dict[str, Values], exchange: WarpExchange, sink: TmaStore) -> None:
        """Do the same in the row layout: accumulators and epilogue inputs are exchanged through shared memory."""
        tiles = sink.open(subtile)
        wide = {name: {where: value.to("f32") for where, value in each.items()} for name, each in given.items()}
        runs = {name: list(exchange.runs(each)) for name, each in wide.items()}
        for number, (run, held) in enumerate(runs["value"]):
            places = [exchange.position(subtile, run, at) for at in range(len(held))]
            made = [
                self._applied(place, {name: each[number][1][at] for name, each in runs.items()})
                for at, place in enumerate(places)
            ]
            for output, (ring, tile) in enumerate(zip(sink.rings, tiles, strict=True)):
                exchange.stage(ring.subtiles.layout, tile, run, [each[output] for each in made])
            for output, store in enumerate(self.direct, 1):
                for place, each in zip(places, made, strict=True):
                    store.put_at(place, each[output])
        sink.close(subtile, tiles)


def _picked(given: dict[str, Values], where: tuple[int, int]) -> dict[str, Value]:
    return {name: each[where] for name, each in given.items()}
