//! Expected values are those of Python 3.11, `json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"),
//! ensure_ascii=False)`, and of `repr` for doubles, wherever both agree on what JSON is.

mod hostile;
mod numbers;
mod properties;

use rstest::rstest;

use super::*;

#[track_caller]
fn assert_canonical(given: impl AsRef<[u8]>, expected: &str) {
    assert_eq!(canonical(given.as_ref()).as_deref(), Some(expected));
}

#[track_caller]
fn assert_refused(given: impl AsRef<[u8]>) {
    assert_eq!(canonical(given.as_ref()), None);
}

#[rstest]
#[case("null", "null")]
#[case("true", "true")]
#[case(" false\n", "false")]
#[case("\"\"", "\"\"")]
#[case("[]", "[]")]
#[case("{}", "{}")]
#[case("\t[\r\n]  ", "[]")]
#[case(" { } ", "{}")]
#[case("[ 1 , 2 ,3 ]", "[1,2,3]")]
#[case("[[],[[]],{},[{}]]", "[[],[[]],{},[{}]]")]
#[case("[[ ] , { } , null]", "[[],{},null]")]
#[case(r#"{"b":[3,1,{"y":null,"x":true}],"a":{}}"#, r#"{"a":{},"b":[3,1,{"x":true,"y":null}]}"#)]
#[case(
    r#"[{"b":1,"a":[{"d":{},"c":{"f":1,"e":2}},{}]},{"z":0,"y":{}}]"#,
    r#"[{"a":[{"c":{"e":2,"f":1},"d":{}},{}],"b":1},{"y":{},"z":0}]"#
)]
#[case(r#"{ "b" : { "c" : { } , "a" : [ ] } , "a" : [ { } , { } ] }"#, r#"{"a":[{},{}],"b":{"a":[],"c":{}}}"#)]
#[case(
    r#"{"c":{"x":{"b":1,"a":2}},"b":{"y":{"d":1,"c":2}},"a":[{"f":1,"e":2}]}"#,
    r#"{"a":[{"e":2,"f":1}],"b":{"y":{"c":2,"d":1}},"c":{"x":{"a":2,"b":1}}}"#
)]
fn structure(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given, expected);
}

#[rstest]
#[case(r#"{"a":1,"a":2}"#, r#"{"a":2}"#)]
#[case(r#"{"a":1,"b":0,"a":{"y":1,"x":2},"c":{"v":1,"u":2}}"#, r#"{"a":{"x":2,"y":1},"b":0,"c":{"u":2,"v":1}}"#)]
// The object that is dropped holds objects of its own: what follows must not be taken for them.
#[case(
    r#"{"a":{"p":{"q":1},"o":[{},{}]},"a":{"n":1,"m":2},"b":{"l":1,"k":2}}"#,
    r#"{"a":{"m":2,"n":1},"b":{"k":2,"l":1}}"#
)]
#[case(r#"{"a":{},"a":[]}"#, r#"{"a":[]}"#)]
#[case(r#"{"a":1,"\u0061":2,"\u0061":3}"#, r#"{"a":3}"#)]
#[case(r#"{"\u0061":3,"a":1}"#, r#"{"a":1}"#)]
#[case(r#"{"\/":1,"/":2}"#, r#"{"/":2}"#)]
#[case(r#"{"😀":1,"\ud83d\ude00":2}"#, r#"{"😀":2}"#)]
#[case(r#"{"":1,"":2}"#, r#"{"":2}"#)]
// No Unicode normalisation: these two names are different texts.
#[case("{\"e\u{301}\":1,\"é\":2}", "{\"e\u{301}\":1,\"é\":2}")]
fn the_last_of_repeated_names_counts(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given, expected);
}

#[rstest]
#[case(
    r#"{"b":1,"a":2,"":3,"aa":4,"B":5,"A":6,"1":7,"10":8,"2":9,"_":0}"#,
    r#"{"":3,"1":7,"10":8,"2":9,"A":6,"B":5,"_":0,"a":2,"aa":4,"b":1}"#
)]
// UTF-16 would order these two the other way round.
#[case(r#"{"😀":1,"￮":2,"a":3}"#, r#"{"a":3,"￮":2,"😀":1}"#)]
// By the characters, and not by the way that they are written in.
#[case(r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#)]
#[case(r#"{"é":1,"z":2,"\u00e8":3}"#, r#"{"z":2,"è":3,"é":1}"#)]
#[case(r##"{"\"":1,"!":2,"#":3,"\\":4,"[":5,"]":6}"##, r##"{"!":2,"\"":1,"#":3,"[":5,"\\":4,"]":6}"##)]
#[case(r#"{"a\u0000":1,"a":2,"a ":3,"\n":4}"#, r#"{"\n":4,"a":2,"a\u0000":1,"a ":3}"#)]
#[case(
    "{\"\u{7f}\":1,\"~\":2,\"\u{80}\":3,\"\u{10ffff}\":4,\"\u{ffff}\":5}",
    "{\"~\":2,\"\u{7f}\":1,\"\u{80}\":3,\"\u{ffff}\":5,\"\u{10ffff}\":4}"
)]
fn names_go_by_code_point(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given, expected);
}

#[rstest]
#[case(r#""\u00e9é""#, r#""éé""#)]
#[case(r#""\/""#, r#""/""#)]
#[case(r#""\"\\\b\f\n\r\t""#, r#""\"\\\b\f\n\r\t""#)]
#[case(r#""\u0022\u005c\u0008\u000c\u000a\u000d\u0009""#, r#""\"\\\b\f\n\r\t""#)]
#[case(r#""\u0000\u0001\u000B\u001F\u000e""#, r#""\u0000\u0001\u000b\u001f\u000e""#)]
#[case(r#""\u007f\u0080\u2028\u2029\ufeff""#, "\"\u{7f}\u{80}\u{2028}\u{2029}\u{feff}\"")]
#[case("\"\u{7f}<>&'\"", "\"\u{7f}<>&'\"")]
#[case(r#""\ud83d\ude00\uD83D\uDE00😀""#, r#""😀😀😀""#)]
#[case(r#""\ud800\udc00\udbff\udfff""#, "\"\u{10000}\u{10ffff}\"")]
#[case(r#""\uffff\ufffe\ud7ff\ue000""#, "\"\u{ffff}\u{fffe}\u{d7ff}\u{e000}\"")]
#[case(r#""\\u0041\\""#, r#""\\u0041\\""#)]
#[case(r#""\u00411""#, r#""A1""#)]
#[case(r#""\u005cu0041""#, r#""\\u0041""#)]
#[case(r#""a\nb""#, r#""a\nb""#)]
#[case("\" [ { , : } ] \"", "\" [ { , : } ] \"")]
fn strings(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given, expected);
}

#[rstest]
#[case("")]
#[case(" ")]
#[case("[")]
#[case("]")]
#[case("{")]
#[case("}")]
#[case("[}")]
#[case("{]")]
#[case("[1}")]
#[case("{\"a\":1]")]
#[case("[1,]")]
#[case("[,1]")]
#[case("[1,,2]")]
#[case("[1 2]")]
#[case("[1]]")]
#[case("[][]")]
#[case("1 2")]
#[case("{},")]
#[case(":")]
#[case(",")]
#[case("{\"a\"}")]
#[case("{\"a\":}")]
#[case("{\"a\":")]
#[case("{\"a\":1")]
#[case("{\"a\" 1}")]
#[case("{\"a\"::1}")]
#[case("{\"a\":1,}")]
#[case("{,}")]
#[case("{,\"a\":1}")]
#[case("{\"a\":1 \"b\":2}")]
#[case("{\"a\":1,,\"b\":2}")]
#[case("{a:1}")]
#[case("{1:1}")]
#[case("{null:1}")]
#[case("{'a':1}")]
#[case("{[]:1}")]
#[case("{\"a\":1:2}")]
#[case("[\"a\":1]")]
#[case("[:]")]
#[case("{:}")]
#[case("tru")]
#[case("True")]
#[case("truee")]
#[case("nul")]
#[case("nulll")]
#[case("truefalse")]
#[case("NaN")]
#[case("Infinity")]
#[case("-Infinity")]
#[case("-NaN")]
#[case("[NaN]")]
#[case("{\"a\":Infinity}")]
#[case("undefined")]
#[case("// comment\n1")]
#[case("[1/**/]")]
#[case("'a'")]
fn other_text_does_not_parse(#[case] given: &str) {
    assert_refused(given);
}

#[rstest]
#[case(r#"""#)]
#[case(r#""a"#)]
#[case(r#""\"#)]
#[case(r#""\""#)]
#[case(r#""\x41""#)]
#[case(r#""\a""#)]
#[case(r#""\0""#)]
#[case(r#""\'""#)]
#[case(r#""\U0041""#)]
#[case(r#""\u""#)]
#[case(r#""\u004""#)]
#[case(r#""\u004"#)]
#[case(r#""\u004g""#)]
#[case(r#""\u+041""#)]
#[case(r#""\u 041""#)]
#[case(r#""\u-041""#)]
#[case(r#""\u0_41""#)]
#[case(r#""\u{41}""#)]
#[case(r#""\u00é""#)]
#[case("\"\\é\"")]
#[case(r#""\ud800""#)]
#[case(r#""\udc00""#)]
#[case(r#""\udbff""#)]
#[case(r#""\udfff""#)]
#[case(r#""\ud800x""#)]
#[case(r#""\ud800\n""#)]
#[case(r#""\ud800\u0041""#)]
#[case(r#""\ud800\ud800""#)]
#[case(r#""\ud800\ue000""#)]
#[case(r#""\ud800\udbff\udc00""#)]
#[case(r#""\udc00\ud800""#)]
#[case(r#""\ud83d\ude0""#)]
#[case(r#""\ud83d\"#)]
#[case(r#""\ud83d\u"#)]
#[case(r#"{"\ud800":1}"#)]
// Also where the value would be dropped, as an earlier one of a repeated name.
#[case(r#"{"a":"\ud800","a":1}"#)]
#[case("\"a\nb\"")]
#[case("\"a\tb\"")]
#[case("\"\0\"")]
#[case("\"\u{1f}\"")]
#[case("{\"a\n\":1}")]
fn strings_that_do_not_parse(#[case] given: &str) {
    assert_refused(given);
}

/// White space is that of JSON only, and not what Unicode or ASCII at large call so.
#[rstest]
#[case("\u{a0}1")]
#[case("\u{b}1")]
#[case("1\u{c}")]
#[case("[\u{2028}1]")]
#[case("[1\u{3000}]")]
#[case("[1\u{85}]")]
#[case("[1\0]")]
#[case("1\0")]
#[case("[1\u{feff}]")]
fn other_white_space_does_not_parse(#[case] given: &str) {
    assert_refused(given);
}

#[test]
fn one_leading_byte_order_mark_is_skipped() {
    assert_canonical("\u{feff}{ }", "{}");
    assert_canonical("\u{feff} \"\u{feff}\"", "\"\u{feff}\"");
    assert_refused("\u{feff}");
    assert_refused("\u{feff}\u{feff}1");
    assert_refused(" \u{feff}1");
    assert_refused("1\u{feff}");
    assert_refused(b"\xEF\xBB1");
}

#[rstest]
#[case(b"\"\xFF\"")]
#[case(b"\"\xC3\"")]
#[case(b"\"\xC0\x80\"")]
#[case(b"\"\xED\xA0\x80\"")]
#[case(b"\"\xED\xA0\xBD\xED\xB8\x80\"")]
#[case(b"\"\xF4\x90\x80\x80\"")]
#[case(b"1\xFF")]
#[case(b"\xFF")]
// UTF-16 and UTF-32, which Python would guess, with and without byte order marks.
#[case(b"[\0]\0")]
#[case(b"\0[\0]")]
#[case(b"\xFF\xFE[\0]\0")]
#[case(b"\xFE\xFF\0[\0]")]
#[case(b"1\0\0\0")]
fn other_encodings_do_not_parse(#[case] given: &[u8]) {
    assert_refused(given);
}
