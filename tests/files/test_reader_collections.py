"""The shapes of well-known collections of CSV tests (csv-spectrum, csvkit, DuckDB), with data of our own."""

from __future__ import annotations

import pytest

from crmctl.errors import UsageError
from tests.support.bulkfiles import read, source_of

SPECTRUM = {
    "comma in quotes": ('first,last,place,zip\nAda,King,"Ealing, Surrey",01234', [["Ada", "King", "Ealing, Surrey", "01234"]]),
    "empty": ('a,b,c\n1,"",""\n2,3,4', [["1", "", ""], ["2", "3", "4"]]),
    "empty crlf": ('a,b,c\r\n1,"",""\r\n2,3,4', [["1", "", ""], ["2", "3", "4"]]),
    "escaped quotes": ('a,b\n1,"he ""said"" so"\n3,4\n', [["1", 'he "said" so'], ["3", "4"]]),
    "json": ('key,val\n1,"{""at"": [10.0, 0.5], ""b"": {}}"\n', [["1", '{"at": [10.0, 0.5], "b": {}}']]),
    "location coordinates": (
        "phone,at,city\n2095550100,51°30'26.5\"N 0°7'40\"W,London",
        [["2095550100", "51°30'26.5\"N 0°7'40\"W", "London"]],
    ),
    "newlines": ('a,b,c\n1,2,3\n"one \nday",5,6\n7,8,9\n', [["1", "2", "3"], ["one \nday", "5", "6"], ["7", "8", "9"]]),
    "newlines crlf": ('a,b,c\r\n1,2,3\r\n"one \r\nday",5,6\r\n', [["1", "2", "3"], ["one \r\nday", "5", "6"]]),
    "quotes and newlines": ('a,b\n1,"one \n""fine"" \nday"\n3,4\n', [["1", 'one \n"fine" \nday'], ["3", "4"]]),
    "simple": ("a,b,c\n1,2,3\n", [["1", "2", "3"]]),
    "simple crlf": ("a,b,c\r\n1,2,3\r\n", [["1", "2", "3"]]),
    "utf8": ("a,b,c\n1,2,3\n4,5,ʤ🙂", [["1", "2", "3"], ["4", "5", "ʤ🙂"]]),
}

ODDITIES = {
    "csvkit: a mark before a quoted header": ('\ufeff"a","b"\n1,2\n', [["1", "2"]]),
    "csvkit: only a header": ("a,b,c\n", []),
    "csvkit: no header cell is quoted, every value is": ('a,b\n"1","2"\n', [["1", "2"]]),
    "csvkit: blanks around everything": ("a,b\n 1 ,  2\n", [[" 1 ", "  2"]]),
    "csvkit: a blank row of delimiters": ("a,b\n1,2\n,\n", [["1", "2"], ["", ""]]),
    "csvkit: one column of numbers with decimal commas": ("a;b\n1,5;x\n2,5;y\n", [["1,5", "x"], ["2,5", "y"]]),
    "DuckDB: a delimiter in the last unquoted cell": ("a,b\n1,2,3\n4,5\n", ["too_many_cells", ["4", "5"]]),
    "DuckDB: an unterminated quote at the end": ('a,b\n1,2\n3,"4\n', [["1", "2"], "unclosed_quote"]),
    "DuckDB: text after a quote ends its own row only": ('a,b\n"1"2,3\n4,5\n', ["text_after_quote", ["4", "5"]]),
    "DuckDB: a quoted line end after text after a quote": ('a,b\n"1"2,"3\n4,5"\n6,7\n', ["text_after_quote", ["6", "7"]]),
    "DuckDB: unpaired quotes take the rest": ('a,b\n"1"2"\n3,4\n"5",6\n', ["text_after_quote"]),
    "DuckDB: a quote opened early and closed by another cell": ('a,b\n"1,2\n3,"x\ny,z"\n5,6\n', ["text_after_quote"]),
    "DuckDB: a backslash escapes nothing": ('a,b\n"1\\"x",2\n3,4\n', ["text_after_quote"]),
    "DuckDB: a blank before a paired quote stays": ('a,b\n1, "2"\n', [["1", ' "2"']]),
    "DuckDB: a blank before a quote that spans lines": ('a,b\n1, "2\nx,y"\n3,4\n', ["text_before_quote"]),
    "DuckDB: null padding is asked for": ("a,b,c\n1\n", ["too_few_cells"]),
    "files joined with their headers": ("a,b\n1,2\na,b\n3,4\n", [["1", "2"], "repeated_header", ["3", "4"]]),
    "files joined with their marks": ("\ufeffa,b\n1,2\n\ufeffa,b\n3,4\n", [["1", "2"], "repeated_header", ["3", "4"]]),
    "an end of file of another age": ("a,b\n1,2\n\x1a", [["1", "2"], "too_few_cells"]),
}


@pytest.mark.parametrize("case", [*SPECTRUM, *ODDITIES])
def test_each_case_gives_its_cells_or_a_named_problem(tmp_path, case):
    text, expected = {**SPECTRUM, **ODDITIES}[case]
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize("case", SPECTRUM)
def test_each_case_is_the_same_in_other_encodings(tmp_path, case, encoding):
    text, expected = SPECTRUM[case]
    declared = encoding if encoding.endswith(("-le", "-be")) else None
    assert read(tmp_path, text.encode(encoding), encoding=declared) == expected


def test_excel_safe_prefixes_are_removed_only_on_request(tmp_path):
    from crmctl.models.field_paths import delimited_row

    values = ["=1+1", "'=1+1", "''=1", "-5", "'-5", "+49 30", "@x", "'tis", "'", "plain", "\t=x", "-"]
    text = "a\n" + "".join(delimited_row([value], excel_safe=True) for value in values)
    assert [cells[0] for cells in read(tmp_path, text, excel_safe=True, delimiter="comma")] == values
    assert read(tmp_path, text, delimiter="comma")[0] == ["'=1+1"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_text_without_a_mark_is_refused_with_its_name(tmp_path, encoding):
    with pytest.raises(UsageError) as caught:
        source_of(tmp_path, "name,city\nZoë,Köln\n".encode(encoding))
    assert (caught.value.code, caught.value.hint) == ("undecodable", f"--encoding {encoding}")


def test_an_unfinished_last_line_gets_a_warning(tmp_path):
    for content, told in [(b"a\n1", True), (b"a\n1\n", False), (b"a\r1\r", False), ("a\n1\n".encode("utf-16"), False)]:
        assert any("cut off" in note for note in source_of(tmp_path, content).dialect.notes) is told


def test_detected_formats_are_reported(tmp_path):
    assert source_of(tmp_path, "a;b\n1;2\n".encode("utf-16")).dialect.told == [
        "read as csv, separated by ';', utf-16-le with a byte order mark"
    ]
