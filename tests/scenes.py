"""Scenes whose boxes are known: discs, squares and triangles of random sizes and colours on noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = ("disc", "square", "triangle")


def scenes(
    count: int, size: tuple[int, int] = (64, 64), seed: int = 0, most: int = 4
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Pictures (count, 3, height, width), and up to ``most`` boxes in each as CenterNet takes them."""
    rng = np.random.default_rng(seed)
    height, width = size
    x = rng.normal(90, 12, (count, 3, height, width))
    y = np.zeros((count, most, 5), np.float32)
    y[..., 0] = -1
    down, across = np.mgrid[:height, :width]
    for picture, boxes in zip(x, y, strict=True):
        taken = np.zeros(size, bool)
        for row in range(int(rng.integers(1, most + 1))):
            half = int(rng.integers(5, max(7, min(size) // 5)))
            kind, colour = int(rng.integers(3)), rng.choice([-60, 60], 3) + rng.normal(0, 8, 3)
            for _ in range(20):
                middle = int(rng.integers(half, height - half)), int(rng.integers(half, width - half))
                v, h = down - middle[0], across - middle[1]
                square = (abs(v) <= half) & (abs(h) <= half)
                inside = (v**2 + h**2 <= half**2, square, square & (2 * abs(h) <= v + half))[kind]
                if not (taken & square).any():
                    break
            else:
                continue
            taken |= square
            picture[:, inside] += colour[:, None]
            rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
            sides = columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height
            boxes[row] = kind, *sides
        boxes[:] = boxes[np.argsort(boxes[:, 0] < 0, kind="stable")]
    return x.clip(0, 255).astype(np.uint8), y


def write_coco(folder: Path, count: int, ids: tuple[int, ...] = (1, 7, 90), **settings: Any) -> Path:
    """Scenes as COCO's JSON beside its pictures, with numbers of categories that jump."""
    from PIL import Image

    x, y = scenes(count, **settings)
    height, width = x.shape[2:]
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    tables["categories"] = [{"id": number, "name": name} for number, name in zip(ids, CLASSES, strict=True)]
    for number, (picture, boxes) in enumerate(zip(x, y, strict=True)):
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / f"{number:04}.png")
        tables["images"].append({"id": number, "file_name": f"{number:04}.png", "height": height, "width": width})
        for kind, *sides in boxes[boxes[:, 0] >= 0].tolist():
            left, top, right, bottom = (side * size for side, size in zip(sides, (width, height) * 2, strict=True))
            row = {"id": len(tables["annotations"]) + 1, "image_id": number, "category_id": ids[int(kind)]}
            tables["annotations"].append({**row, "bbox": [left, top, right - left, bottom - top], "iscrowd": 0})
    path = folder / "coco.json"
    path.write_text(json.dumps(tables))
    return path
