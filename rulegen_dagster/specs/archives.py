"""The archive that a DOCX file is: opened only after its directory has been judged, and read part by part."""

import io
import zipfile
import zlib
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from rulegen_dagster.specs.refusals import Refusal, refused

MAX_ENTRIES = 2_000
"""Most files in one archive."""

MAX_EXPANDED = 100_000_000
"""Most bytes of all files of an archive together, by its own directory."""

MAX_PART = 30_000_000
"""Most bytes of one part that is read."""

MAX_RATIO = 200
"""Largest expansion of one part; text in XML reaches 20. Parts below `_RATIO_FROM` bytes may be emptier."""

MAX_ELEMENTS = 1_000_000
MAX_XML_DEPTH = 400

_RATIO_FROM = 1_000_000
_ENCRYPTED_FLAG = 0x1
_METHODS = frozenset((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
_BOMB = "the archive expands too far for a document ({reason}); save the document anew"
_BROKEN = "the archive is damaged or cut short; save the document anew and upload that"


class Archive:
    """A judged archive; parts are read whole, never written to disk."""

    def __init__(self, data: bytes) -> None:
        """Read the directory. Raises `SpecError` (`broken_file`, `archive_bomb`, `encrypted`)."""
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
            raise refused(Refusal.BROKEN_FILE, _BROKEN) from None
        entries = self._zip.infolist()
        self.names = frozenset(entry.filename for entry in entries)
        self._judge(entries)

    def _judge(self, entries: list[zipfile.ZipInfo]) -> None:
        if len(entries) > MAX_ENTRIES:
            raise refused(Refusal.ARCHIVE_BOMB, _BOMB.format(reason=f"more than {MAX_ENTRIES:,} files"))
        if len(self.names) < len(entries):
            # Two readers would read two documents.
            raise refused(Refusal.BROKEN_FILE, _BROKEN)
        if sum(entry.file_size for entry in entries) > MAX_EXPANDED:
            raise refused(Refusal.ARCHIVE_BOMB, _BOMB.format(reason=f"more than {MAX_EXPANDED:,} bytes"))
        for entry in entries:
            if entry.flag_bits & _ENCRYPTED_FLAG:
                raise refused(Refusal.ENCRYPTED, "the archive is encrypted; save the document without a password")
            if entry.compress_type not in _METHODS:
                raise refused(Refusal.BROKEN_FILE, _BROKEN)
            if entry.file_size > max(_RATIO_FROM, entry.compress_size * MAX_RATIO):
                raise refused(Refusal.ARCHIVE_BOMB, _BOMB.format(reason=f"more than {MAX_RATIO} to 1"))

    def xml(self, name: str) -> Element | None:
        """Return the root of an XML part, or None where the archive has no such part.

        Raises `SpecError` (`broken_file`, `archive_bomb`, `xml_entities`, `too_deep`, `too_complex`).
        """
        if name not in self.names:
            return None
        return parsed_xml(self._bytes(name))

    def _bytes(self, name: str) -> bytes:
        try:
            with self._zip.open(name) as part:
                data = part.read(MAX_PART + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, EOFError, RuntimeError):
            raise refused(Refusal.BROKEN_FILE, _BROKEN) from None
        if len(data) > MAX_PART:
            raise refused(Refusal.ARCHIVE_BOMB, _BOMB.format(reason=f"one part of more than {MAX_PART:,} bytes"))
        return data


def parsed_xml(data: bytes) -> Element:
    """Return the tree of an XML text, names as `{namespace}name`; a document type declaration is refused.

    Entities can be declared only there, so none is ever expanded and no file or address is ever opened.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    open_elements = seen = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal open_elements, seen
        open_elements += 1
        seen += 1
        if open_elements > MAX_XML_DEPTH:
            raise refused(Refusal.TOO_DEEP, f"the document is nested deeper than {MAX_XML_DEPTH} levels; flatten it")
        if seen > MAX_ELEMENTS:
            raise refused(Refusal.TOO_COMPLEX, f"the document has more than {MAX_ELEMENTS:,} elements; split it")
        builder.start(_name(name), {_name(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal open_elements
        open_elements -= 1
        builder.end(_name(name))

    def doctype(*_: object) -> None:
        raise refused(
            Refusal.XML_ENTITIES,
            "the document declares entities of its own, which could name other files; save it anew in a word processor",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, AssertionError, ValueError, LookupError):
        raise refused(Refusal.BROKEN_FILE, "a part of the document is no valid XML; save the document anew") from None


def _name(name: str) -> str:
    return f"{{{name}" if "}" in name else name
