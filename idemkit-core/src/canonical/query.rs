//! Canonical queries and forms (`application/x-www-form-urlencoded`).

/// Pairs in order of name and then value, by code point, each in one encoding.
///
/// Escapes are decoded before text is, so that a character whose bytes are partly escaped is one character. Bytes that
/// are no UTF-8 become U+FFFD, in each name and value for itself.
pub(crate) fn query(query: &[u8]) -> String {
    let mut pairs = Pairs::default();
    for piece in query.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty()) {
        pairs.decode(piece);
    }
    pairs.encode()
}

/// All names and values in one text: a form of many short pairs would take several times the memory with a text for
/// each.
#[derive(Default)]
struct Pairs {
    text: String,
    pairs: Vec<Pair>,
    /// Bytes of the name or value that is being decoded.
    bytes: Vec<u8>,
}

/// Offsets in [`Pairs::text`]: the name, and the value right after it.
struct Pair {
    name_start: usize,
    value_start: usize,
    value_end: usize,
}

impl Pairs {
    fn decode(&mut self, piece: &[u8]) {
        let equals = piece.iter().position(|byte| *byte == b'=').unwrap_or(piece.len());
        let (name, value) = piece.split_at(equals);
        let name_start = self.text.len();
        self.decode_text(name);
        let value_start = self.text.len();
        self.decode_text(value.get(1..).unwrap_or_default());
        self.pairs.push(Pair { name_start, value_start, value_end: self.text.len() });
    }

    fn decode_text(&mut self, text: &[u8]) {
        self.bytes.clear();
        let mut rest = text;
        while let [first, tail @ ..] = rest {
            rest = tail;
            self.bytes.push(match (first, tail) {
                (b'+', _) => b' ',
                (b'%', [high, low, after @ ..]) => match (nibble(*high), nibble(*low)) {
                    (Some(high), Some(low)) => {
                        rest = after;
                        high << 4 | low
                    }
                    _ => b'%',
                },
                _ => *first,
            });
        }
        self.text.push_str(&String::from_utf8_lossy(&self.bytes));
    }

    fn encode(mut self) -> String {
        let (name, value) = (
            |pair: &Pair| &self.text[pair.name_start..pair.value_start],
            |pair: &Pair| &self.text[pair.value_start..pair.value_end],
        );
        // Equal pairs are the same text, so that nothing depends on their order.
        self.pairs.sort_unstable_by(|one, other| (name(one), value(one)).cmp(&(name(other), value(other))));
        let mut canonical = String::with_capacity(self.text.len() + 2 * self.pairs.len());
        for pair in &self.pairs {
            if !canonical.is_empty() {
                canonical.push('&');
            }
            encode(name(pair), &mut canonical);
            canonical.push('=');
            encode(value(pair), &mut canonical);
        }
        canonical
    }
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn encode(text: &str, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => {
                out.push('%');
                out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                out.push(char::from(DIGITS[usize::from(byte & 0xF)]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "")]
    #[case("&", "")]
    #[case("&&a&&", "a=")]
    #[case("=", "=")]
    #[case("==", "=%3D")]
    #[case("=v", "=v")]
    #[case("a=b=c", "a=b%3Dc")]
    #[case("a", "a=")]
    #[case("a=&a", "a=&a=")]
    #[case("=&a&=", "=&=&a=")]
    #[case("b=2&a=1&a=0", "a=0&a=1&b=2")]
    #[case("a=1+2&b=%2B&c=", "a=1+2&b=%2B&c=")]
    #[case("a=%20&a=+", "a=+&a=+")]
    #[case("q=%E2%82%AC&p=~-_.", "p=~-_.&q=%E2%82%AC")]
    #[case("q=€", "q=%E2%82%AC")]
    #[case("%61=%62", "a=b")]
    #[case("a=%", "a=%25")]
    #[case("a=%2", "a=%252")]
    #[case("a=%zz", "a=%25zz")]
    #[case("a=%%41", "a=%25A")]
    #[case("a=%2541", "a=%2541")]
    #[case("a=%2525", "a=%2525")]
    #[case("a=%+1", "a=%25+1")]
    #[case("a=%4+", "a=%254+")]
    #[case("a%26b=c%3Dd", "a%26b=c%3Dd")]
    #[case("a=%2f%2F", "a=%2F%2F")]
    #[case("a=*!'()", "a=%2A%21%27%28%29")]
    #[case("a;b=1", "a%3Bb=1")]
    #[case("a=%00", "a=%00")]
    #[case("a[]=2&a[]=1", "a%5B%5D=1&a%5B%5D=2")]
    #[case("a=%FF", "a=%EF%BF%BD")]
    #[case("a=%C3%A9", "a=%C3%A9")]
    #[case("a=%C3", "a=%EF%BF%BD")]
    #[case("a=%E2%82x", "a=%EF%BF%BDx")]
    #[case("a=%ED%A0%80", "a=%EF%BF%BD%EF%BF%BD%EF%BF%BD")]
    #[case("a=%C0%80", "a=%EF%BF%BD%EF%BF%BD")]
    #[case("a=%F4%90%80%80", "a=%EF%BF%BD%EF%BF%BD%EF%BF%BD%EF%BF%BD")]
    #[case("a=%F0%9F%98", "a=%EF%BF%BD")]
    #[case("a%C3=%A9", "a%EF%BF%BD=%EF%BF%BD")]
    #[case("a=%EF%BB%BFx", "a=%EF%BB%BFx")]
    // Names order before values, and a prefix before what is longer, whatever the encoded forms would do.
    #[case("a%20=1&a=2&a-=3", "a=2&a+=1&a-=3")]
    #[case("a!=1&a=2", "a=2&a%21=1")]
    // By code point: U+FFFD is below U+1F600, although UTF-16 orders them the other way round.
    #[case("%F0%9F%98%80=1&%EF%BF%BD=2&z=3", "z=3&%EF%BF%BD=2&%F0%9F%98%80=1")]
    fn table(#[case] given: &str, #[case] expected: &str) {
        assert_eq!(query(given.as_bytes()), expected);
    }

    #[rstest]
    #[case(b"a=\xFF", "a=%EF%BF%BD")]
    #[case(b"\xFF=\xFE&a=\xC3\xA9", "a=%C3%A9&%EF%BF%BD=%EF%BF%BD")]
    #[case(b"a=\xC3&\xA9", "a=%EF%BF%BD&%EF%BF%BD=")]
    #[case(b"a=\xC3%A9", "a=%C3%A9")]
    #[case(b"\x00=\x7F", "%00=%7F")]
    fn bytes(#[case] given: &[u8], #[case] expected: &str) {
        assert_eq!(query(given), expected);
    }

    proptest! {
        #[test]
        fn canonical_is_its_own_canonical_form(
            given in prop_oneof![any::<Vec<u8>>(), "[&=%+a-f0-9é]{0,30}".prop_map(String::into_bytes)],
        ) {
            let once = query(&given);
            prop_assert!(once.is_ascii());
            prop_assert_eq!(query(once.as_bytes()), once);
        }

        #[test]
        fn order_and_encoding_of_pairs_do_not_count(
            pairs in prop::collection::vec((any::<String>(), any::<String>()), 0..6).prop_flat_map(|pairs| {
                (Just(pairs.clone()), Just(pairs).prop_shuffle())
            }),
        ) {
            let (pairs, shuffled) = pairs;
            let escaped = |text: &str| text.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02x}"));
            let one: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
            let other: Vec<_> = shuffled.iter().map(|(name, value)| {
                let mut text = String::new();
                encode(name, &mut text);
                text.push('=');
                encode(value, &mut text);
                text
            }).collect();
            prop_assert_eq!(query(one.join("&").as_bytes()), query(other.join("&&").as_bytes()));
        }
    }
}
