"""PDFs for tests: what real programs write, and what nobody would."""

from __future__ import annotations

import zlib
from io import BytesIO

from fpdf import FPDF
from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    BooleanObject,
    DictionaryObject,
    NameObject,
    TextStringObject,
)

from tests.pictures import png_of


def pdf(*pages: str) -> bytes:
    """A page for each text, by a real generator."""
    made = FPDF()
    made.set_font("Helvetica", size=12)
    for text in pages:
        made.add_page()
        made.multi_cell(0, 8, text)
    return bytes(made.output())


def scan(pages: int = 1) -> bytes:
    """Pages that hold a picture each, and no text."""
    made = FPDF()
    for _ in range(pages):
        made.add_page()
        made.image(BytesIO(png_of(40, 40)), x=10, y=10, w=50)
    return bytes(made.output())


def encrypted_pdf(text: str, password: str) -> bytes:
    """Encrypted. With an empty password it only forbids to print."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf(text))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    return _write_pdf(writer)


def form(text: str, **values: str) -> bytes:
    """A page with fields that somebody has filled in."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf(text))))
    fields = ArrayObject()
    for name, value in values.items():
        field = DictionaryObject(
            {
                NameObject("/FT"): NameObject("/Tx"),
                NameObject("/T"): TextStringObject(name),
                NameObject("/V"): TextStringObject(value),
            }
        )
        fields.append(writer._add_object(field))
    writer.root_object[NameObject("/AcroForm")] = DictionaryObject(
        {NameObject("/Fields"): fields, NameObject("/NeedAppearances"): BooleanObject(True)}
    )
    return _write_pdf(writer)


def _write_pdf(writer: PdfWriter) -> bytes:
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


# --- written by hand ------------------------------------------------------------------------------

HEAD = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"


def by_hand(*objects: bytes) -> bytes:
    """A file of these objects, numbered from 1; the first is the catalog."""
    out, places = bytearray(HEAD), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def stream(data: bytes, more: bytes = b"") -> bytes:
    """A stream that is packed."""
    packed = zlib.compress(data, level=1)
    return b"<</Length %d/Filter/FlateDecode%b>>\nstream\n%b\nendstream" % (len(packed), more, packed)


def one_page(content: bytes, *objects: bytes, resources: bytes = b"<</Font<</F1 5 0 R>>>>") -> bytes:
    """A page with this content stream (object 4); `objects` are numbered from 5."""
    return by_hand(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources %b>>" % resources,
        stream(content),
        *objects,
    )


HELVETICA = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"

_CMAP = b"""/CIDInit /ProcSet findresource begin 12 dict begin begincmap
1 begincodespacerange
<0000> <ffff>
endcodespacerange
%b
endcmap end end"""


def glyphs(*, encoding: str, to_unicode: bool = True, in_form: bool = False) -> bytes:
    """`Hi` as numbers of glyphs, in a font that says by `ToUnicode` which letters these are. `encoding`: the map from
    codes to glyphs by its name, or `embedded` as WeasyPrint writes it. `in_form`: the page shows it by a form."""
    font = b"<</Type/Font/Subtype/Type0/BaseFont/A/DescendantFonts[6 0 R]/Encoding %b%b>>" % (
        b"7 0 R" if encoding == "embedded" else encoding.encode(),
        b"/ToUnicode 8 0 R" if to_unicode else b"",
    )
    text = b"BT /F1 12 Tf 50 700 Td [<002b>0<004c>0] TJ ET"
    return one_page(
        b"/X Do" if in_form else text,
        font,
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/A/CIDSystemInfo"
        b"<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>/DW 500>>",
        stream(_CMAP % b"2 begincidchar\n<002b> 43\n<004c> 76\nendcidchar", b"/Type/CMap/CMapName/W"),
        stream(_CMAP % b"2 beginbfchar\n<002b> <0048>\n<004c> <0069>\nendbfchar"),
        stream(text, b"/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</F1 5 0 R>>>>"),
        resources=b"<</XObject<</X 9 0 R>>>>" if in_form else b"<</Font<</F1 5 0 R>>>>",
    )


BOMBS = ("a stream of 200 MiB", "a million texts", "a page tree that doubles")


def bomb(kind: str) -> bytes:
    """A small file, one of `BOMBS`, that would take more time or memory than there is."""
    if kind == "a stream of 200 MiB":
        return one_page(bytes(200 << 20), HELVETICA)
    if kind == "a million texts":
        return one_page(b"BT /F1 12 Tf " + b"(a) Tj " * 1_000_000 + b"ET", HELVETICA)
    return by_hand(
        b"<</Type/Catalog/Pages 2 0 R>>",
        *(b"<</Type/Pages/Count 9/Kids[%b]>>" % (b"%d 0 R " % (number + 1) * 9) for number in range(2, 22)),
        b"<</Type/Page/MediaBox[0 0 9 9]>>",
    )


def broken_pdfs() -> dict[str, bytes]:
    """Files that are no whole PDF."""
    whole = pdf("Hello.")
    return {
        "torn": whole[: len(whole) // 2],
        "nothing but a head": HEAD,
        "noise": HEAD + bytes(range(256)) * 20 + b"\nstartxref\n17\n%%EOF\n",
        "a page tree that holds itself": by_hand(
            b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[2 0 R]>>"
        ),
        "brackets without end": by_hand(b"[" * 100_000),
        "no pages at all": by_hand(b"<</Type/Catalog>>"),
    }
