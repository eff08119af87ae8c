use proptest::prelude::*;

use super::*;

/// A document, and not yet any way of writing it.
#[derive(Clone, Debug)]
enum Document {
    Token(&'static str),
    Integer(i128),
    Double(f64),
    Text(String),
    Array(Vec<Document>),
    Object(Vec<(String, Document)>),
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{0,2}", "[\0-\u{20}\"\\\\/é\u{7f}\u{2028}\u{fffd}😀]{0,4}", any::<String>()]
}

fn document() -> impl Strategy<Value = Document> {
    let scalar = prop_oneof![
        prop::sample::select(&["null", "true", "false"][..]).prop_map(Document::Token),
        any::<i128>().prop_map(Document::Integer),
        prop::num::f64::NORMAL.prop_map(Document::Double),
        prop::num::f64::SUBNORMAL.prop_map(Document::Double),
        text().prop_map(Document::Text),
    ];
    scalar.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Document::Array),
            prop::collection::btree_map(text(), inner, 0..5)
                .prop_map(|map| Document::Object(map.into_iter().collect())),
        ]
    })
}

/// Choices of a writer, drawn one after the other from a seed.
struct Writer {
    state: u64,
    out: String,
}

impl Writer {
    fn write(seed: u64, document: &Document) -> String {
        let mut writer = Self { state: seed, out: String::new() };
        writer.value(document);
        writer.out
    }

    fn choose(&mut self, count: usize) -> usize {
        // The constants of Knuth's MMIX generator; its upper bits are the good ones.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.state >> 33).unwrap() % count
    }

    fn space(&mut self) {
        let space = ["", "", "", " ", "\t", "\n", "\r\n  "][self.choose(7)];
        self.out.push_str(space);
    }

    fn value(&mut self, document: &Document) {
        self.space();
        match document {
            Document::Token(token) => self.out.push_str(token),
            Document::Integer(integer) => self.out.push_str(&integer.to_string()),
            Document::Double(double) => {
                let shortest = format!("{double:e}");
                let token = match (self.choose(4), shortest.split_once('e')) {
                    (0, _) => format!("{double:.25E}"),
                    // Exact: no double has more digits after the point.
                    (1, _) => format!("{double:.1074}"),
                    (2, Some((mantissa, exponent))) => match exponent.strip_prefix('-') {
                        Some(magnitude) => format!("{mantissa}E-00{magnitude}"),
                        None => format!("{mantissa}e+0{exponent}"),
                    },
                    _ => shortest,
                };
                self.out.push_str(&token);
            }
            Document::Text(text) => self.text(text),
            Document::Array(elements) => {
                self.out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    self.out.push_str(if index > 0 { "," } else { "" });
                    self.value(element);
                }
                self.space();
                self.out.push(']');
            }
            Document::Object(members) => self.object(members),
        }
        self.space();
    }

    fn object(&mut self, members: &[(String, Document)]) {
        let mut members: Vec<_> = members.iter().collect();
        for index in 1..members.len() {
            members.swap(index, self.choose(index + 1));
        }
        self.out.push('{');
        self.space();
        for (index, (name, value)) in members.iter().enumerate() {
            self.out.push_str(if index > 0 { "," } else { "" });
            self.space();
            if self.choose(8) == 0 {
                // An earlier member of the same name, which does not count.
                self.text(name);
                self.out.push_str(":{\"a\":[{}]},");
            }
            self.text(name);
            self.space();
            self.out.push(':');
            self.value(value);
        }
        self.out.push('}');
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            let short = "\"\"\\\\//\u{8}b\u{c}f\nn\rr\tt".chars().collect::<Vec<_>>();
            let short = short.chunks(2).find(|pair| pair[0] == character).map(|pair| pair[1]);
            let required = character < ' ' || matches!(character, '"' | '\\');
            match (self.choose(3), short) {
                (0, Some(letter)) => self.out.extend(['\\', letter]),
                (1, _) if !required => self.out.push(character),
                _ => {
                    let upper = self.choose(2) == 0;
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
                    }
                }
            }
        }
        self.out.push('"');
    }
}

proptest! {
    #[test]
    fn the_way_of_writing_does_not_count(document in document(), seeds in any::<[u64; 2]>()) {
        let [one, other] = seeds.map(|seed| Writer::write(seed, &document));
        let canonical_one = canonical(one.as_bytes());
        prop_assert!(canonical_one.is_some(), "{}", one);
        prop_assert_eq!(canonical_one, canonical(other.as_bytes()));
    }

    #[test]
    fn canonical_is_its_own_canonical_form(document in document(), seed in any::<u64>()) {
        let once = canonical(Writer::write(seed, &document).as_bytes()).expect("JSON");
        prop_assert_eq!(canonical(once.as_bytes()), Some(once));
    }

    /// What parses here, and only that, parses with serde_json, which is as strict; and it still means the same.
    #[test]
    fn serde_json_reads_the_same(document in document(), seed in any::<u64>(), cut in any::<prop::sample::Index>(), put in "[\\[\\]{},:\"\\\\0-9.eE+ \n-]?") {
        let whole = Writer::write(seed, &document);
        let at = (0..=cut.index(whole.len() + 1)).rev().find(|at| whole.is_char_boundary(*at)).unwrap_or(0);
        for text in [whole.clone(), whole[..at].to_owned(), [&whole[..at], &put, &whole[at..]].concat()] {
            let read = serde_json::from_str::<serde_json::Value>(&text);
            match canonical(text.as_bytes()) {
                // Integers that no serde_json number holds are doubles there: not comparable, except by what parses.
                Some(once) => if let (Ok(read), Ok(again)) = (read, serde_json::from_str::<serde_json::Value>(&once)) {
                    prop_assert!(same(&read, &again), "{} became {}", text, once);
                },
                None => prop_assert!(read.is_err(), "{}", text),
            }
        }
    }

    #[test]
    fn any_bytes_end_well(bytes in any::<Vec<u8>>()) {
        // Bytes that happen to be JSON are checked by the other tests; here it is about those that are not.
        let _ = canonical(&bytes);
    }

    #[test]
    fn text_that_is_nearly_json_ends_well(text in "[\\[\\]{},:\"\\\\untrefals0-9.eE+ -]{0,40}") {
        let read = serde_json::from_str::<serde_json::Value>(&text);
        match canonical(text.as_bytes()) {
            Some(once) => if !once.contains("Infinity") {
                prop_assert!(read.is_ok(), "{}", text);
                prop_assert_eq!(canonical(once.as_bytes()), Some(once));
            },
            None => prop_assert!(read.is_err(), "{}", text),
        }
    }

    #[test]
    fn doubles_keep_their_value(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        let text = canonical(format!("{value:e}.").trim_end_matches('.').as_bytes()).expect("JSON");
        prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(bits));
        prop_assert!(text.contains(['.', 'e']));
    }

    #[test]
    fn long_and_short_numbers_parse_alike(whole in "0|[1-9][0-9]{0,25}", fraction in "[0-9]{0,25}", exponent in -400_i32..400, sign in "-?") {
        let token = format!("{sign}{whole}.{fraction}0e{exponent}");
        let long = format!("{sign}{whole}.{fraction}{}e{exponent}", "0".repeat(10_001));
        prop_assert_eq!(canonical(long.as_bytes()), canonical(token.as_bytes()));
    }
}

/// Equal, but for doubles, which serde_json reads to within a few units of the last place only.
fn same(one: &serde_json::Value, other: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (one, other) {
        (Number(one), Number(other)) => match (one.as_f64(), other.as_f64()) {
            (Some(one), Some(other)) => (one - other).abs() <= one.abs() * 1e-14 + f64::MIN_POSITIVE,
            _ => false,
        },
        (Array(one), Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Object(one), Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|((name, one), (other_name, other))| name == other_name && same(one, other))
        }
        _ => one == other,
    }
}
