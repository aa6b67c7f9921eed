"""The end of a block of cells: expressions of the totals, and stores of vectors, lanes or single cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from blobnet.contraction.addresses import Addresses, load_text
from blobnet.contraction.c_text import Text, affine, combined, times
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
        self.put(f"__local {type_} *const {mine} = (__local {type_} *){self.partials}{self.plus(self.partial_place)};")
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
            if guards:
                with self.block(f"if ({' && '.join(guards)})"):
                    self.store_place(total, place)
            elif any(loads_of(store.expression) for store in self.table.stores) or self.table.accumulates:
                with self.block(""):
                    self.store_place(total, place)
            else:
                self.store_place(total, place)

    def store_lane(self, total: str, place: Mapping[str, int]) -> None:
        """Stores one lane of a vector by itself."""
        guards = self.guards({name: self.sum_text(self.values[name], step) for name, step in place.items()})
        with self.block(f"if ({' && '.join(guards)})" if guards else ""):
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
        names = [index.name for index in self.table.outputs]

        def element(operand: Operand) -> str:
            offset = self.offset_text(operand, names, with_threads=True)
            step = sum(operand.stride(name) * value for name, value in place.items())
            return offset if not step else f"{offset} + {step}".replace("+ -", "- ") if offset != "0" else str(step)

        def load(node: Load) -> str:
            buffer = self.buffers[node.operand.name]
            stride = node.operand.stride(vector) if vector else 0
            name = self.name(f"{buffer}_value")
            at = element(node.operand)
            if lanes > 1 and stride:
                value = load_text(f"({buffer}{self.plus(at)})", 0, stride, lanes, self.loads(node.operand.name))
            else:
                value = self.element_text(node.operand.name, at)
            self.put(f"const {type_} {name} = {value};")
            return name

        column = self.sum_text(self.values[vector], place[vector]) if vector else ""
        self.write(total, type_, load, self.placer(type_, place, self.values, vector), element, column)

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
        load: Callable[[Load], str],
        place: Callable[[Affine], str],
        element: Callable[[Operand], str],
        gap_column: str = "",
    ) -> None:
        """Write what becomes of a total: one more term, expressions, stores."""
        stores: tuple[Store, ...] = self.table.stores
        if self.table.accumulates:
            self.put(combined(self.table.aggregation, total, load(Load(stores[0].operand))))
        memory: dict[Operand, str] = {}

        def load_once(node: Load) -> str:
            if node.operand not in memory:
                memory[node.operand] = load(node)
            return memory[node.operand]

        text = Text(type_, load_once, place, total, self.noter(type_), self.rounder(type_))
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
                tile, width = self.schedule.tile(name), self.lanes(name)
                at += strides[name] * (place[name] // (tile.threads * width) * width)
            self.put(f"*({self.type} *)({results} + {at}) = {self.place_name(prefix, place)};")
        self.depth_of_cells(inner, strides, results)

    def depth_of_cells(self, inner: list[str], strides: Mapping[str, int], results: str) -> None:
        values = dict(self.values)
        steps = {name: self.name(f"{self.index_names[name]}_step") for name in inner}
        opened = 0
        for name in inner:
            tile, width = self.schedule.tile(name), self.lanes(name)
            step = steps[name]
            self.put(f"for (int {step} = 0; {step} < {tile.block}; {step}++) {{")
            self.depth += 1
            opened += 1
            moved = step
            if tile.threads > 1:
                moved = (
                    f"{step} / {width} * {tile.threads * width} + {step} % {width}"
                    if width > 1
                    else f"{step} * {tile.threads}"
                )
            at = self.name(f"{self.index_names[name]}_cell")
            base = values[name]
            self.put(f"const int {at} = {moved if base == '0' else f'{base} + {moved}'};")
            values[name] = at
        guards = self.guards(values)
        if guards:
            self.put(f"if ({' && '.join(guards)}) {{")
            self.depth += 1
            opened += 1
        total = self.name(self.total)
        where = " + ".join(times(steps[name], strides[name]) for name in inner)
        self.put(f"float {total} = {results}[{where}];")

        def element(operand: Operand) -> str:
            parts = [str(operand.start)] if operand.start else []
            for index in self.table.outputs:
                stride = operand.stride(index.name)
                if stride and values[index.name] != "0":
                    parts.append(times(values[index.name], stride))
            return " + ".join(parts or ["0"]).replace("+ -", "- ")

        def load(node: Load) -> str:
            name = self.name(f"{self.buffers[node.operand.name]}_value")
            self.put(f"const float {name} = {self.element_text(node.operand.name, element(node.operand))};")
            return name

        def place(form: Affine) -> str:
            return f"(float)({affine(form, values)})"

        self.write(total, "float", load, place, element)
        for _ in range(opened):
            self.depth -= 1
            self.put("}")
