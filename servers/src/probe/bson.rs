//! As much BSON as it takes to say `hello` and to read whether the answer is yes.

/// A document under construction.
#[derive(Debug, Default)]
pub(super) struct Document(Vec<u8>);

impl Document {
    pub(super) fn int(self, name: &str, value: i32) -> Self {
        self.element(0x10, name, &value.to_le_bytes())
    }

    pub(super) fn string(self, name: &str, value: &str) -> Self {
        let mut bytes = length(value.len() + 1).to_vec();
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.element(0x02, name, &bytes)
    }

    pub(super) fn document(self, name: &str, value: Self) -> Self {
        let bytes = value.bytes();
        self.element(0x03, name, &bytes)
    }

    /// Its elements are those of a document whose names are `0`, `1`, ….
    pub(super) fn array(self, name: &str, value: Self) -> Self {
        let bytes = value.bytes();
        self.element(0x04, name, &bytes)
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = length(self.0.len() + 5).to_vec();
        bytes.extend_from_slice(&self.0);
        bytes.push(0);
        bytes
    }

    fn element(mut self, kind: u8, name: &str, value: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.0.extend_from_slice(value);
        self
    }
}

/// What we build is some hundred bytes; a length that did not fit would be refused by the server.
fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).unwrap_or(i32::MAX).to_le_bytes()
}

/// A value, as far as it is looked at here.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Bool(bool),
    Number(f64),
    Text(&'a str),
    Other,
}

/// A field of a document by its name. None where it has none, or where the bytes are not a document.
pub(super) fn field<'a>(document: &'a [u8], name: &str) -> Option<Value<'a>> {
    let mut rest = document.get(4..)?;
    loop {
        let (&kind, after) = rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let end = after.iter().position(|byte| *byte == 0)?;
        let (found, value) = (&after[..end], &after[end + 1..]);
        let size = size(kind, value)?;
        let bytes = value.get(..size)?;
        if found == name.as_bytes() {
            return Some(read(kind, bytes));
        }
        rest = &value[size..];
    }
}

fn read(kind: u8, bytes: &[u8]) -> Value<'_> {
    let number = match kind {
        0x08 => return Value::Bool(bytes.first() == Some(&1)),
        0x02 => {
            let text = bytes.get(4..bytes.len() - 1).and_then(|text| std::str::from_utf8(text).ok());
            return text.map_or(Value::Other, Value::Text);
        }
        0x01 => bytes.try_into().ok().map(f64::from_le_bytes),
        0x10 => bytes.try_into().ok().map(i32::from_le_bytes).map(f64::from),
        _ => None,
    };
    number.map_or(Value::Other, Value::Number)
}

/// How many bytes a value takes, by its type.
fn size(kind: u8, value: &[u8]) -> Option<usize> {
    let prefix = || Some(i32::from_le_bytes(value.get(..4)?.try_into().ok()?)).and_then(|n| usize::try_from(n).ok());
    match kind {
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        0x02 => prefix()?.checked_add(4).filter(|size| *size >= 5),
        0x03 | 0x04 => prefix().filter(|size| *size >= 5),
        0x05 => prefix()?.checked_add(5),
        0x07 => Some(12),
        0x08 => Some(1),
        0x0A => Some(0),
        0x10 => Some(4),
        0x13 => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        // The first example of bsonspec.org.
        let document = Document::default().string("hello", "world").bytes();
        assert_eq!(document, b"\x16\0\0\0\x02hello\0\x06\0\0\0world\0\0");
    }

    #[test]
    fn a_field_is_found_behind_others() {
        let inner = Document::default().int("0", 7);
        let document = Document::default()
            .document("a", Document::default().string("ok", "not this one"))
            .array("b", inner)
            .int("ok", 1)
            .string("setName", "rs0")
            .bytes();
        assert_eq!(field(&document, "ok"), Some(Value::Number(1.0)));
        assert_eq!(field(&document, "setName"), Some(Value::Text("rs0")));
        assert_eq!(field(&document, "a"), Some(Value::Other));
        assert_eq!(field(&document, "none"), None);
    }

    #[test]
    fn bytes_that_are_no_document_hold_nothing() {
        let document = Document::default().string("x", "y").int("ok", 1).bytes();
        for end in 0..document.len() - 1 {
            assert_eq!(field(&document[..end], "none"), None, "{end}");
        }
        assert_eq!(field(b"\x10\0\0\0\x02ok\0\xFF\xFF\xFF\xFF\0\0", "ok"), None);
        assert_eq!(field(b"\x10\0\0\0\x02ok\0\0\0\0\0\0\0", "ok"), None);
        assert_eq!(field(b"\x10\0\0\0\x7Fok\0", "ok"), None);
    }
}
