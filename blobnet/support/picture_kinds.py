"""The kinds of pictures that are read, by their files' suffixes; the command line's help takes nothing heavier.

Pillow's own list of suffixes is not used: it names video, PDF and HDF5 as well, and EPS, for which it runs Ghostscript.
"""

from __future__ import annotations

#: The suffixes of each format, by Pillow's names of formats. Pillow reads them itself, by well-known libraries, or by a
#: plug-in. Whatever a file's name says, others could be in it, and are refused.
_SUFFIXES = {
    "PNG": ".png .apng",
    "JPEG": ".jpg .jpeg .jpe .jfif .mpo",
    "WEBP": ".webp",
    "BMP": ".bmp",
    "DIB": ".dib",
    "GIF": ".gif",
    "TIFF": ".tif .tiff",
    "PPM": ".ppm .pgm .pbm .pnm",
    "JPEG2000": ".jp2 .j2k .jpc .jpf .jpx .j2c",
    "ICO": ".ico",
    "TGA": ".tga .icb .vda .vst",
    "QOI": ".qoi",
    "AVIF": ".avif .avifs",
    "HEIF": ".heic .heics .heif .heifs .hif",
}
#: The format of each suffix, which is in lower case.
FORMATS = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
#: The formats of files that are no pictures of Pillow's, or not all, by the ends of their names (array_files.py).
ARRAY_SUFFIXES = {
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".dcm": "DICOM",
    ".dicom": "DICOM",
}
#: The kind of every file that is read as a picture.
KINDS = {**ARRAY_SUFFIXES, **FORMATS}
#: The plug-in that reads a format where Pillow itself, or an old one, does not: its module and its package.
PLUGINS = {"HEIF": ("pillow_heif.HeifImagePlugin", "pillow-heif"), "AVIF": ("pillow_avif", "pillow-avif-plugin")}
#: Formats whose pictures hold the values that were written, which masks need.
LOSSLESS = ("PNG", "BMP", "DIB", "GIF", "TIFF", "PPM", "TGA", "QOI")
#: Formats whose values may have more than 8 bits, and lose the lower ones.
DEEP = ("PNG", "TIFF", "PPM", "JPEG2000")
#: The kinds, for people.
PICTURE_KINDS = "PNG, JPEG, WebP, TIFF, GIF, BMP, ..."
