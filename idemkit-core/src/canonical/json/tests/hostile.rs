//! Documents made to exhaust something. Each is canonicalised on a stack far too small for any recursion.

use rstest::rstest;

use super::*;
use crate::canonical::json::outline::{Member, Object, Outline};

const STACK_BYTES: usize = 128 * 1024;

fn on_a_small_stack(given: String) -> Option<String> {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || canonical(given.as_bytes()));
    thread.expect("a thread").join().expect("no overflow")
}

#[rstest]
#[case("[", "", "]", 1_000_000)]
#[case("[[],", "1", "]", 1_000_000)]
#[case("{\"a\":", "1", "}", 1_000_000)]
#[case("{\"a\":[", "{}", "]}", 500_000)]
#[case("[{\"\":", "\"\"", "}]", 500_000)]
#[case("[", "", "]", 5_000_000)]
fn deep_nesting(#[case] open: &str, #[case] innermost: &str, #[case] close: &str, #[case] depth: usize) {
    let given = [open.repeat(depth).as_str(), innermost, &close.repeat(depth)].concat();
    assert!(on_a_small_stack(given.clone()).is_some_and(|canonical| canonical == given));
}

/// Each level has to be put in order, around all that is in it.
#[test]
fn deep_nesting_out_of_order() {
    const DEPTH: usize = 300_000;
    let given = ["{\"b\":".repeat(DEPTH), "0".into(), ",\"a\":1}".repeat(DEPTH)].concat();
    let expected = ["{\"a\":1,\"b\":".repeat(DEPTH), "0".into(), "}".repeat(DEPTH)].concat();
    assert!(on_a_small_stack(given).is_some_and(|canonical| canonical == expected));
}

/// Each level drops all that is in it but one member.
#[test]
fn deep_nesting_that_is_dropped() {
    const DEPTH: usize = 300_000;
    let given = ["{\"a\":".repeat(DEPTH), "0".into(), ",\"a\":1}".repeat(DEPTH)].concat();
    assert_eq!(on_a_small_stack(given).as_deref(), Some("{\"a\":1}"));
}

#[rstest]
#[case("[", 1_000_000)]
#[case("[", 5_000_000)]
#[case("{\"a\":", 1_000_000)]
#[case("{\"a\":[", 1_000_000)]
#[case("{", 1_000_000)]
#[case("[[],", 1_000_000)]
#[case("]", 1_000_000)]
#[case("\\", 1_000_000)]
#[case("-", 1_000_000)]
#[case("\"", 999_999)]
fn unclosed(#[case] open: &str, #[case] count: usize) {
    assert_eq!(on_a_small_stack(open.repeat(count)), None);
}

#[test]
fn a_megabyte_of_one_name() {
    let members: Vec<_> = (0..120_000).map(|value| format!("\"a\":{value}")).collect();
    assert_eq!(on_a_small_stack(format!("{{{}}}", members.join(","))).as_deref(), Some("{\"a\":119999}"));
    let name = "\\u0061".repeat(200_000);
    let given = format!("{{\"{name}\":1,\"{}\":2}}", "a".repeat(200_000));
    assert_eq!(on_a_small_stack(given), Some(format!("{{\"{}\":2}}", "a".repeat(200_000))));
}

#[test]
fn many_names_with_a_long_common_beginning() {
    let name = |index: usize| format!("\"{}{index:05}\":0", "x".repeat(1_000));
    let descending: Vec<_> = (0..2_000).rev().map(name).collect();
    let ascending: Vec<_> = (0..2_000).map(name).collect();
    let canonical = on_a_small_stack(format!("{{{}}}", descending.join(" , ")));
    assert_eq!(canonical, Some(format!("{{{}}}", ascending.join(","))));
}

#[rstest]
#[case("a", "a")]
#[case("é", "é")]
#[case("\\u00e9", "é")]
#[case("\\u0000", "\\u0000")]
#[case("\\ud83d\\ude00", "😀")]
#[case("\\\\", "\\\\")]
fn ten_megabytes_of_string(#[case] given: &str, #[case] expected: &str) {
    let count = 10_000_000 / given.len();
    let canonical = on_a_small_stack(format!("\"{}\"", given.repeat(count)));
    assert!(canonical == Some(format!("\"{}\"", expected.repeat(count))));
}

/// The largest growth that is possible: `0e15` and alike. It stays within a small factor.
#[test]
fn numbers_cannot_blow_up_the_output() {
    let given = format!("[{}]", vec!["1e15"; 100_000].join(","));
    let canonical = on_a_small_stack(given.clone()).expect("JSON");
    assert!(canonical.starts_with("[1000000000000000.0,"));
    assert!(canonical.len() < 4 * given.len());
}

/// Work and memory, without a clock: the notes of the first pass, which the second walks along, are one for each object
/// and at most one for each member that is written, each of a fixed number of words. Everything else is proportional to
/// the text or the output.
#[rstest]
#[case("[", "]", 0, 0)]
#[case("{\"a\":", "}", 1, 1)]
#[case("[{\"a\":1,\"b\":2,\"a\":", "}]", 1, 2)]
fn notes_are_proportional_to_the_text(
    #[case] open: &str,
    #[case] close: &str,
    #[case] objects: usize,
    #[case] members: usize,
) {
    for depth in [1, 10, 1_000, 100_000] {
        let given = [open.repeat(depth), "[]".into(), close.repeat(depth)].concat();
        let outline = Outline::of(&given).expect("JSON");
        assert_eq!(outline.objects.len(), objects * depth);
        assert_eq!(outline.members.len(), members * depth);
    }
    assert_eq!(size_of::<Object>(), 4 * size_of::<usize>());
    assert_eq!(size_of::<Member>(), 3 * size_of::<usize>());
}

/// Wide and deep at once: with a quadratic step anywhere it would not end.
#[test]
fn a_large_mixed_document() {
    const COUNT: usize = 100_000;
    let given = r#"{"b":[1.5,"\u00e9",{"d":null,"c":[[],{}]}],"a":{"z":{"y":{"x":[]}}},"b":[]},"#;
    let expected = r#"{"a":{"z":{"y":{"x":[]}}},"b":[]},"#;
    let wrap = |item: &str| ["[".repeat(COUNT), item.repeat(COUNT), "0".into(), "]".repeat(COUNT)].concat();
    assert!(on_a_small_stack(wrap(given)) == Some(wrap(expected)));
}
