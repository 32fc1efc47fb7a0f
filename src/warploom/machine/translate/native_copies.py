"""Records of mbarriers and tensor copies, for runs in which every operation completes when it is issued, and of
`cp.async` where operations are late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warploom.hardware.targets import machine
from warploom.machine.engine.control_kernels import FlagWait
from warploom.machine.engine.kernels import OPERANDS, Operand, uniform_word
from warploom.machine.routines.copy_kernels import MbarrierArrive, MbarrierWait, Place, TensorLoad
from warploom.machine.routines.late_copies import LateCommit, LateCopy, LateWait
from warploom.machine.translate.expressions import Writer
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Address, Immediate, Register, Sink

if TYPE_CHECKING:
    from warploom.machine.translate.native_tables import TableWriter
    from warploom.machine.translate.records import Record, Word


_LARGEST_COPY = 16


def _value(writer: TableWriter, w: Writer, operand: object, type_: str, *, alone: bool) -> tuple[Word, Operand] | None:
    """An operand that all lanes share, or (`alone`) of the only lane that takes part."""
    found = writer.operand(w, operand, type_)
    if found is None or found[0] not in ("kab" if alone else "k"):
        return None
    return found[1], OPERANDS[found[0]]


def _address(writer: TableWriter, w: Writer, operand: object, *, alone: bool) -> tuple[list[Word], Place] | None:
    """The words of an address, and its register."""
    if not isinstance(operand, Address):
        return None
    found = _value(writer, w, operand.base, "b64", alone=alone)
    if found is None:
        return None
    narrow = isinstance(operand.base, Register) and w.place(operand.base).bits == 32
    return [found[0], operand.offset], Place(found[1], narrow)


def _wait(writer: TableWriter, w: Writer, op: Op, last: list[Word]) -> Record | None:
    """A wait for a phase by its parity, of all lanes at once."""
    address, done = _address(writer, w, op.operands["a"], alone=False), op.operands["done"]
    parity = _value(writer, w, op.operands["parity"], "b32", alone=False)
    if last or writer.masked or address is None or parity is None or not isinstance(done, Register):
        return None
    if w.place(done).file != "u":
        return None
    words, place = address
    words += [parity[0], uniform_word(w.place(done).index)]
    return writer.made(op, MbarrierWait(place, writer.logged), [*words, *writer.site(op)])


def _arrive(writer: TableWriter, w: Writer, op: Op, last: list[Word]) -> Record | None:
    """Arrivals of which no state is wanted; bytes are announced by one lane."""
    masks, expects = writer.masks(last), op.family.endswith("expect_tx")
    address = _address(writer, w, op.operands["a"], alone=bool(masks))
    if address is None or not isinstance(op.operands["state"], Sink) or op.operands.get("count") is not None:
        return None
    (words, place), announced = address, None
    if expects:
        bytes_ = _value(writer, w, op.operands["bytes"], "b32", alone=bool(masks))
        if bytes_ is None:
            return None
        announced = bytes_[1]
        words += [bytes_[0], machine(writer.target).barrier_tx_limit]
    own = op["space"] in ("shared", "shared::cta")
    return writer.made(
        op, MbarrierArrive(place, announced, own, masks, writer.logged), [*words, *last, *writer.site(op)]
    )


def _load(writer: TableWriter, w: Writer, op: Op, last: list[Word]) -> Record | None:
    """A box that one lane loads into the shared memory of its CTA."""
    source, masks = op.operands["src"], writer.masks(last)
    if op["multicast"] or (op["mode"] or op["late_mode"] or op["last_mode"] or "tile") != "tile":
        return None
    if not isinstance(source, Address) or source.coordinates is None:
        return None
    found = [
        _address(writer, w, place, alone=bool(masks))
        for place in (op.operands["dst"], Address(source.base, source.offset), op.operands["barrier"])
    ]
    words: list[Word] = []
    places: list[Place] = []
    coordinates: list[Operand] = []
    for each in found:
        if each is None:
            return None
        words += each[0]
        places.append(each[1])
    for item in source.coordinates.items:
        coordinate = _value(writer, w, item, "s32", alone=bool(masks))
        if coordinate is None:
            return None
        words.append(coordinate[0])
        coordinates.append(coordinate[1])
    if len(coordinates) != int(op["rank"][0]):
        return None
    pair = "cta_group::2" in (op["group"], op["late_group"], op["last_group"], op["end_group"])
    form = TensorLoad((places[0], places[1], places[2]), tuple(coordinates), pair, masks, writer.logged)
    return writer.made(op, form, [*words, *last, *writer.site(op)])


def _wait_for_wgmmas(writer: TableWriter, w: Writer, op: Op, last: list[Word]) -> Record | None:
    """A wait of whole warps."""
    if last or writer.masked or not isinstance(op.operands["count"], Immediate):
        return None
    return writer.made(op, FlagWait(writer.logged), [*writer.site(op)])


COPIES: dict[str, Callable[[TableWriter, Writer, Op, list[Word]], Record | None]] = {
    "mbarrier.try_wait.parity": _wait,
    "mbarrier.test_wait.parity": _wait,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive.expect_tx": _arrive,
    "cp.async.bulk.tensor.load": _load,
    "wgmma.wait_group": _wait_for_wgmmas,
}
"""The instructions that have records, by family; the last argument are the words of a guard."""


def _late_copy(writer: TableWriter, w: Writer, op: Op) -> Record | None:
    """Addresses in registers that differ by lane; bytes that all lanes share, or in a register."""
    target, source, size, count = (op.operands.get(name) for name in ("dst", "src", "size", "source"))
    if not isinstance(target, Address) or not isinstance(source, Address) or not isinstance(size, Immediate):
        return None
    if op.operands.get("policy") is not None or int(size.value) not in (4, 8, 16):
        return None
    if op["cache"] == "cg" and int(size.value) != _LARGEST_COPY:
        return None
    first, second = writer.operand(w, target.base, "b64"), writer.operand(w, source.base, "b64")
    if first is None or second is None or first[0] not in "ab" or second[0] != "b":
        return None
    words: list[Word] = [first[1], target.offset, second[1], source.offset, int(size.value), writer.number_of(op)]
    if count is None:
        return writer.made(op, LateCopy(first[0], None), words)
    found = writer.operand(w, count, "b32")
    if found is None or found[0] not in "ak":
        return None
    return writer.made(op, LateCopy(first[0], OPERANDS[found[0]]), [*words, found[1]])


def _late_commit(writer: TableWriter, w: Writer, op: Op) -> Record | None:
    return writer.made(op, LateCommit(), [])


def _late_wait(writer: TableWriter, w: Writer, op: Op) -> Record | None:
    leave = op.operands["count"]
    return writer.made(op, LateWait(), [int(leave.value)]) if isinstance(leave, Immediate) else None


LATE: dict[str, Callable[[TableWriter, Writer, Op], Record | None]] = {
    "cp.async": _late_copy,
    "cp.async.commit_group": _late_commit,
    "cp.async.wait_group": _late_wait,
}
"""The instructions that have records where operations are late, for a group that has all threads of its CTA."""
