"""The end of a block of cells: expressions of the totals, and stores of vectors, lanes or single cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import cache

from blobnet.contraction.addresses import Addresses, load_text
from blobnet.contraction.c_text import Text, affine, combined, summed, times
from blobnet.contraction.form import Affine
from blobnet.contraction.schedule import combining
from blobnet.contraction.table import Index, Load, Operand, Store, loads_of


class Stores(Addresses):
    """Writes the stores of a block of cells."""

    def reduce_lanes(self, place: Mapping[str, int]) -> None:
        """Combines the lanes of a total, pairwise, and the tail."""
        total, tail = self.place_name(self.total, place), self.place_name("tail", place)
        lanes, source = self.schedule.lanes, total
        while lanes > 1:
            lanes //= 2
            type_ = "float" if lanes == 1 else f"float{lanes}"
            low, high = ("s0", "s1") if lanes == 1 else ("lo", "hi")
            half = self.name(f"{total}_{lanes}")
            other = self.name(f"{total}_{lanes}")
            self.put(f"{type_} {half} = {source}.{low};")
            self.put(f"const {type_} {other} = {source}.{high};")
            self.put(combined(self.table.aggregation, half, other))
            source = half
        self.put(combined(self.table.aggregation, tail, source))

    def combine_shares(self, places: list[dict[str, int]]) -> None:
        """Combines what work-items that share an index have come to: the first of them has all of it then."""
        prefix = "tail" if self.schedule.lanes > 1 and not self.vector_output else self.total
        type_ = self.type if self.vector_output else "float"
        items = self.schedule.shared[1]
        mine, step = self.name(f"{self.partials}_at"), self.partial_step
        self.put(f"__local {type_} *const {mine} = (__local {type_} *){summed(self.partials, self.partial_place)};")
        size = (items - 1) * self.schedule.owners
        if any(tile.walk > 1 for tile in self.schedule.tiles.values()):
            self.put("barrier(CLK_LOCAL_MEM_FENCE);")  # Those of the tile before have been read.
        taken = 0
        for before, after in combining(items):
            with self.block(f"if ({self.share} >= {after}{f' && {self.share} < {before}' if before < items else ''})"):
                for number, place in enumerate(places):
                    at = f"{times(f'({self.share} - {after - taken})', step)} + {number * size}"
                    self.put(f"{mine}[{at}] = {self.place_name(prefix, place)};")
            self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            with self.block(f"if ({self.share} < {after})"):
                for first in range(after, before, after):
                    guard = f"if ({self.share} < {before - first})" if first + after > before else ""
                    with self.block(guard):
                        for number, place in enumerate(places):
                            at = f"{times(f'({self.share} + {first - after + taken})', step)} + {number * size}"
                            other = self.name("other")
                            self.put(f"const {type_} {other} = {mine}[{at}];")
                            self.put(combined(self.table.aggregation, self.place_name(prefix, place), other))
            taken += before - after

    def stores(self, places: list[dict[str, int]]) -> None:
        prefix = "tail" if self.schedule.lanes > 1 and not self.vector_output else self.total
        by_lanes = self.vector_output and not self.stores_vectors()
        if by_lanes and self.schedule.threads == 1:
            self.store_by_cells(places, prefix)
            return
        for place in places:
            total = self.place_name(prefix, place)
            if by_lanes:
                for lane in range(self.schedule.lanes):
                    at = {**place, self.schedule.vector: place[self.schedule.vector] + lane}
                    self.store_lane(f"{total}.s{lane:x}", at)
                continue
            guards = self.guards({name: self.sum_text(self.values[name], step) for name, step in place.items()})
            loads = self.table.accumulates or any(loads_of(store.expression) for store in self.table.stores)
            with self.when(guards) if guards or loads else nullcontext():
                self.store_place(total, place)

    def store_lane(self, total: str, place: Mapping[str, int]) -> None:
        """Stores one lane of a vector by itself."""
        guards = self.guards({name: self.sum_text(self.values[name], step) for name, step in place.items()})
        with self.when(guards):
            self.store_place(total, place, scalar=True)

    def stores_vectors(self) -> bool:
        """Return True if the lanes of a vector go to neighbouring elements, all of them."""
        vector = self.schedule.vector
        index, tile = self.table.index(vector), self.schedule.tile(vector)
        if self.overhangs(vector) and index.extent % tile.step:
            return False
        if self.table.updates and index.extent % tile.step:
            return False
        if self.table.sample_cell and self.table.sample_cell.coefficient(vector):
            return False
        if index.period:
            # Between the rows must be zeros, and no cells of other indexes.
            store = self.table.stores[0].operand
            others = [other for other in self.table.outputs if other != index and other.extent > 1]
            within = any(abs(store.stride(other.name)) < index.period for other in others)
            if within or not self.table.covers or self.table.updates or self.table.has_slack:
                return False
        return all(store.operand.stride(vector) == 1 for store in self.table.stores)

    def masks(self, index: Index) -> bool:
        """Return True if whole vectors are stored, with zeros between rows, where zeros are."""
        return index.name == self.schedule.vector and self.stores_vectors()

    def guards(self, values: Mapping[str, str]) -> list[str]:
        """Return the conditions for a cell to be stored by this work-item."""
        found = []
        sample = self.table.sample_cell
        # Of a tile of one sample nothing is done where there is none.
        if sample and (len(sample.terms) > 1 or self.schedule.tile(sample.indexes[0]).step > 1 or sample.offset):
            found.append(f"{affine(sample, values)} < {self.count}")
        for index in self.table.outputs:
            tile, value = self.schedule.tile(index.name), values[index.name]
            ragged = index.extent % tile.step
            if index.period and not self.masks(index):
                found.append(f"({value}) % {index.period} < {index.kept}")
            if self.overhangs(index.name) and ragged:
                found.append(f"{value} < {index.extent}")
            elif self.table.updates and ragged and self.starts.get(index.name, "0") != "0":
                found.append(f"{value} >= {self.starts[index.name]}")
        return found

    def store_place(self, total: str, place: Mapping[str, int], scalar: bool = False) -> None:
        """The stores of one place of the block, scalar or vector."""
        is_vector = self.vector_output and not scalar
        lanes = self.schedule.lanes if is_vector else 1
        type_ = self.type if is_vector else "float"
        vector = self.schedule.vector if is_vector else ""

        def element(operand: Operand) -> str:
            step = sum(operand.stride(name) * value for name, value in place.items())
            return summed(self.offset_text(operand), step)

        def load(operand: Operand) -> str:
            stride, at = operand.stride(vector) if vector else 0, element(operand)
            if lanes == 1 or not stride:
                return self.element_text(operand.name, at)
            pointer = f"({summed(self.buffers[operand.name], at)})"
            return load_text(pointer, 0, stride, lanes, self.loads(operand.name))

        column = self.sum_text(self.values[vector], place[vector]) if vector else ""
        self.write(total, type_, self.placer(type_, place, self.values, vector), element, load, column)

    def store_row_ends(self, name: str, value: str, at: str, first: str) -> None:
        """Stores a vector that may reach beyond a row: zeros there, as there have been."""
        index, lanes = self.table.index(self.schedule.vector), self.schedule.lanes
        with self.block(""):
            self.put(f"{self.type} row = {value};")
            self.put(f"const int column = ({first}) % {index.period};")
            with self.block(f"if (column + {lanes} > {index.kept})"):
                numbers = ", ".join(map(str, range(lanes)))
                keep = f"(column + (int{lanes})({numbers})) % {index.period} < {index.kept}"
                self.put(f"row = ({keep}) ? row : ({self.type})(0.0f);")
            self.put(self.store_vector_text(name, "row", at))

    def write(
        self,
        total: str,
        type_: str,
        place: Callable[[Affine], str],
        element: Callable[[Operand], str],
        load: Callable[[Operand], str] | None = None,
        gap_column: str = "",
    ) -> None:
        """Write what becomes of a total: one more term, expressions, stores.

        ``place`` gives the text of a form's value, ``element`` that of an operand's place, ``load`` that of what is
        there: one number by default.
        """
        stores: tuple[Store, ...] = self.table.stores

        def loaded(node: Load) -> str:
            operand = node.operand
            name = self.name(f"{self.buffers[operand.name]}_value")
            value = load(operand) if load else self.element_text(operand.name, element(operand))
            self.put(f"const {type_} {name} = {value};")
            return name

        if self.table.accumulates:
            self.put(combined(self.table.aggregation, total, loaded(Load(stores[0].operand))))
        text = Text(type_, cache(loaded), place, total, self.noter(type_), self.rounder(type_))
        values = [text.of(store.expression) for store in stores]  # All loads come before the first store.
        for store, value in zip(stores, values, strict=True):
            at, name = element(store.operand), store.operand.name
            if type_ == "float":
                self.put(self.store_text(name, value, at))
            elif self.table.index(self.schedule.vector).period:
                self.store_row_ends(name, value, at, gap_column)
            else:
                self.put(self.store_vector_text(name, value, at))

    def store_by_cells(self, places: list[dict[str, int]], prefix: str) -> None:
        """Stores where lanes are not neighbours in memory: the block goes through private memory, cell by cell."""
        table = self.table
        store = table.stores[0].operand
        blocked = [name for name in self.outputs if self.schedule.tile(name).block > 1]
        # The innermost loop takes the closest elements of what is stored.
        inner = sorted(blocked, key=lambda name: -abs(store.stride(name)))
        vector = self.schedule.vector
        layout = [name for name in blocked if name != vector] + [vector]
        strides, size = {}, 1
        for name in reversed(layout):
            strides[name] = size
            size *= self.schedule.tile(name).block
        results = self.name("results")
        self.put(f"float {results}[{size}] __attribute__((aligned(64)));")
        for place in places:
            at = 0
            for name in layout:
                at += strides[name] * (place[name] // self.lanes(name) * self.lanes(name))
            self.put(f"*({self.type} *)({results} + {at}) = {self.place_name(prefix, place)};")
        self.depth_of_cells(inner, strides, results)

    def depth_of_cells(self, inner: list[str], strides: Mapping[str, int], results: str) -> None:
        values = dict(self.values)
        steps = {name: self.name(f"{self.index_names[name]}_step") for name in inner}
        with ExitStack() as blocks:
            for name, step in steps.items():
                count = self.schedule.tile(name).block
                blocks.enter_context(self.block(f"for (int {step} = 0; {step} < {count}; {step}++)"))
                at = self.name(f"{self.index_names[name]}_cell")
                self.put(f"const int {at} = {summed(values[name], step)};")
                values[name] = at
            guards = self.guards(values)
            if guards:
                blocks.enter_context(self.when(guards))
            total = self.name(self.total)
            where = summed(*(times(step, strides[name]) for name, step in steps.items()))
            self.put(f"float {total} = {results}[{where}];")

            def element(operand: Operand) -> str:
                moves = (times(values[index.name], operand.stride(index.name)) for index in self.table.outputs)
                return summed(operand.start, *moves)

            self.write(total, "float", lambda form: f"(float)({affine(form, values)})", element)
