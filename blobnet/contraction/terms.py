"""The loops over what is aggregated, and their innermost block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from blobnet.contraction.addresses import Addresses, load_text
from blobnet.contraction.c_text import Text, affine, combined, digit, is_one, nested, quotient, summed, times
from blobnet.contraction.form import Affine, Constraint
from blobnet.contraction.loops import clamped
from blobnet.contraction.schedule import operand_names
from blobnet.contraction.table import Load, Operand


class Terms(Addresses):
    """Writes the terms of a block of cells."""

    def chunks(self, loops: dict[str, None], sizes: dict[str, int]) -> None:
        """Loops over what passes through local memory at a time; what is left at their ends is written out again."""
        chunked = [name for name in loops if self.schedule.chunks.get(name, self.extents[name]) < self.extents[name]]
        todo = [name for name in chunked if name not in sizes]
        if not todo:
            if self.tiles:
                self.put("barrier(CLK_LOCAL_MEM_FENCE);")
                for operand in self.tiles:
                    self.fill(operand, sizes)
                self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            limits = {name: sizes.get(name, self.extents[name]) for name in loops}
            self.loop(list(loops), limits)
            return
        name = todo[0]
        size, extent = self.schedule.chunks[name], self.extents[name]
        origin = self.name(f"{self.index_names[name]}_chunk")
        rest = extent - extent % size
        is_sample = name == self.table.sample_reduction
        end = f"min({rest}, {self.samples_left(name)})" if is_sample else rest
        with self.block(f"for (int {origin} = 0; {origin} < {end}; {origin} += {size})"):
            self.chunk(name, origin, loops, {**sizes, name: size})
        if extent % size:
            with self.group_block(f"{rest} < {self.samples_left(name)}" if is_sample else ""):
                self.chunk(name, str(rest), loops, {**sizes, name: extent % size})

    def chunk(self, name: str, origin: str, loops: dict[str, None], sizes: dict[str, int]) -> None:
        """One chunk of an index, from ``origin`` on."""
        before = dict(self.pointers)
        self.firsts[name] = origin
        self.step_pointers(name, origin, [operand for operand in self.pointers if operand not in self.tiles])
        self.chunks(loops, sizes)
        self.pointers = before
        del self.firsts[name]

    def fill(self, operand: Operand, sizes: Mapping[str, int]) -> None:
        """Copies a tile of an operand to local memory, all work-items of the group together."""
        tile = self.tiles[operand]
        extents = [
            1 + sum(abs(factor) // step * (self.tile_size(name, sizes) - 1) for name, factor in form.terms)
            for (_, form), step in zip(operand.axes, tile.steps, strict=True)
        ]
        names = [index.name for index in self.table.outputs] + [name for name in sizes if name in self.firsts]
        low = sum(
            stride * factor * (self.tile_size(name, sizes) - 1)
            for stride, form in operand.axes
            for name, factor in form.terms
            if factor < 0
        )
        buffer = self.buffers[operand.name]
        count = math.prod(extents)
        with self.block(""):
            firsts = [times(self.firsts.get(name, "0"), operand.origin_stride(name)) for name in names]
            offset = summed(operand.start + low, *firsts)
            self.put(f"__global const {self.c_type(operand.name)} *const from = {summed(buffer, offset)};")
            start, step = ("thread", self.schedule.threads) if self.schedule.threads > 1 else ("0", 1)
            with self.block(f"for (int element = {start}; element < {count}; element += {step})"):
                axes = sorted(range(len(extents)), key=lambda axis: -operand.axes[axis][0])
                axes = [axis for axis in axes if extents[axis] > 1]
                below, source, target = 1, [], []
                for axis in reversed(axes):
                    extent = extents[axis]
                    text = digit("element", below, extent if below * extent < count else 0)
                    below *= extent
                    source.append(times(text, operand.axes[axis][0] * tile.steps[axis]))
                    target.append(times(text, tile.strides[axis]))
                to, at = summed(*target), summed(*source)
                value = f"load_narrow(from + {at})" if self.is_narrow(operand.name) else f"from[{at}]"
                self.put(f"{self.tile_names[operand]}[{to}] = {value};")

    def loop(self, names: list[str], limits: Mapping[str, int]) -> None:
        """The loops that are left, outermost first, and the innermost block."""
        looped = [name for name in names if name not in self.schedule.unrolled]
        if not looped:
            self.terms(limits, self.schedule.lanes)
            return
        name, rest = looped[0], [other for other in names if other != looped[0]]
        index = self.index_names[name]
        if name == self.schedule.vector:
            self.vector_loop(name, limits)
            return
        chunk = self.firsts.get(name)
        start, end = self.bounds(name, [*rest, *self.schedule.unrolled], limits[name])
        step = f"{index}++"
        if self.share and name == self.schedule.shared[0]:
            start = self.share if start == "0" else f"{start} + {self.share}"
            step = f"{index} += {self.schedule.shared[1]}"
        elif limits[name] == 1 and (start, end) == ("0", "1"):
            self.values[name] = chunk or "0"
            self.loop(rest, limits)
            return
        with self.block(f"for (int {index} = {start}; {index} < {end}; {step})"):
            before = dict(self.pointers)
            self.values[name] = index if chunk in (None, "0") else f"({chunk} + {index})"
            self.step_pointers(name, index, list(self.pointers))
            self.loop(rest, limits)
            self.pointers = before

    def vector_loop(self, name: str, limits: Mapping[str, int]) -> None:
        """The innermost loop in whole vectors, and what is left of it one by one."""
        lanes, extent = self.schedule.lanes, limits[name]
        index = self.index_names[name]
        whole = extent - extent % lanes
        for start, end, width in ((0, whole, lanes), (whole, extent, 1)):
            if start < end:
                with self.block(f"for (int {index} = {start}; {index} < {end}; {index} += {width})"):
                    before = dict(self.pointers)
                    self.values[name] = index
                    self.step_pointers(name, index, list(self.pointers))
                    self.terms(limits, width)
                    self.pointers = before

    def inside(self, constraint: Constraint) -> str:
        text = affine(constraint.form, self.values)
        return f"{text} >= 0 && {text} < {constraint.size}"

    def bounds(self, name: str, inner: list[str], extent: int) -> tuple[str, str]:
        """First value of a loop, and one past the last: what constraints leave that tie it to what is outside."""
        own = [
            bound
            for bound in self.table.constraints
            if bound.form.coefficient(name) and not any(bound.form.coefficient(other) for other in inner)
        ]
        firsts, lasts = (
            [quotient(affine(form, self.values), divisor) for form, divisor in ends]
            for ends in clamped(name, own, {index.name: range(index.extent) for index in self.table.indexes})
        )
        lows, highs = ["0", *firsts], [str(extent), *(f"{last} + 1" for last in lasts)]
        if name == self.table.sample_reduction:
            highs.append(self.samples_left(name))
        if len(lows) == len(highs) == 1:
            return lows[0], highs[0]
        index = self.index_names[name]
        start, end = self.name(f"{index}_start"), self.name(f"{index}_stop")
        self.put(f"const int {start} = {nested('max', lows)};")
        self.put(f"const int {end} = {nested('min', highs)};")
        return start, end

    def samples_left(self, name: str) -> str:
        """One past the last value of the index that runs over samples, from the start of the chunk that it is in on."""
        form = self.table.sample
        assert form is not None
        assert form.coefficient(name) == 1, form
        before = [affine(form - Affine.index(name), self.values), self.firsts.get(name, "0")]
        return " - ".join([self.count, *(f"({text})" for text in before if text != "0")])

    def terms(self, limits: Mapping[str, int], lanes: int) -> None:
        """The innermost block: loads, each once, and the terms of all cells of the block."""
        table = self.table
        type_ = self.type if lanes > 1 or self.vector_output else "float"
        prefix = self.total if type_ == self.type else "tail"
        loaded: dict[tuple[Operand, int], str] = {}
        unrolled = [[(name, value) for value in range(limits[name])] for name in self.schedule.unrolled]
        combinations = [dict(combination) for combination in itertools.product(*unrolled)]
        self.runs = self.neighbours(combinations, lanes)
        for steps in combinations:
            values = {
                **self.values,
                **{name: self.sum_text(self.firsts.get(name, "0"), step) for name, step in steps.items()},
            }
            for place in self.block_places():
                text = self.text_of(type_, {**place, **steps}, values, loaded, lanes)
                total = self.place_name(prefix, place)
                term = text.of(table.expression)
                if table.aggregation in "<>" and not term.isidentifier():
                    term = text.note(term)
                if table.aggregation in "+*=" and term.startswith("(") and term.endswith(")") and is_one(term):
                    term = term[1:-1]
                self.put(combined(table.aggregation, total, term))

    def neighbours(self, combinations: list[dict[str, int]], lanes: int) -> dict[tuple[Operand, int], tuple[int, int]]:
        """Return for neighbours in a wide operand where their vector begins, and how many it has."""
        runs: dict[tuple[Operand, int], tuple[int, int]] = {}
        names = operand_names(self.table)
        for operand in map(names.__getitem__, self.schedule.wide):
            tile = self.tiles.get(operand)
            strides = {name: tile.stride(operand, name) if tile else operand.stride(name) for name in self.extents}
            if lanes > 1 and strides[self.schedule.vector]:
                continue  # They are loaded as the vector's lanes.
            offsets = {
                sum(strides[name] * step for name, step in {**place, **steps}.items())
                for steps in combinations
                for place in self.block_places()
            }
            while offsets:
                first = min(offsets)
                width = next(width for width in (16, 8, 4, 2, 1) if offsets.issuperset(range(first, first + width)))
                offsets -= set(range(first, first + width))
                if width > 1:
                    runs |= {(operand, offset): (first, width) for offset in range(first, first + width)}
        return runs

    def load_run(
        self, operand: Operand, first: int, width: int, type_: str, loaded: dict[tuple[Operand, int], str]
    ) -> None:
        """Loads a vector of neighbours, and notes what each of them is called."""
        self.widths.add(width)
        name = self.name(f"{self.buffers[operand.name]}_{first}_to_{first + width - 1}".replace("-", "m"))
        space = "LOAD_LOCAL" if operand in self.tiles else self.loads(operand.name)
        self.put(f"const float{width} {name} = {load_text(self.pointers[operand], first, 1, width, space)};")
        for lane in range(width):
            text = f"{name}.s{lane:x}"
            loaded[operand, first + lane] = text if type_ == "float" else f"(({type_})({text}))"

    @property
    def innermost(self) -> str:
        """The index of the innermost loop."""
        return next((name for name in reversed(self.loops) if name not in self.schedule.unrolled), "")

    def steps_afar(self, operand: Operand) -> bool:
        """Return True if what the innermost loop reads next of an operand in memory is to be asked for ahead."""
        near = self.schedule.lanes
        return self.schedule.ahead > 0 and operand not in self.tiles and operand.stride(self.innermost) > near

    def text_of(
        self,
        type_: str,
        steps: Mapping[str, int],
        values: Mapping[str, str],
        loaded: dict[tuple[Operand, int], str],
        lanes: int,
    ) -> Text:
        """Return a function that writes expressions of the terms at one place."""
        vector = self.schedule.vector if lanes > 1 else ""

        def load(node: Load) -> str:
            operand = node.operand
            tile = self.tiles.get(operand)
            stride = (lambda n: tile.stride(operand, n)) if tile else operand.stride
            offset = sum(stride(name) * step for name, step in steps.items())
            if (operand, offset) in self.runs and (operand, offset) not in loaded:
                self.load_run(operand, *self.runs[operand, offset], type_, loaded)
            if (operand, offset) not in loaded:
                loads = "LOAD_ALIGNED" if tile and tile.aligned else "LOAD_LOCAL" if tile else self.loads(operand.name)
                value = load_text(self.pointers[operand], offset, stride(vector) if vector else 0, lanes, loads)
                name = self.name(f"{self.buffers[operand.name]}_{offset}".replace("-", "m"))
                if vector and stride(vector) == 1 and self.steps_afar(operand):
                    later = offset + self.schedule.ahead * stride(self.innermost)
                    self.put(f"PREFETCH({self.pointers[operand]} + {later});")
                self.put(f"const {type_} {name} = {value};")
                loaded[operand, offset] = name
            return loaded[operand, offset]

        place = self.placer(type_, steps, values, vector)
        return Text(type_, load, place, "", self.noter(type_), self.rounder(type_))
